"""One decoder for every reader: depths above eight bits, colour spaces, transparency."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.corruptions import load_frost_textures
from tta_bench.datasets.files.decode import read_numbers, read_rgb
from tta_bench.datasets.files.label_maps import NumberLabels
from tta_bench.datasets.segmentation.folder import segmentation_folder

GREY = np.random.default_rng(0).integers(0, 256, (6, 7), dtype=np.uint8)
RGB = np.repeat(GREY[..., None], 3, axis=2)
WIDE = GREY.astype(np.uint16) * 257  # how eight bits are scaled to sixteen: 255 becomes 65535


def save_wide(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pgm":
        path.write_bytes(b"P5 7 6 65535 " + WIDE.astype(">u2").tobytes())
    else:
        Image.fromarray(WIDE).save(path)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_sixteen_bits_of_grey_show_what_eight_bits_show(tmp_path, suffix):
    save_wide(tmp_path / f"x{suffix}")
    np.testing.assert_array_equal(read_rgb(tmp_path / f"x{suffix}"), RGB)


def test_every_reader_of_images_has_the_right_grey(tmp_path):
    save_wide(tmp_path / "root" / "day" / "a" / "x.png")
    save_wide(tmp_path / "frost" / "x.png")
    (tmp_path / "classes.txt").write_text("ground\n")
    (tmp_path / "labels").mkdir()
    Image.fromarray(np.zeros_like(GREY)).save(tmp_path / "labels" / "x.png")
    data = image_folder(root=str(tmp_path / "root"), image_size=None, resize=None)
    np.testing.assert_array_equal(data.load("day", 0), RGB)
    np.testing.assert_array_equal(load_frost_textures(tmp_path / "frost")[0], RGB)
    pixels = segmentation_folder(
        images=str(tmp_path / "frost"), labels=str(tmp_path / "labels"), classes=str(tmp_path / "classes.txt")
    )
    np.testing.assert_array_equal(pixels.load("frost", 0), RGB)


@pytest.mark.parametrize(("dtype", "kind"), [(np.int32, "integers"), (np.float32, "floating-point numbers")])
def test_pixels_without_a_known_range_are_refused_with_file_and_depth(tmp_path, dtype, kind):
    Image.fromarray(GREY.astype(dtype)).save(tmp_path / "x.tif")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/x\.tif holds 32-bit {kind}, .* 8 bits per channel$"):
        read_rgb(tmp_path / "x.tif")


def test_transparency_is_dropped_and_palettes_become_colours(tmp_path):
    Image.fromarray(np.dstack([RGB, GREY])).save(tmp_path / "rgba.png")
    Image.fromarray(GREY).convert("P").save(tmp_path / "palette.png")
    for name in ("rgba", "palette"):
        np.testing.assert_array_equal(read_rgb(tmp_path / f"{name}.png"), RGB)


def test_labels_of_one_bit_and_of_sixteen_are_numbers(tmp_path):
    bits = GREY > 127
    Image.fromarray(bits).save(tmp_path / "one.png")
    Image.fromarray(bits.astype(np.uint16)).save(tmp_path / "sixteen.png")
    read = NumberLabels({0: 0, 1: 1})
    for name in ("one", "sixteen"):
        np.testing.assert_array_equal(read(tmp_path / f"{name}.png"), bits.astype(np.uint8))
    assert read_numbers(tmp_path / "one.png").dtype == np.uint8
