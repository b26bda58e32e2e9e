"""Forgetting: the error on the source domain after the stream, computed by hand, without any effect on the stream."""

from __future__ import annotations

import json
from dataclasses import replace

import lightning.pytorch as L
import numpy as np
import pytest
import torch

from tta_bench.callbacks.forgetting import Forgetting
from tta_bench.config.compose import compose_run
from tta_bench.data.datamodule import SourceBatches, StreamDataModule, schedule_for
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.experiments.run import Run
from tta_bench.methods import Source
from tta_bench.methods.base import TTAMethod
from tta_bench.models.loading.load_model import load_model
from tta_bench.models.preprocess import resize_and_crop
from tta_bench.types import PredictionTiming

IMAGES, BATCH = 20, 8


def weak_model():
    """A source model that says class 1 whatever it sees."""
    model = load_model("shapes_vit").eval()
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if name.endswith("head.bias"))[1] += 1e3
    return model


class Drift(TTAMethod):
    """Adds to the score of class 0 one more with every batch: each batch sees what the batches before have left."""

    prediction_timing = PredictionTiming.AFTER_UPDATE

    def configure_adaptation(self):
        self.add_state("batches", torch.zeros(()))

    def forward_and_adapt(self, images):
        self.batches += 1.0
        scores = self.backbone(images).detach() * 0
        scores[:, 0] = 1.0 if self.batches <= 3 else -1.0
        return scores


@pytest.fixture(scope="module")
def data():
    domains = shapes_c(num_images=12, domains=["fog"], num_source_images=60)
    return StreamDataModule(domains, schedule_for(domains, "csc", batch_size=BATCH))


def ended(method, data, images=IMAGES):
    """The callback behind a stream of two batches."""
    measure = Forgetting(images, BATCH, weak_model)
    trainer = L.Trainer(
        inference_mode=False, accelerator="cpu", logger=False, callbacks=[measure], enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.test(method, datamodule=data, verbose=False)
    return measure


def drawn_labels(data):
    """Labels of the images that are predicted."""
    labels = data.domains.source_images().labels
    return labels[np.random.default_rng(0).permutation(len(labels))[:IMAGES]]


def test_every_batch_is_predicted_from_the_state_after_the_stream(data):
    # After the two batches of the stream, the third predicts class 0 alone; were the state kept, a fourth would not.
    method = Drift(weak_model())
    measure = ended(method, data)
    labels = drawn_labels(data)
    wrong, source_wrong = int((labels != 0).sum()), int((labels != 1).sum())
    assert wrong != source_wrong
    assert measure.facts["source_error_after"] == 100 * wrong / IMAGES
    assert measure.facts["source_error_before"] == 100 * source_wrong / IMAGES
    assert measure.facts["forgetting"] == pytest.approx(100 * (wrong - source_wrong) / IMAGES)
    assert float(method.batches) == 2.0  # as the stream left it


def test_the_source_model_forgets_nothing(data):
    facts = ended(Source(weak_model()), data).facts
    assert facts["forgetting"] == 0.0
    assert facts["source_error_after"] == facts["source_error_before"] > 0.0


def test_nothing_is_measured_unless_asked_for(data):
    assert ended(Source(weak_model()), data, images=0).facts == {}


WORDS = ["method=tent", "method.lr=0.05", "dataset.num_images=16", "dataset.domains=[fog]", "setting.batch_size=8",
         "trainer=cpu", "logger=off"]  # fmt: skip


def test_a_run_has_the_same_numbers_with_and_without(tmp_path):
    from rich.console import Console

    for images in (0, IMAGES):
        words = [*WORDS, f"forgetting={images}", f"output={tmp_path / str(images)}"]
        Run(compose_run(words)).execute(Console(quiet=True))
    without, with_it = (json.loads(next(tmp_path.glob(f"{n}/**/result.json")).read_text()) for n in (0, IMAGES))
    assert with_it["forgetting_images"] == IMAGES
    assert with_it["forgetting"] == pytest.approx(with_it["source_error_after"] - with_it["source_error_before"])
    for key in ("domain_error", "ece", "forward_per_sample", "backward_per_sample", "top_class_share", "visit_error"):
        assert with_it[key] == without[key]
    assert not [key for key in without if key.startswith(("forgetting", "source_error"))]


def test_too_many_images_are_refused_before_the_stream():
    with pytest.raises(ValueError, match=r"^forgetting=30: shapes_c has only 20 source images$"):
        Run(compose_run([*WORDS, "dataset.num_source_images=20", "forgetting=30"]))


def test_images_are_brought_to_the_networks_size_as_the_streams_are(data):
    """A source profile of its own is for learning; what is forgotten is asked as the stream asks."""
    model, seen = weak_model(), []
    model.preprocess = replace(model.preprocess, resize=(80, 64))
    model.source_preprocess = replace(model.preprocess, resize=(64, 64))

    class Recorded(Drift):
        def forward_and_adapt(self, images):
            seen.append(images)
            return super().forward_and_adapt(images)

    ended(Recorded(model), data, images=1)
    source = next(iter(SourceBatches(data.domains.source_images(), False, 60, 0))) / 255
    cut = resize_and_crop(source, 80, 64)
    assert (cut - seen[-1]).abs().amax(dim=(1, 2, 3)).min() < 1e-6


def test_source_images_that_do_not_fit_the_network_are_refused_before_the_stream(data):
    model = weak_model()
    model.image_size = 32
    with pytest.raises(ValueError, match=r"^images of 64x64 pixels do not fit a model of 32x32"):
        Forgetting(IMAGES, BATCH, weak_model).check(data.domains, model)
