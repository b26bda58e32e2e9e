"""CMF's filter by hand, and limits that the traces do not reach."""

from __future__ import annotations

import pytest
import torch

from tta_bench.methods import CMF
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def method_at(hidden, adapted, **settings):
    """A method that does not learn, whose hidden and adapted weights lie above the source by these amounts."""
    method = ready(lambda: CMF(toy_backbone(), lr=0.0, **settings).double())
    for p in own(method):
        p.data += hidden
    for p in method.adapted:
        p.data += adapted
    return method


def own(method):
    pairs = zip(method.hidden.parameters(), method.backbone.parameters(), strict=True)
    return [p for p, q in pairs if p is not q]


def above_source(parameters, method):
    differences = [p.detach() - s for p, s in zip(parameters, method.initial_values(method.adapted), strict=True)]
    return torch.cat([d.flatten() for d in differences])


def test_the_hidden_model_owns_what_is_adapted_and_shares_the_rest():
    method = ready(lambda: CMF(toy_backbone()))
    assert [p.shape for p in own(method)] == [p.shape for p in method.adapted]
    assert len(list(method.hidden.parameters())) == len(list(method.backbone.parameters()))
    assert method.extra_parameters() == 0


def test_one_step_of_the_filter():
    method = method_at(8.0, 4.0, source_momentum=0.5, hidden_momentum=0.75, process_noise=0.02)
    method.hidden_variance.fill_(0.08)
    method.forward_and_adapt(batches(1)[0])
    variance = 0.5**2 * 0.08 + 0.02
    kept = 0.98 / (variance + 0.98)
    hidden = kept * 8.0 * 0.5 + (1 - kept) * 4.0
    assert method.hidden_variance.item() == pytest.approx(kept * variance)
    torch.testing.assert_close(above_source(own(method), method), torch.full((320,), hidden).double())
    torch.testing.assert_close(
        above_source(method.adapted, method), torch.full((320,), 0.75 * 4.0 + 0.25 * hidden).double()
    )


@pytest.mark.parametrize(("noise", "kept"), [(0.5, 0.89), (1e-5, 1.0)])
def test_the_gain_has_limits(noise, kept):
    method = method_at(0.0, 1.0, source_momentum=1.0, process_noise=noise)
    method.forward_and_adapt(batches(1)[0])
    assert method.diagnostics()["kalman_gain"] == 1 - kept
    assert method.hidden_variance.item() == pytest.approx(kept * noise)
    torch.testing.assert_close(above_source(own(method), method), torch.full((320,), 1 - kept).double())


def test_reset_forgets_the_hidden_model():
    method = ready(lambda: CMF(toy_backbone(), lr=0.01, process_noise=0.5))
    for images in batches(3):
        method.forward_and_adapt(images)
    assert above_source(own(method), method).abs().max() > 0
    method.reset()
    assert above_source(own(method), method).abs().max() == 0
    assert method.hidden_variance.item() == 0


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_networks_are_filtered(norm):
    method = ready(lambda: CMF(toy_cnn(norm), lr=0.01))
    method.forward_and_adapt(batches(2)[1])
    assert above_source(own(method), method).abs().max() > 0
