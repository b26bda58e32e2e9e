"""Half precision inside a network, and the precision of float32 products."""

from __future__ import annotations

import pytest
import torch

from tta_bench.models.precision import set_matmul
from tta_bench.testing import toy_backbone, toy_cnn


@pytest.fixture
def as_before():
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.mark.parametrize(
    ("wanted", "device", "has_tf32", "expected"),
    [
        ("medium", "cpu", False, ("medium", True)),
        ("highest", "cuda", True, ("highest", False)),
        (None, "cuda", True, ("high", True)),
        (None, "cuda", False, ("highest", False)),
        (None, "cpu", True, ("highest", False)),
    ],
)
def test_products_take_tf32_where_it_is_wanted_or_the_gpu_has_it(
    wanted, device, has_tf32, expected, as_before, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: has_tf32)
    set_matmul(wanted, torch.device(device))
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == expected


@pytest.mark.parametrize("make", [toy_backbone, toy_cnn])
def test_a_backbone_in_half_precision_stores_matrices_and_returns_float32(make):
    plain, half = make().eval(), make().eval().to(torch.bfloat16)
    assert {p.dtype for p in half.parameters() if p.ndim > 1} == {torch.bfloat16}
    assert {p.dtype for p in half.parameters() if p.ndim < 2} == {torch.float32}
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, scores = half.features(images), half(images)
        assert features.dtype == scores.dtype == torch.float32
        assert not torch.equal(scores, plain(images))
        torch.testing.assert_close(scores, plain(images), rtol=0.1, atol=0.1)
