"""Calling a method adapts it: the contract of ``method(images)``."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from tests.helpers.methods import Honest
from tta_bench import testing
from tta_bench.methods import DPCore, Tent
from tta_bench.types import SourceNeed


class TestCallingAMethod:
    def test_adapts_as_a_stream_does_with_gradients_switched_off_around_it(self):
        data = testing.toy_data()
        expected = testing.run_stream(Honest(testing.toy_backbone()), data)
        method = Honest(testing.toy_backbone())
        with torch.no_grad():
            scores = [method(batch.images) for batch in data.test_dataloader()]
        assert torch.equal(torch.cat(scores), expected)
        assert not any(score.requires_grad for score in scores)

    def test_asks_for_the_source(self):
        with pytest.raises(RuntimeError, match="DPCore needs the source: call fit_source"):
            DPCore(testing.toy_backbone())(testing.batches(1)[0])

    def test_asks_for_the_source_of_a_method_whose_author_forgot_to(self):
        class Forgetful(Honest):
            source_need = SourceNeed.UNLABELED

        with pytest.raises(RuntimeError, match="Forgetful needs the source"):
            Forgetful(testing.toy_backbone())(testing.batches(1)[0])

    def test_refuses_scores_that_are_not_finite(self):
        class Broken(Honest):
            def forward_and_adapt(self, images):
                return super().forward_and_adapt(images) / 0

        with pytest.raises(FloatingPointError, match=r"Broken returned a score that is not finite$"):
            Broken(testing.toy_backbone())(testing.batches(1)[0])

    def test_refuses_inference_mode(self):
        method = Honest(testing.toy_backbone())
        with torch.inference_mode(), pytest.raises(RuntimeError, match=r"outside of torch\.inference_mode\(\)"):
            method(testing.batches(1)[0])


def test_a_state_that_was_loaded_can_be_loaded_again():
    """The optimizer updates moments in place: they must not be those of the state."""
    method = Tent(testing.toy_backbone(), lr=0.1, steps=2)  # the prediction follows the first of two updates
    first, second = testing.batches(2)
    method(first)
    state = deepcopy(method.adaptation_state())
    scores = []
    for _ in range(2):
        method.load_adaptation_state(state)
        scores.append(method(second))
    assert torch.equal(*scores)
