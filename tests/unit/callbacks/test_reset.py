"""An oracle freezes a method at the end of the first domain."""

from __future__ import annotations

from copy import deepcopy

import lightning.pytorch as L
import torch

from tta_bench.callbacks import AdaptationMonitor, FreezeAfterFirstDomain
from tta_bench.methods import DPCore
from tta_bench.testing import ready, run_stream, toy_backbone, toy_data


class Prompts(DPCore):
    """Exp-1 of DPCore; notes the stored prompts that each batch meets."""

    met: list[torch.Tensor]

    def forward_and_adapt(self, images):
        self.met.append(self.coreset.prompt.clone())
        return super().forward_and_adapt(images)


def exp1():
    method = ready(lambda: Prompts(toy_backbone(), rho=1e9, steps_new=3, num_source=32))
    method.met = []
    return method


def frozen(method, data):
    monitor = AdaptationMonitor()
    return run_stream(method, data, monitor, FreezeAfterFirstDomain(monitor))


def test_the_prompt_is_refined_through_the_first_domain_and_is_the_same_in_all_others():
    method, data = exp1(), toy_data(setting="csc", batch_size=6)  # three batches per domain: 6, 6 and 5 images
    scores = frozen(method, data)
    assert len(method.met) == 9
    assert not torch.equal(method.met[1], method.met[2])  # refined by the second batch
    assert not torch.equal(method.met[2], method.met[3])  # and by the last of the domain
    assert all(torch.equal(prompt, method.met[3]) for prompt in method.met[3:])
    batch = list(data.test_dataloader())[4]
    images = method.backbone.prepare(batch.images)
    with torch.no_grad():
        expected = method.backbone.classify(method.backbone.features(images, method.met[3][0]))
    torch.testing.assert_close(scores[17 + 6 : 17 + 12], expected)


def test_updates_that_are_discarded_are_counted():
    monitor = AdaptationMonitor()
    run_stream(exp1(), toy_data(setting="csc", batch_size=6), monitor, FreezeAfterFirstDomain(monitor))
    # First batch: 1 forward pass and 3 steps of learning; all others: 2 forward passes and 1 step, frozen or not.
    assert monitor.tally.forward_samples == 4 * 6 + 2 * 45
    assert monitor.tally.backward_samples == 3 * 6 + 45


def test_the_first_domain_is_that_of_a_method_left_alone():
    data = toy_data(setting="csc")
    assert torch.equal(frozen(exp1(), data)[:17], run_stream(exp1(), data)[:17])


def test_a_resumed_stream_stays_frozen():
    whole = frozen(exp1(), toy_data(setting="csc"))
    states, monitor = {}, AdaptationMonitor()

    class Keep(L.Callback):
        def on_test_batch_end(self, trainer, pl_module, outputs, batch, *_):
            states[batch.step] = deepcopy(pl_module.adaptation_state())
            rows.append(monitor.last)

    rows = []
    run_stream(exp1(), toy_data(setting="csc"), monitor, FreezeAfterFirstDomain(monitor), Keep())
    resumed, data, after = exp1(), toy_data(setting="csc"), AdaptationMonitor()
    data.start, after.earlier = 7, rows[:7]
    resumed.start_from(states[6])
    scores = run_stream(resumed, data, after, FreezeAfterFirstDomain(after))
    assert torch.equal(scores, whole[-len(scores) :])
