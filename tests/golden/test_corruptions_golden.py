"""The corruptions reproduce outputs of the published code, given its random numbers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from tta_bench.datasets.corruptions import CORRUPTIONS, FAMILIES, corrupt, load_frost_textures

ARRAYS = dict(np.load(Path(__file__).parent / "corruptions.npz"))
KEYS = [key for key in ARRAYS if key.count("/") == 2]
# The images of each family, and how many pixels apart its stored outputs are.
INPUTS = {
    "imagenet": (ARRAYS["imagenet_image"][None], 7),
    "cifar": (ARRAYS["cifar_images"], 1),
    "tiny": (ARRAYS["imagenet_image"][None, 16:208:3, 16:208:3], 2),
}

# One grey level everywhere, ImageMagick's motion blur and snow included. Level differences are flips of the
# final truncation where the exact value is an integer and the order of the operations is not the published
# one: HSV is not computed (saturate, brightness), sums are in single precision (zoom, motion).
LARGEST_DIFFERENCE = 1
SHARE_OF_FLIPS = {"saturate": 0.02, "brightness": 0.005, "zoom_blur": 0.0005}
SHARE_OF_FLIPS_ELSEWHERE = 0.0004  # one value of a stored output


@pytest.fixture(scope="module")
def frost_textures(tmp_path_factory):
    """Slanted triangle waves, each channel with its own; the published photographs are not distributed here."""
    folder = tmp_path_factory.mktemp("frost")
    y, x = np.mgrid[:260, :340]
    for number in range(1, 7):
        waves = [abs((number * y + 2 * (channel + 1) * x) % 510 - 255) for channel in range(3)]
        Pillow.fromarray(np.stack(waves, axis=-1).astype(np.uint8)).save(folder / f"frost{number}.png")
    return load_frost_textures(folder)


def test_golden_file_covers_all_corruptions_families_and_severities():
    assert set(KEYS) == {f"{family}/{name}/{s}" for family in FAMILIES for name in CORRUPTIONS for s in range(1, 6)}


@pytest.mark.parametrize("key", KEYS)
def test_output_agrees_with_the_published_code(key, frost_textures):
    family, name, severity = key.split("/")[0], key.split("/")[1], int(key[-1])
    images, step = INPUTS[family]
    index = severity % len(images)
    # impulse_noise drew through scikit-image, which owns a Generator; all others from the legacy stream.
    make_rng = np.random.default_rng if name == "impulse_noise" else np.random.RandomState
    rng = make_rng(1000 * severity + index)
    output = corrupt(images[index], name, severity, family=family, rng=rng, frost_textures=frost_textures)
    difference = np.abs(output[::step, ::step].astype(int) - ARRAYS[key])
    assert difference.max() <= LARGEST_DIFFERENCE
    assert (difference > 0).mean() <= SHARE_OF_FLIPS.get(name, SHARE_OF_FLIPS_ELSEWHERE)
