"""One stream on several ranks gives the single-device numbers, for every registered method."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.helpers.methods import BACKBONES, FAST
from tests.helpers.ranks import on_ranks
from tta_bench import testing
from tta_bench.callbacks.agreement import check_agreement
from tta_bench.methods import METHODS
from tta_bench.models.parallel import share_of
from tta_bench.types import SourceNeed

# Batch norm with the statistics of the batch is refused on several devices: a rank sees a share of the batch only.
ONE_DEVICE = {"bn_adapt"}
NAMES = [name for name in METHODS if name not in ONE_DEVICE]
# Divisible and not, shorter than the number of ranks, one image, the short last batch.
BATCH_SIZES = (8, 7, 5, 1, 2, 3, 8)


def run_all(dtype):
    """Per method: scores (N, K), forward and backward samples, and the tensors that the stream changed."""
    results = {}
    for name in NAMES:
        backbone = BACKBONES.get(name, testing.toy_backbone)
        method = METHODS[name](backbone(), **FAST.get(name, {})).to(dtype)
        method.configure_model()
        if method.source_need is not SourceNeed.NOTHING:
            loader = testing.toy_data().source_dataloader(method.source_need, batch_size=15)
            method.fit_source(
                [images.to(dtype) / 255 for images in loader]
                if method.source_need is SourceNeed.UNLABELED
                else [(images.to(dtype) / 255, labels) for images, labels in loader]
            )
        scores = [
            method.forward_and_adapt(testing.batches(1, size, seed=size)[0].to(dtype)).detach() for size in BATCH_SIZES
        ]
        check = check_agreement if dist.is_initialized() else lambda *_: None
        check(method, 0)
        tensors = {key: value.double().numpy().copy() for key, value in method.adaptation_state()["tensors"].items()}
        meter = method.backbone.meter
        results[name] = (torch.cat(scores).double().numpy(), meter.forward_samples, meter.backward_samples, tensors)
    return results


on_one = cache(run_all)


@pytest.fixture(scope="module", params=[(2, torch.float64), (3, torch.float64), (2, torch.float32)], ids=str)
def both(request):
    world, dtype = request.param
    return on_one(dtype), on_ranks(world, run_all, dtype), 1e-10 if dtype == torch.float64 else 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_scores_and_passes_are_those_of_one_device(both, name):
    single, several, tolerance = both
    print(f"{name}: scores differ by {np.abs(several[name][0] - single[name][0]).max():.1e}")  # shown by pytest -rP
    np.testing.assert_allclose(several[name][0], single[name][0], rtol=tolerance, atol=tolerance)
    assert several[name][1:3] == single[name][1:3]


@pytest.mark.parametrize("name", NAMES)
def test_state_is_that_of_one_device(both, name):
    single, several, tolerance = both
    assert single[name][3].keys() == several[name][3].keys()
    for key, value in single[name][3].items():
        np.testing.assert_allclose(several[name][3][key], value, rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 8])
def test_shares_are_contiguous_and_cover_the_batch(monkeypatch, batch_size):
    monkeypatch.setattr("tta_bench.models.parallel.world_size", lambda: 3)
    shares = []
    for rank in range(3):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        shares.append(list(range(batch_size))[share_of(batch_size)])
    if batch_size < 3:
        assert shares == [list(range(batch_size))] * 3
    else:
        assert [row for share in shares for row in share] == list(range(batch_size))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def _disagree():
    method = METHODS["tent"](testing.toy_backbone())
    method.configure_model()
    if dist.get_rank() == 1:
        method.backbone.vit.norm.bias.data[3] += 1e-3
    try:
        check_agreement(method, wrong=0)
    except RuntimeError as error:
        return str(error)


def test_a_disagreement_names_the_tensor():
    message = on_ranks(2, _disagree)
    assert message == "the devices disagree: backbone.vit.norm.bias differs between rank 0 and rank 1"
