"""Label-free estimates against closed forms."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional.label_free import agreement, atc_accuracy, atc_threshold, nuclear_norm


def test_on_the_images_of_the_threshold_atc_is_their_accuracy():
    confidences = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    correct = torch.rand(200, generator=torch.Generator().manual_seed(1)) < 0.7
    threshold = atc_threshold(confidences, correct)
    assert float(atc_accuracy(confidences, threshold)) == pytest.approx(float(correct.double().mean()))


def test_atc_counts_what_reaches_the_threshold():
    confidences, correct = torch.tensor([0.2, 0.4, 0.6, 0.8]), torch.tensor([False, True, True, True])
    threshold = atc_threshold(confidences, correct)
    assert threshold == pytest.approx(0.4)
    assert float(atc_accuracy(torch.tensor([0.3, 0.4, 0.9]), threshold)) == pytest.approx(2 / 3)


def test_atc_of_a_model_that_is_never_right_is_zero():
    confidences = torch.tensor([0.5, 0.9])
    threshold = atc_threshold(confidences, torch.tensor([False, False]))
    assert float(atc_accuracy(torch.ones(3), threshold)) == 0
    with pytest.raises(ValueError, match="at least one labelled image"):
        atc_threshold(torch.zeros(0), torch.zeros(0, dtype=torch.bool))


@pytest.mark.parametrize(("n", "k"), [(8, 4), (4, 8), (1, 5)])
def test_the_nuclear_norm_of_predictions(n, k):
    spread = torch.eye(k)[torch.arange(n) % k]  # confident, spread over the classes
    collapsed = torch.eye(k)[torch.zeros(n, dtype=torch.long)]  # one singular value, sqrt(n)
    unsure = torch.full((n, k), 1 / k)  # one singular value, sqrt(n / k)
    least = min(n, k)
    assert float(nuclear_norm(spread)) == pytest.approx(1)
    assert float(nuclear_norm(collapsed)) == pytest.approx(least**-0.5)
    assert float(nuclear_norm(unsure)) == pytest.approx((least * k) ** -0.5)


def test_agreement_is_the_share_of_equal_classes():
    assert float(agreement(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 1]))) == 0.5
