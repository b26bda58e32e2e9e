"""Recognition of protocols from source errors, and its certainty."""

from __future__ import annotations

import numpy as np
import pytest

from tta_bench.datasets.corruptions import COMMON
from tta_bench.experiments.known_protocols import ANCHORS, Count, describe_protocol, mean_error, protocol_of

PAPER, TIMM = ANCHORS["imagenet_c"]
AT_5 = {"severity": 5}


def drawn(errors, n, seed=0):
    """Counts of n images of each corruption of a model with these errors."""
    rng = np.random.default_rng(seed)
    return {name: Count(int(rng.binomial(n, errors[name] / 100)), n) for name in COMMON}


def exactly(errors, n=1000):
    return {name: Count(round(errors[name] * n / 100), n) for name in COMMON}


@pytest.mark.parametrize(
    ("name", "means"), [("imagenet_c", (55.8, 48.9)), ("cifar10_c", (28.2,)), ("cifar100_c", (35.4,))]
)
def test_means_are_the_published_ones(name, means):
    ours = [sum(anchor.errors.values()) / 15 for anchor in ANCHORS[name]]
    assert ours == pytest.approx(means, abs=0.06)  # rounded there


def test_the_interval_of_a_mean_error():
    """By hand: rates (1 + 1) / (4 + 2) and (3 + 1) / (6 + 2), variances 1/18 and 1/24, mean of two."""
    mean, half = mean_error({"a": Count(1, 4), "b": Count(3, 6)})
    assert mean == pytest.approx(37.5)
    assert half == pytest.approx(196 * np.sqrt(1 / 18 + 1 / 24) / 2)


@pytest.mark.parametrize(("true", "other"), [(PAPER, TIMM), (TIMM, PAPER)])
@pytest.mark.parametrize("seed", range(5))
def test_sixty_images_of_each_corruption_tell_the_normalisations_apart(true, other, seed):
    told = describe_protocol("imagenet_c", AT_5, drawn(true.errors, 60, seed))
    assert told.startswith(f"matches {true.protocol}: ")
    assert other.protocol not in told


@pytest.mark.parametrize("true", [PAPER, TIMM])
def test_fewer_images_rule_the_right_one_out_in_few_of_a_hundred_draws(true):
    told = [describe_protocol("imagenet_c", AT_5, drawn(true.errors, 10, seed)) for seed in range(100)]
    assert sum(true.protocol not in sentence for sentence in told) <= 5
    assert sum("not ruled out" in sentence for sentence in told) > 20


@pytest.mark.parametrize("wrap", [dict, lambda data: {"packed_from": data}])
def test_nothing_is_known_of_some_of_the_classes(wrap):
    told = [describe_protocol("imagenet_c", wrap({**AT_5, "classes": n}), exactly(PAPER.errors)) for n in (1000, 100)]
    assert [sentence is None for sentence in told] == [False, True]


def test_it_says_both_errors_and_the_uncertainty():
    counts = exactly(PAPER.errors)
    told = describe_protocol("imagenet_c", AT_5, counts)
    half = mean_error(counts)[1]
    assert told.endswith(f": 55.8 % there (Source in DPCore, ICML 2025, Table 1), 55.8 ± {half:.1f} % here")


def test_one_image_of_each_is_not_enough_and_that_is_said():
    told = describe_protocol("imagenet_c", AT_5, drawn(PAPER.errors, 1))
    assert " is not ruled out: use more images" in told
    assert "use more images" in told


@pytest.mark.parametrize("shift", [-8, 8])
def test_other_errors_look_like_no_protocol(shift):
    errors = {name: PAPER.errors[name] + shift for name in COMMON}
    assert describe_protocol("imagenet_c", AT_5, exactly(errors)).startswith("matches no known protocol; ")


def test_a_percentage_point_is_within_what_other_images_and_versions_do():
    errors = {name: PAPER.errors[name] + 1 for name in COMMON}
    assert describe_protocol("imagenet_c", AT_5, exactly(errors, 50_000)).startswith(f"matches {PAPER.protocol}")


def test_only_corruptions_at_severity_5_count():
    counts, three = exactly(PAPER.errors), {"severity": 3}
    assert describe_protocol("imagenet_c", three, counts) is None
    named = {f"{name}/5": count for name, count in counts.items()} | {"fog/1": Count(0, 9), "clean": Count(0, 9)}
    assert describe_protocol("imagenet_c", three, named) == describe_protocol("imagenet_c", AT_5, counts)
    assert describe_protocol("imagenet_c", {"packed_from": AT_5}, counts).startswith(f"matches {PAPER.protocol}")


def test_of_other_data_nothing_is_said():
    assert describe_protocol("shapes_c", AT_5, exactly(PAPER.errors)) is None
    assert describe_protocol("image_folder", {}, {"photo": Count(1, 9)}) is None


@pytest.mark.parametrize(("changed", "told"), [({}, True), ({"method": "tent"}, False), ({"status": "failed"}, False)])
def test_a_result_is_compared_if_nothing_was_adapted(changed, told):
    result = {
        "method": "source", "status": "done", "data": AT_5, "domain_error": dict(TIMM.errors),
        "num_samples": dict.fromkeys(COMMON, 5000), **changed,
    }  # fmt: skip
    assert (protocol_of(result, "imagenet_c") or "").startswith(f"matches {TIMM.protocol}") == told
