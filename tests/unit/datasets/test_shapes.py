"""The procedural images of shapes_c."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tta_bench.datasets.procedural.shapes import CLASSES, FIELDS, SPLITS, ShapesImages, label, render

# Of the first images as they were when the weights in the package were trained.
GOLDEN = {
    ("train", 0): "203c0fad5854e810",
    ("source", 3): "04a7de7ad5aa0e3f",
    ("validation", 5): "8d745dd82b641315",
    ("test", 0): "c3215e7ac64ebecd",
    ("test", 17): "a1fb347072a0bc9c",
}


@pytest.mark.parametrize(("split", "index"), GOLDEN)
def test_images_are_the_same_as_ever(split, index):
    # A thumbnail in 32 grey levels: the last bit of a sine differs between processors.
    thumbnail = render(split, index).reshape(8, 8, 8, 8, 3).mean(axis=(1, 3))
    coarse = np.round(thumbnail / 8).astype(np.uint8)
    assert hashlib.sha256(coarse.tobytes()).hexdigest()[:16] == GOLDEN[split, index]


def test_an_image_does_not_depend_on_what_was_rendered_before():
    first = render("test", 3)
    render("test", 4)
    np.testing.assert_array_equal(render("test", 3), first)


@pytest.mark.parametrize("size", [32, 64, 96])
def test_images_have_the_wanted_size(size):
    image = render("test", 0, size)
    assert (image.shape, image.dtype) == ((size, size, 3), np.uint8)


def test_classes_take_turns():
    labels = ShapesImages("test", 50).labels
    assert np.bincount(labels).tolist() == [5] * 10
    assert [label(i) for i in range(12)] == [*range(10), 0, 1]
    assert labels.dtype == np.int64


def test_splits_share_no_image():
    images = [render(split, i).tobytes() for split in SPLITS for i in range(10)]
    assert len(set(images)) == len(images)


def test_every_class_has_a_shape_of_its_own():
    axis = np.linspace(-1.3, 1.3, 65)
    x, y = np.meshgrid(axis, axis)
    masks = [field(x, y) < 0 for field in FIELDS]
    assert len(masks) == len(CLASSES) == 10
    for mask in masks:
        assert 0.1 < mask.mean() < 0.6
    overlaps = [(a & b).sum() / (a | b).sum() for i, a in enumerate(masks) for b in masks[:i]]
    assert max(overlaps) < 0.95  # circle and hexagon


def test_the_shape_stands_out_from_the_background():
    contrast = [render("test", i).reshape(-1, 3).astype(float).std(axis=0).max() for i in range(20)]
    assert min(contrast) > 10


def test_a_set_keeps_what_it_rendered():
    images = ShapesImages("test", 3)
    assert len(images) == 3
    assert images[1] is images[1]
    np.testing.assert_array_equal(images[1], render("test", 1))
    assert images.describe() == "procedural shapes (test, 3 images, 64 pixels)"


def test_a_set_without_images_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        ShapesImages("test", 0)
