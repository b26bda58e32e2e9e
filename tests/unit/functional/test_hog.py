"""Histograms of oriented gradients of images with known gradients."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional.hog import BINS, hog_dim, hog_targets

VERTICAL_EDGE, HORIZONTAL_EDGE, DIAGONAL, ANTIDIAGONAL = 4, 0, 2, 6  # bins


def of_one_channel(descriptors, channel=0):
    return descriptors[:, :, BINS * channel : BINS * (channel + 1)]


def one_hot(index):
    return torch.eye(BINS)[index]


def ramp(size, x, y):
    along = torch.arange(size, dtype=torch.float32)
    return (x * along[None, :] + y * along[:, None]).expand(1, 3, size, size) / 100


def test_a_flat_image_gives_zeros():
    assert torch.equal(hog_targets(torch.full((2, 3, 16, 16), 0.7), 8), torch.zeros(2, 4, 27))


def test_an_edge_votes_for_its_bin_in_the_cells_that_it_touches():
    image = torch.zeros(1, 3, 16, 16)
    image[..., 4:] = 1
    descriptors = hog_targets(image, 8)
    torch.testing.assert_close(of_one_channel(descriptors)[0, 0], one_hot(VERTICAL_EDGE))
    torch.testing.assert_close(of_one_channel(descriptors)[0, 2], one_hot(VERTICAL_EDGE))
    assert not descriptors[0, [1, 3]].any()
    turned = hog_targets(image.transpose(2, 3), 8)
    torch.testing.assert_close(of_one_channel(turned)[0, 1], one_hot(HORIZONTAL_EDGE))
    assert not turned[0, [2, 3]].any()


@pytest.mark.parametrize(
    ("x", "y", "index"),
    [(1, 0, VERTICAL_EDGE), (0, 1, HORIZONTAL_EDGE), (1, 1, DIAGONAL), (1, -1, ANTIDIAGONAL), (1, 3, 0), (3, 1, 3)],
)
def test_a_gradient_and_its_opposite_share_the_bin_of_their_direction(x, y, index):
    for sign in (1, -1):
        descriptors = hog_targets(ramp(24, sign * x, sign * y), 8)
        torch.testing.assert_close(of_one_channel(descriptors)[0, 4], one_hot(index))  # no border in the middle


def test_votes_of_a_lone_pixel():
    image = torch.zeros(1, 3, 8, 8)
    image[0, 1, 3, 3] = 0.5
    votes = torch.zeros(BINS)  # two neighbours each: 2 beside and above it, sqrt(2) at its corners
    votes[[VERTICAL_EDGE, HORIZONTAL_EDGE]], votes[[DIAGONAL, ANTIDIAGONAL]] = 4.0, 2 * math.sqrt(2)
    descriptors = hog_targets(image, 8)
    torch.testing.assert_close(of_one_channel(descriptors, 1)[0, 0], votes / math.sqrt(48))
    assert not of_one_channel(descriptors, 0).any()
    assert not of_one_channel(descriptors, 2).any()


def test_patches_come_in_rows_and_a_descriptor_by_channel_bin_row_and_column():
    image = torch.zeros(1, 3, 32, 48)
    image[0, 2, 16 + 12, 32 + 3] = 1  # channel 2, patch in row 1 and column 2, cell in row 1 and column 0
    descriptors = hog_targets(image, 16)
    assert descriptors.shape == (1, 6, 108)
    expected = {2 * 36 + bin_ * 4 + 1 * 2 + 0 for bin_ in (HORIZONTAL_EDGE, DIAGONAL, VERTICAL_EDGE, ANTIDIAGONAL)}
    assert {tuple(place) for place in descriptors.nonzero().tolist()} == {(0, 5, k) for k in expected}


@pytest.mark.parametrize(("patch_size", "dim"), [(8, 27), (16, 108), (32, 432), (4, 27), (12, 108), (14, 108)])
def test_dimension_is_27_per_cell(patch_size, dim):
    images = torch.rand(2, 3, 2 * patch_size, patch_size, generator=torch.Generator().manual_seed(0))
    descriptors = hog_targets(images, patch_size)
    assert hog_dim(patch_size) == dim
    assert descriptors.shape == (2, 2, dim)
    torch.testing.assert_close(descriptors.square().sum(dim=2), torch.full((2, 2), dim / BINS))  # each cell: length 1


def test_patches_that_do_not_fill_the_image_are_refused():
    with pytest.raises(ValueError, match="images of 32x40 cannot be split into patches of 16 pixels"):
        hog_targets(torch.zeros(1, 3, 32, 40), 16)
