"""The procedural images of scenes_c."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest

from tta_bench.datasets.classification.scenes_c import scenes_c
from tta_bench.datasets.corruptions import COMMON, VALIDATION
from tta_bench.datasets.procedural.rendered import SPLITS
from tta_bench.datasets.procedural.scenes import CLASSES, ScenesImages, label, render

# Of the first images as they were when the source model was trained.
GOLDEN = {
    ("train", 0): "8177c8e751f9ae2c",
    ("source", 3): "5bc79851024c9b71",
    ("validation", 5): "51ddabb9b0087a9a",
    ("test", 0): "734f7b542e9e49c0",
    ("test", 37): "bbf4eb30051c187a",
}


def fingerprint(split: str, index: int) -> str:
    # A thumbnail in 32 grey levels: the last bit of a sine differs between processors.
    thumbnail = render(split, index).reshape(8, 8, 8, 8, 3).mean(axis=(1, 3))
    return hashlib.sha256(np.round(thumbnail / 8).astype(np.uint8).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("split", "index"), GOLDEN)
def test_images_are_the_same_as_ever(split, index):
    assert fingerprint(split, index) == GOLDEN[split, index]


def test_an_image_does_not_depend_on_what_was_rendered_before():
    first = render("test", 3)
    render("test", 4)
    np.testing.assert_array_equal(render("test", 3), first)


@pytest.mark.parametrize("size", [32, 64, 96])
def test_images_have_the_wanted_size(size):
    image = render("test", 0, size)
    assert (image.shape, image.dtype) == ((size, size, 3), np.uint8)


def test_classes_take_turns():
    labels = ScenesImages("test", 60).labels
    assert np.bincount(labels).tolist() == [3] * 20
    assert [label(i) for i in range(22)] == [*range(20), 0, 1]
    assert labels.dtype == np.int64


def test_neither_outline_nor_pattern_tells_the_class():
    assert len(set(CLASSES)) == 20
    patterns, shapes = zip(*(name.split() for name in CLASSES), strict=True)
    assert set(Counter(shapes).values()) == {2}
    assert set(Counter(patterns).values()) == {4}


def test_splits_share_no_image():
    images = [render(split, i).tobytes() for split in SPLITS for i in range(10)]
    assert len(set(images)) == len(images)


def test_the_object_is_lighter_than_what_surrounds_it():
    # On average over many images, as single ones have light clutter: the middle against the rim.
    images = np.stack([render("test", i).astype(float) for i in range(100)]).mean(axis=(0, 3))
    rim = np.concatenate([images[:4].ravel(), images[-4:].ravel(), images[:, :4].ravel(), images[:, -4:].ravel()])
    assert images[24:40, 24:40].mean() > rim.mean() + 25


def test_a_set_keeps_what_it_rendered():
    images = ScenesImages("test", 3)
    assert images[1] is images[1]
    np.testing.assert_array_equal(images[1], render("test", 1))
    assert images.describe() == "procedural scenes (test, 3 images, 64 pixels)"


def test_a_set_without_images_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        ScenesImages("test", 0)


class TestScenesC:
    def test_has_512_images_under_the_15_common_corruptions(self):
        data = scenes_c()
        assert (data.name, data.domains, len(data.labels("fog"))) == ("scenes_c", COMMON, 512)

    def test_source_stream_and_validation_show_different_images(self):
        test, validation = (scenes_c(num_images=20, split=split) for split in ("test", "validation"))
        source = test.source_images()
        assert len(source) == 4000
        shown = [{images[i].tobytes() for i in range(20)} for images in (source, test.clean, validation.clean)]
        assert len(set.union(*shown)) == 60

    def test_takes_the_validation_corruptions_by_name(self):
        assert scenes_c(num_images=1, domains="validation").domains == VALIDATION

    def test_it_has_as_many_source_images_as_asked_for(self):
        assert len(scenes_c(num_images=1, num_source_images=10_000).source_images()) == 10_000
        with pytest.raises(ValueError, match=r"dataset\.num_source_images must be at least 1, got 0"):
            scenes_c(num_source_images=0)

    @pytest.mark.parametrize("split", ["train", "source", "val"])
    def test_other_splits_are_refused(self, split):
        with pytest.raises(ValueError, match=r"dataset\.split must be test or validation"):
            scenes_c(split=split)


def test_an_unknown_family_is_refused_when_the_data_set_is_opened():
    with pytest.raises(ValueError, match=r"^dataset\.family 'tny' does not exist; did you mean 'tiny'\?"):
        scenes_c(family="tny")
