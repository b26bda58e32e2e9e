"""Confusion matrices and their IoU, and the mean of several views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_confusion_matrix, multiclass_jaccard_index

from tta_bench.functional.segmentation import confusion_per_image, multi_view_probabilities, resized
from tta_bench.results.confusion import class_iou, mean_iou

K = 6


def pixels(seed, absent=()):
    """Predictions and labels (2, 9, 7) of six classes, a tenth ignored, without the classes in ``absent``."""
    rng = np.random.default_rng(seed)
    there = [k for k in range(K) if k not in absent]
    labels, predicted = rng.choice(there, (2, 2, 9, 7))
    labels[rng.random(labels.shape) < 0.1] = 255
    return torch.from_numpy(predicted), torch.from_numpy(labels.astype(np.uint8))


@pytest.mark.parametrize("absent", [(), (4,), (0, 5)])
def test_each_image_is_counted_as_torchmetrics_does(absent):
    predicted, labels = pixels(0, absent)
    counts = confusion_per_image(predicted, labels.long(), K)
    assert counts.dtype == torch.int64
    for ours, p, y in zip(counts, predicted, labels.long(), strict=True):
        assert torch.equal(ours, multiclass_confusion_matrix(p, y, K, ignore_index=255))


@pytest.mark.parametrize("absent", [(), (4,), (0, 5)])
def test_the_mean_iou_of_results_is_that_of_torchmetrics(absent):
    images = [pixels(seed, absent) for seed in range(3)]
    total = sum(confusion_per_image(p, y.long(), K).sum(0) for p, y in images)
    counts = {(y, p): int(n) for (y, p), n in np.ndenumerate(total.numpy()) if n}
    predicted, labels = (torch.cat(part) for part in zip(*images, strict=True))
    theirs = multiclass_jaccard_index(predicted, labels.long(), K, average=None, ignore_index=255)
    assert class_iou(counts) == pytest.approx(
        {k: 100 * float(theirs[k]) for k in range(K) if k not in absent}, rel=1e-6
    )
    assert mean_iou(counts) == pytest.approx(np.mean(list(class_iou(counts).values())), rel=1e-12)
    macro = multiclass_jaccard_index(predicted, labels.long(), K, average="macro", ignore_index=255)
    assert mean_iou(counts) == pytest.approx(100 * float(macro), rel=1e-6)  # what training validates with


def test_of_nothing_but_ignored_pixels_nothing_is_counted():
    nothing = torch.zeros(1, 2, 2, dtype=torch.long)
    assert confusion_per_image(nothing, torch.full_like(nothing, 255), K).sum() == 0


class TestSeveralViews:
    images = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(0), dtype=torch.double)

    def network(self, x):
        """Sees only the pixel itself and its column: neither scale nor mirroring is neutral."""
        columns = torch.linspace(0, 1, x.shape[3], dtype=x.dtype).expand(x.shape[0], 1, *x.shape[2:])
        return torch.cat([5 * x, columns], dim=1)

    def test_of_the_image_itself_are_its_softmax(self):
        seen = multi_view_probabilities(self.network, self.images, (1.0,), flips=False)
        torch.testing.assert_close(seen, self.network(self.images).softmax(dim=1))

    def test_are_turned_back_and_averaged(self):
        seen = multi_view_probabilities(self.network, self.images, (1.0,))
        plain, mirrored = self.network(self.images), self.network(self.images.flip(-1)).flip(-1)
        torch.testing.assert_close(seen, (plain.softmax(dim=1) + mirrored.softmax(dim=1)) / 2)

    def test_of_other_sizes_meet_at_the_wanted_size_before_the_softmax(self):
        sizes = []

        def network(x):
            sizes.append(tuple(x.shape[2:]))
            return self.network(x)

        seen = multi_view_probabilities(network, self.images, (0.5, 1.3), flips=False, size=(16, 24))
        assert sizes == [(4, 6), (10, 16)]  # 1.3 * 8 = 10.4 and 1.3 * 12 = 15.6, rounded
        expected = [resized(self.network(resized(self.images, s)), (16, 24)).softmax(dim=1) for s in sizes]
        torch.testing.assert_close(seen, sum(expected) / 2)
