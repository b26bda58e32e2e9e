"""Shuffled patches, by hand."""

from __future__ import annotations

import torch

from tta_bench.functional.patches import shuffle_patches


def test_each_place_takes_the_patch_that_the_order_names():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    shuffled = shuffle_patches(image, torch.tensor([[1, 3, 0, 2]]))
    expected = [[2, 3, 10, 11], [6, 7, 14, 15], [0, 1, 8, 9], [4, 5, 12, 13]]
    assert shuffled[0, 0].tolist() == expected


def test_patches_need_not_be_square_and_all_channels_move_together():
    image = torch.arange(8.0).view(1, 1, 2, 4)
    shuffled = shuffle_patches(torch.cat([image, -image], dim=1), torch.tensor([[3, 2, 1, 0]]))
    assert shuffled[0, 0].tolist() == [[6, 7, 4, 5], [2, 3, 0, 1]]
    assert torch.equal(shuffled[:, 1], -shuffled[:, 0])


def test_each_image_has_its_own_order():
    images = torch.arange(4.0).view(1, 1, 2, 2).repeat(2, 1, 1, 1)
    shuffled = shuffle_patches(images, torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]))
    assert shuffled.flatten(1).tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]


def test_the_inverse_order_undoes_the_shuffle():
    images = torch.rand(3, 3, 12, 8, generator=torch.Generator().manual_seed(0))
    order = torch.rand(3, 16, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
    assert not torch.equal(shuffle_patches(images, order), images)
    assert torch.equal(shuffle_patches(shuffle_patches(images, order), order.argsort(dim=1)), images)


def test_sides_that_the_grid_does_not_divide_are_kept():
    columns = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]).expand(1, 1, 5, 7)
    swapped = shuffle_patches(columns, torch.tensor([[1, 0, 3, 2]]))
    assert swapped.shape == (1, 1, 5, 7)
    assert swapped[..., :3].mean() > 0.9
    assert swapped[..., -3:].mean() < 0.3
