"""Methods use exactly as many source images as they request, in the loader's order."""

from __future__ import annotations

import pytest
import torch

from tta_bench.methods import Source
from tta_bench.methods.source_images import take_source_images
from tta_bench.testing import toy_backbone

IMAGES = torch.arange(20.0).view(-1, 1, 1, 1)


def take(count, loader=None, **options):
    loader = loader or IMAGES.split(8)
    return [part.flatten().tolist() for part in take_source_images(Source(toy_backbone()), loader, count, **options)]


def test_the_last_batch_is_cut():
    assert take(10) == [[*range(8)], [8, 9]]


def test_no_batch_is_asked_for_once_there_are_enough():
    def loader():
        yield IMAGES[:8]
        pytest.fail("one batch was enough")

    assert take(8, loader()) == [[*range(8)]]


def test_only_kept_images_count_and_batches_without_any_are_skipped():
    assert take(5, keep=lambda x: x.flatten() >= 11) == [[11, 12, 13, 14, 15]]
    assert take(6, keep=lambda x: x.flatten() % 4 == 3, loader=torch.cat([IMAGES, IMAGES]).split(8)) == [
        [3, 7], [11, 15], [19, 3],
    ]  # fmt: skip


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match=r"^Source needs 21 source images but got 20: lower num_source$"):
        take(21)


def test_too_few_images_of_a_kind_are_refused_by_the_name_of_the_kind():
    with pytest.raises(ValueError, match=r"^Source needs 4 source images but got 3 with source_filter=sure: lower"):
        take(4, keep=lambda x: x.flatten() >= 17, condition="source_filter=sure")
