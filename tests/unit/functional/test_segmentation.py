"""IoU over a whole data set, and the mean of several views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassJaccardIndex

from tta_bench.functional.segmentation import (
    confusion_matrix,
    intersection_over_union,
    mean_iou,
    multi_view_probabilities,
    resized,
)

K = 6


def pixels(seed, absent=()):
    """Predictions and labels (2, 9, 7) of six classes, a tenth ignored, without the classes in ``absent``."""
    rng = np.random.default_rng(seed)
    there = [k for k in range(K) if k not in absent]
    labels, predicted = rng.choice(there, (2, 2, 9, 7))
    labels[rng.random(labels.shape) < 0.1] = 255
    return torch.from_numpy(predicted), torch.from_numpy(labels.astype(np.uint8))


def counted_one_by_one(images):
    counts = np.zeros((K, K), dtype=np.int64)
    for predicted, labels in images:
        for p, y in zip(predicted.flatten().tolist(), labels.flatten().tolist(), strict=True):
            if y != 255:
                counts[y, p] += 1
    return counts


def iou_one_by_one(counts):
    return [
        counts[k, k] / union if (union := counts[k].sum() + counts[:, k].sum() - counts[k, k]) else float("nan")
        for k in range(K)
    ]


@pytest.mark.parametrize("absent", [(), (4,), (0, 5)])
def test_counts_of_images_add_up_to_those_of_the_data_set(absent):
    images = [pixels(seed, absent) for seed in range(3)]
    total = sum(confusion_matrix(p, y, K) for p, y in images)
    counts = counted_one_by_one(images)
    assert total.dtype == torch.int64
    np.testing.assert_array_equal(total, counts)
    expected = iou_one_by_one(counts)
    assert [bool(np.isnan(v)) for v in expected] == [k in absent for k in range(K)]
    np.testing.assert_array_equal(intersection_over_union(total), expected)
    assert float(mean_iou(total)) == pytest.approx(np.nanmean(expected), rel=1e-15)
    apart = np.mean([float(mean_iou(confusion_matrix(p, y, K))) for p, y in images])
    assert abs(float(mean_iou(total)) - apart) > 1e-4  # a mean over images is something else


def test_agrees_with_torchmetrics():
    predicted, labels = pixels(0)
    ours = confusion_matrix(predicted, labels, K)
    assert torch.equal(ours, MulticlassConfusionMatrix(K, ignore_index=255)(predicted, labels.long()))
    theirs = MulticlassJaccardIndex(K, average=None, ignore_index=255)(predicted, labels.long())
    torch.testing.assert_close(intersection_over_union(ours).float(), theirs)


def test_a_class_is_absent_only_if_it_is_neither_there_nor_predicted():
    predicted, labels = torch.tensor([0, 1, 1]), torch.tensor([0, 0, 255])
    iou = intersection_over_union(confusion_matrix(predicted, labels, 3))
    torch.testing.assert_close(iou, torch.tensor([0.5, 0.0, torch.nan], dtype=torch.double), equal_nan=True)


def test_domains_stacked_are_counted_apart():
    counts = torch.stack([confusion_matrix(*pixels(seed, absent=(seed,)), K) for seed in range(2)])
    assert intersection_over_union(counts).shape == (2, K)
    torch.testing.assert_close(mean_iou(counts), torch.stack([mean_iou(c) for c in counts]))


def test_of_nothing_but_ignored_pixels_there_is_no_mean():
    counts = confusion_matrix(torch.zeros(4, dtype=torch.long), torch.full((4,), 255), K)
    assert counts.sum() == 0
    assert mean_iou(counts).isnan()


def test_a_label_that_is_no_class_is_named():
    with pytest.raises(ValueError, match="a label is 7, where classes go to 5 and 255 is ignored"):
        confusion_matrix(torch.tensor([0, 1]), torch.tensor([3, 7]), K)


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
