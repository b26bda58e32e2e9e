"""Every registered method fulfils the contract, and the checks catch methods that do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.helpers.methods import BACKBONES, FAST, Honest
from tta_bench import testing
from tta_bench.functional import adapt_norm_layers
from tta_bench.methods import METHODS
from tta_bench.testing import checks
from tta_bench.types import PredictionTiming

METHOD_NAMES = list(METHODS)


def test_every_method_is_checked():
    assert len(METHOD_NAMES) >= 4
    assert len(testing.CHECKS) == 12


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", METHOD_NAMES)
def test_method_keeps_the_contract(name, check):
    backbone = BACKBONES.get(name, testing.toy_backbone)
    check(lambda: METHODS[name](backbone(), **FAST.get(name, {})))


def test_dpcore_official_keeps_the_contract():
    testing.check_method(
        METHODS["dpcore"], lr=0.1, coreset_stats="prompted", prompt_init="uniform", steps_new=3, num_source=32
    )


class SurvivesReset(Honest):
    count = 0

    def forward_and_adapt(self, images):
        self.count += 1
        return super().forward_and_adapt(images) + self.count


class GlobalRandomness(Honest):
    def forward_and_adapt(self, images):
        return super().forward_and_adapt(images) + torch.rand(())


class PeeksAtLabels(Honest):
    def forward_and_adapt(self, images):
        return super().forward_and_adapt(images) + self.trainer.peeked

    def on_test_batch_start(self, batch, batch_idx, dataloader_idx=0):
        self.trainer.peeked = batch.labels.float().mean()


class KeepsAGraph(Honest):
    def configure_adaptation(self):
        super().configure_adaptation()
        self.add_state("average", torch.zeros(testing.NUM_CLASSES))

    def forward_and_adapt(self, images):
        logits = super().forward_and_adapt(images)
        self.average = 0.9 * self.average + 0.1 * self.backbone.classify(self.backbone.features(images)).mean(0)
        return logits


class Leaks(Honest):
    def forward_and_adapt(self, images):
        self.seen = [*getattr(self, "seen", []), images.clone()]
        return super().forward_and_adapt(images)


class NaNOnOneImage(Honest):
    def forward_and_adapt(self, images):
        return super().forward_and_adapt(images) / (len(images) - 1)


class MisdeclaredTiming(Honest):
    prediction_timing = PredictionTiming.AFTER_UPDATE


class HiddenSecondPass(Honest):
    def forward_and_adapt(self, images):
        super().forward_and_adapt(images)
        with torch.no_grad():
            return self.backbone(images)


class UnmeteredPass(Honest):
    def forward_and_adapt(self, images):
        with torch.no_grad():
            self.backbone.vit(images)
        return super().forward_and_adapt(images)


class UndeclaredState(Honest):
    def forward_and_adapt(self, images):
        logits = super().forward_and_adapt(images)
        self.bias = getattr(self, "bias", 0) + logits.detach().mean(0)
        return logits + self.bias


class GradientsForAll(Honest):
    def configure_adaptation(self):
        super().configure_adaptation()
        self.backbone.requires_grad_(True)


class TrainingMode(Honest):
    def forward_and_adapt(self, images):
        self.backbone.train()
        return super().forward_and_adapt(images)


BROKEN = [
    (SurvivesReset, checks.check_reset_is_bit_exact, "different scores"),
    (SurvivesReset, checks.check_same_result_whatever_ran_before, "state was not reset"),
    (GlobalRandomness, checks.check_same_result_whatever_ran_before, "not seeded"),
    (PeeksAtLabels, checks.check_labels_never_reach_the_method, "labels or domains reach"),
    (KeepsAGraph, checks.check_no_graph_is_kept, "average keeps an autograd graph"),
    (Leaks, checks.check_memory_is_flat, "bytes of tensors were added"),
    (NaNOnOneImage, checks.check_odd_batches_are_survived, "not finite"),
    (MisdeclaredTiming, checks.check_prediction_timing_is_true, "says after_update"),
    (HiddenSecondPass, checks.check_passes_are_as_declared, "declares"),
    (UnmeteredPass, checks.check_passes_are_as_declared, "the meter counts"),
    (UndeclaredState, checks.check_state_survives_save_and_load, "not declared"),
    (UndeclaredState, checks.check_resume_equals_uninterrupted, "resumed at batch 2 it gave different scores"),
    (GradientsForAll, checks.check_only_what_is_stepped_requires_gradients, "is in no optimizer"),
    (TrainingMode, checks.check_modules_stay_in_eval_mode, "training mode"),
]


@pytest.mark.parametrize(("cls", "check", "message"), BROKEN, ids=lambda x: getattr(x, "__name__", None))
def test_a_broken_promise_is_caught(cls, check, message):
    with pytest.raises(AssertionError, match=message):
        check(lambda: cls(testing.toy_backbone()))


def test_the_honest_method_passes_all_checks():
    account = testing.check_method(Honest)
    assert account.startswith("Honest fulfils the contract: 12 checks on a toy ViTBackbone, predicting last forward")
    assert len(account.splitlines()) == 1 + len(testing.CHECKS)


def test_inference_mode_is_refused_with_the_remedy():
    import lightning.pytorch as L

    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    with pytest.raises(RuntimeError, match="inference_mode=False"):
        trainer.test(Honest(testing.toy_backbone()), datamodule=testing.toy_data(), verbose=False)


def test_scores_that_are_not_finite_end_the_run_with_the_step():
    class Broken(Honest):
        def forward_and_adapt(self, images):
            return super().forward_and_adapt(images) * float("nan")

    with pytest.raises(FloatingPointError, match="Broken returned a score that is not finite at step 0"):
        testing.run_stream(Broken(testing.toy_backbone()), testing.toy_data())


def test_norm_layers_of_a_batch_norm_network_use_batch_statistics():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    trainable = adapt_norm_layers(network)
    assert len(trainable) == 2
    assert network[1].running_mean is None


def test_a_network_without_norm_layers_is_refused():
    with pytest.raises(ValueError, match="no normalisation layer"):
        adapt_norm_layers(nn.Linear(2, 2))
