"""Counts of batches with label maps, compared with counting pixel by pixel, alone and over a stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics.functional.classification import multiclass_confusion_matrix

from tests.helpers.segmenting import CLASSES, PixelDomains, Pixels
from tta_bench.callbacks import AdaptationMonitor
from tta_bench.callbacks.counts import count_pixels
from tta_bench.data import StreamDataModule, schedule_for
from tta_bench.functional.segmentation import confusion_per_image
from tta_bench.methods import Source
from tta_bench.results.rows import BINS
from tta_bench.results.run_folder import read_rows
from tta_bench.testing import run_stream
from tta_bench.types import OutputKind, SourceNeed, StreamBatch

K = 3
NAMES = ("fog", "snow", "rain")


def batch(seed, ids, ignored=0.2):
    """Scores (B, K, 4, 6) and a batch with label maps of twice that size."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(len(ids), K, 4, 6, generator=rng)
    labels = torch.randint(0, K, (len(ids), 8, 12), generator=rng)
    labels[torch.rand(labels.shape, generator=rng) < ignored] = 255
    return scores, StreamBatch(torch.zeros(len(ids), 3, 4, 6), labels, torch.tensor(ids), 0)


@pytest.mark.parametrize("kind", OutputKind)
def test_pixels_are_counted_at_the_size_of_the_labels(kind):
    scores, given = batch(0, [2, 0, 2])
    scores = scores if kind is OutputKind.LOGITS else scores.softmax(1)
    counts = count_pixels(scores, kind, given, NAMES)
    large = F.interpolate(scores, (8, 12), mode="bilinear", align_corners=False)
    large = large.softmax(1) if kind is OutputKind.LOGITS else large
    matrices, bins, called = {"fog": {}, "rain": {}}, np.zeros((3, BINS)), np.zeros(K)
    wrong = {"fog": [], "rain": []}
    for image, labels, domain in zip(large.numpy(), given.labels.numpy(), given.domain_ids.tolist(), strict=True):
        counted = [(image[:, y, x], int(labels[y, x])) for y, x in np.argwhere(labels != 255)]
        for values, label in counted:
            pair = (label, int(values.argmax()))
            own = matrices[NAMES[domain]]
            own[pair] = own.get(pair, 0) + 1
            called[pair[1]] += 1
            bins[:, min(int(values.max() * BINS), BINS - 1)] += (1, values.max(), pair[0] == pair[1])
        wrong[NAMES[domain]].append(np.mean([values.argmax() != label for values, label in counted]))
    assert counts.confusion == matrices
    assert {name: n for name, (n, _) in counts.by_domain.items()} == {"fog": 1, "rain": 2}
    assert {name: total for name, (_, total) in counts.by_domain.items()} == pytest.approx(
        {name: sum(shares) for name, shares in wrong.items()}
    )
    assert counts.top_class_share == pytest.approx(called.max() / called.sum())
    assert set(counts.calibration) == set(np.flatnonzero(bins[0]))
    for k, found in counts.calibration.items():
        assert found == pytest.approx(tuple(bins[:, k]), rel=1e-5)


def test_an_image_without_a_pixel_that_counts_is_not_wrong():
    scores, given = batch(1, [0, 1])
    given.labels[0] = 255
    counts = count_pixels(scores, OutputKind.LOGITS, given, NAMES)
    assert counts.by_domain["fog"] == (1, 0.0)
    assert counts.confusion["fog"] == {}
    assert 0 < counts.by_domain["snow"][1] <= 1
    given.labels[:] = 255
    counts = count_pixels(scores, OutputKind.LOGITS, given, NAMES)
    assert (counts.top_class_share, counts.calibration) == (0.0, {})


def test_the_matrix_of_each_image_is_the_matrix_of_that_image():
    scores, given = batch(2, [0, 0, 0])
    predicted = scores.argmax(1).repeat_interleave(2, 1).repeat_interleave(2, 2)
    each = confusion_per_image(predicted, given.labels, K)
    assert torch.equal(
        each,
        torch.stack(
            [
                multiclass_confusion_matrix(p, y, K, ignore_index=255)
                for p, y in zip(predicted, given.labels, strict=True)
            ]
        ),
    )


def stream(rounds=2, batch_size=2, **settings):
    domains = PixelDomains(**settings)
    return StreamDataModule(domains, schedule_for(domains, "csc", batch_size=batch_size, rounds=rounds))


class TestAStream:
    def test_brings_label_maps_as_whole_numbers(self):
        data = stream()
        sent = next(iter(data.test_dataloader()))
        assert (sent.labels.dtype, sent.labels.shape) == (torch.uint8, (2, 8, 12))
        step = data.schedule[0]
        for labels, index in zip(sent.labels, step.indices, strict=True):
            np.testing.assert_array_equal(labels, data.domains.label_map("fog", int(index)))

    def test_of_source_images_has_label_maps_too(self):
        images, labels = next(iter(stream().source_dataloader(SourceNeed.LABELED)))
        assert (images.shape, labels.shape, labels.dtype) == ((4, 3, 4, 6), (4, 8, 12), torch.int64)
        assert labels.unique().tolist() == [0, 1, 2, 255]

    def test_of_several_sizes_is_shown_one_image_at_a_time(self):
        with pytest.raises(ValueError, match=r"images of 4x6 and 6x6 pixels in one stream: set setting\.batch_size=1$"):
            list(stream(uneven=True).test_dataloader())
        assert len(list(stream(uneven=True, batch_size=1).test_dataloader())) == 2 * 10

    def test_is_counted_round_by_round_and_written_for_resuming(self, tmp_path):
        data = stream()
        monitor = AdaptationMonitor(rows=tmp_path / "batches.csv")
        scores = run_stream(Source(Pixels()), data, monitor)
        summary, n = monitor.tally.summary(), data.schedule.num_samples // 2
        assert [len(found["domain"]) for found in summary["iou_by_round"]] == [2, 2]
        assert summary["iou_by_round"][0] == summary["iou_by_round"][1]  # the source model never changes
        large = F.interpolate(scores[:n].float(), (8, 12), mode="bilinear", align_corners=False).argmax(1)
        maps = torch.cat([b.labels for b in list(data.test_dataloader())[: len(data.schedule) // 2]]).long()
        for name, part in (("fog", slice(0, n // 2)), ("snow", slice(n // 2, n))):
            counts = multiclass_confusion_matrix(large[part], maps[part], K, ignore_index=255).double()
            both = counts.diagonal()
            iou = 100 * both / (counts.sum(0) + counts.sum(1) - both)
            assert summary["domain_iou"][name] == pytest.approx(iou.mean().item())
            assert list(summary["class_iou_by_domain"][name]) == list(CLASSES)
            assert list(summary["class_iou_by_domain"][name].values()) == pytest.approx(iou.tolist())
        rows = read_rows(tmp_path / "batches.csv", (tmp_path / "batches.csv").stat().st_size)
        resumed = AdaptationMonitor()
        resumed.earlier, data.start = rows[:3], 3
        run_stream(Source(Pixels()), data, resumed)
        again = resumed.tally.summary()
        assert {k: v for k, v in again.items() if "iou" in k} == {k: v for k, v in summary.items() if "iou" in k}


@pytest.mark.parametrize(("setting", "need"), [("ptta", "a class per image"), ("gradual", "at several severities")])
def test_a_setting_that_needs_more_is_refused(setting, need):
    with pytest.raises(ValueError, match=f"^setting={setting} needs .*{need}, which pixels does not have"):
        schedule_for(PixelDomains(), setting)


def test_the_toy_network_is_not_always_right():
    assert isinstance(Pixels().mix, nn.Conv2d)
    data = stream(rounds=1)
    monitor = AdaptationMonitor()
    run_stream(Source(Pixels()), data, monitor)
    assert 5 < monitor.tally.summary()["mean_iou"] < 95
