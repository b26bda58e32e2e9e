"""Source models that several runs of a process share."""

from __future__ import annotations

from tta_bench.config.compose import compose_run
from tta_bench.experiments.opened import Opened


def test_runs_share_neither_counts_nor_what_is_compiled():
    config, opened = compose_run(["model.compile=default", "dataset.num_images=2"]).config, Opened()
    one, two = (opened.backbone(config.model, "shapes_vit", config.dataset) for _ in range(2))
    assert one.compilation.mode == two.compilation.mode == "default"
    one.compilation.begin(2)
    one.meter.forward_samples += 2
    assert two.compilation.batch_size is None
    assert two.meter.forward_samples == 0
