"""No hyper-parameter is without effect, and optimizers are as documented."""

from __future__ import annotations

import inspect
from functools import cache

import pytest
import torch

from tests.helpers.methods import BACKBONES, FAST
from tta_bench import testing
from tta_bench.methods import METHODS
from tta_bench.types import SourceNeed

# Settings of the runs that are compared, beside those that make a method quick.
BASE = {
    "bdg": {"alignment": 0.1},
    "cmf": {"lr": 0.01},
    "dept": {"lr": 0.1},
    "deyo": {"entropy_margin": 0.9, "plpd_threshold": -0.1},
    "eata": {"fisher_weight": 100.0},
    "memo": {"lr": 0.001},
    "petta": {"lr": 0.05, "alpha0": 0.5},
    "pseudo_label": {"lr": 0.01, "threshold": 0.5},
    "pseudo_label_lame": {"lr": 0.01, "threshold": 0.5},
    "roid": {"lr": 0.01},
    "rotta": {"lr": 0.05, "teacher_momentum": 0.5},
    "sar": {"entropy_margin": 0.9, "reset_threshold": 0.45},
    "tent": {"lr": 0.01},
    "vdp": {"lr_specific": 0.01, "lr_agnostic": 0.01, "jump": 0.1},
    "vida": {"lr": 0.001, "adapter_lr": 0.01, "threshold": 0.01, "restore_probability": 0.1},
}
SGD = {"optimizer": "adam", "momentum": 0.5}
# Another value of every hyper-parameter; those of DPCore are in its own tests.
OTHER = {
    "tent": {"lr": 0.02, **SGD, "nesterov": False, "steps": 2, "loss": "hard_label"},
    "bdg": {
        "lr": 0.02, "optimizer": "adam", "teacher_momentum": 0.5, "threshold_momentum": 0.9, "quantile": 0.3,
        "diversity_momentum": 0.2, "alignment": 0.5, "views": "flip", "seed": 1,
    },
    "bn_adapt": {"prior": 0.5},
    "cmae": {
        "lr": 0.01, "lr_reconstruction": 0.1, "mask_ratio": 0.2, "reconstruction_weight": 3.0,
        "consistency": "cross_entropy", "restore_probability": 0.5, "num_views": 3, "views": "flip", "seed": 1,
    },
    "cmf": {
        "lr": 0.02, **SGD, "source_momentum": 0.5, "hidden_momentum": 0.5, "process_noise": 0.5, "temperature": 2.0,
        "probability_momentum": 0.5, "prior_correction": "none", "views": "flip", "seed": 1,
    },
    "cotta": {
        "lr": 0.02, **SGD, "nesterov": False, "loss": "cross_entropy", "teacher_momentum": 0.5,
        "restore_probability": 0.5, "threshold": 0.0, "num_views": 2, "views": "flip", "seed": 1,
    },
    "dept": {
        "lr": 0.2, "weight_decay": 0.1, "clip": 0.01, "stages": 1, "prompt_length": 3, "head_width": 8,
        "teacher_momentum": 0.5, "neighbors": 18, "memory_size": 4, "feature_weight": 3.0, "prompt_weight": 3.0,
        "diversity_weight": 3.0, "spread_weight": 3.0, "source_spread_weight": 3.0, "label_smoothing": 0.5,
        "warmup_steps": 2, "warmup_lr": 0.1, "seed": 1,
    },
    "deyo": {
        "lr": 0.02, **SGD, "entropy_margin": 0.41, "weight_margin": 0.9, "plpd_threshold": 0.05, "grid": 2, "seed": 1,
    },
    "eata": {
        "lr": 0.02, **SGD, "entropy_margin": 0.9, "cosine_margin": 0.1, "fisher_weight": 1.0, "num_source": 16,
    },
    "ecotta": {
        "lr": 0.1, "regularization": 9.0, "entropy_margin": 0.9, "mode": "single", "partitions": 1, "bottleneck": 3,
        "warmup_steps": 2, "warmup_lr": 0.1, "seed": 1,
    },
    "eta": {"lr": 0.02, **SGD, "entropy_margin": 0.9, "cosine_margin": 0.1},
    "foa": {
        "prompt_length": 2, "population": 7, "fitness_weight": 9.0, "step_size": 0.1, "shift_momentum": 0.2,
        "num_source": 16, "seed": 1,
    },
    "lame": {"affinity": "rbf", "neighbors": 2, "symmetric": False},
    "memo": {"lr": 0.01, "optimizer": "sgd", "weight_decay": 0.5, "num_views": 3, "seed": 1},
    "note_pbrs": {"lr": 0.02, "memory_size": 3, "update_every": 3, "seed": 1},
    "petta": {
        "lr": 0.02, "memory_size": 3, "loss": "symmetric", "alpha0": 0.1, "lambda0": 9.0, "anchor_weight": 9.0,
        "prototype_share": 0.9, "age_weight": 9.0, "entropy_weight": 0.0, "num_source": 16, "views": "flip", "seed": 1,
    },
    "pseudo_label": {"lr": 0.02, **SGD, "nesterov": False, "threshold": 0.8, "part": "lower_half"},
    "pseudo_label_lame": {"lr": 0.02, "momentum": 0.5, "threshold": 0.8},
    "rdumb": {"lr": 0.02, **SGD, "entropy_margin": 0.9, "cosine_margin": 0.1, "reset_every": 2},
    "roid": {
        "lr": 0.02, **SGD, "source_momentum": 0.5, "temperature": 2.0, "probability_momentum": 0.5,
        "prior_correction": "none", "views": "flip", "seed": 1,
    },
    "rotta": {
        "lr": 0.02, "memory_size": 3, "update_every": 3, "teacher_momentum": 0.9, "age_weight": 0.0,
        "entropy_weight": 50.0, "views": "flip", "seed": 1,
    },
    "rpl": {"lr": 0.02, **SGD, "nesterov": False, "q": 0.3},
    "santa": {
        "lr": 0.02, **SGD, "nesterov": False, "anchor_weight": 3.0, "contrast_weight": 3.0, "temperature": 1.0,
        "projection_dim": 8, "num_source": 16, "views": "flip", "seed": 1,
    },
    "sar": {
        "lr": 0.02, **SGD, "rho": 0.5, "entropy_margin": 0.41, "reset_threshold": 0.0, "average_after_recovery": "kept",
    },
    "vdp": {
        "lr_specific": 0.1, "lr_agnostic": 0.1, "grid": 8, "frame_width": 2, "teacher_momentum": 0.5,
        "penalty": 1000.0, "damping": 1e-9, "jump": 0.9, "warmup_steps": 2, "warmup_lr": 0.1, "seed": 1,
    },
    "vida": {
        "lr": 0.1, "adapter_lr": 0.1, "optimizer": "adam", "loss": "cross_entropy", "low_rank": 2, "high_rank": 3,
        "num_views": 3, "views": "flip", "threshold": 9.0, "scales": "released", "teacher_momentum": 0.5,
        "adapter_momentum": 0.2, "restore_probability": 0.5, "warmup_steps": 2, "warmup_lr": 0.1, "seed": 1,
    },
}  # fmt: skip
PAIRS = [(name, key) for name, others in OTHER.items() for key in others]


@cache
def outcome(name, **changed):
    """Scores of a stream; many comparisons have the same base."""
    settings = {**FAST.get(name, {}), **BASE.get(name, {}), **changed}
    backbone = settings.pop("backbone", BACKBONES.get(name, testing.toy_backbone))
    method = testing.ready(lambda: METHODS[name](backbone(), **settings))
    return torch.cat([method.forward_and_adapt(images).detach().flatten() for images in testing.batches(8)])


@pytest.mark.parametrize(("name", "key"), PAIRS)
def test_another_value_changes_the_outcome(name, key):
    before, after = outcome(name), outcome(name, **{key: OTHER[name][key]})
    assert not torch.equal(before, after), f"{name}: {key} does nothing"


# Settings that matter only where another has a certain value, or on another network.
@pytest.mark.parametrize(
    ("name", "key", "values", "where"),
    [
        ("sar", "none_reliable", ("skip", "coast"), {"entropy_margin": 0.41, "reset_threshold": 0.0, "lr": 0.01}),
        ("petta", "robust_alpha", (0.05, 0.5), {"backbone": testing.toy_cnn}),
        ("rotta", "alpha", (0.05, 0.5), {"backbone": testing.toy_cnn}),
    ],
)
def test_another_value_changes_the_outcome_where_it_matters(name, key, values, where):
    a, b = (outcome(name, **{key: value}, **where) for value in values)
    assert not torch.equal(a, b)


# Draws nothing, or has a test of its own file (DPCore and its variants).
UNUSED_SEED = {
    "source",
    "tent",
    "bn_adapt",
    "eata",
    "eta",
    "lame",
    "pseudo_label",
    "pseudo_label_lame",
    "rdumb",
    "rpl",
    "sar",
}
ELSEWHERE = {("sar", "none_reliable"), ("petta", "robust_alpha"), ("rotta", "alpha")}


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("dpcore")])
def test_every_hyper_parameter_is_tried(name):
    tried = set(OTHER.get(name, ())) | {key for method, key in ELSEWHERE if method == name}
    taken = set(inspect.signature(METHODS[name].__init__).parameters) - {"self", "backbone"}
    assert taken - tried == ({"seed"} if name in UNUSED_SEED else set())


PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "dampening": 0.0}
ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
MOMENTUM, NESTEROV = PLAIN | {"momentum": 0.9}, PLAIN | {"momentum": 0.9, "nesterov": True}
OPTIMIZERS = [
    ("tent", {}, "SGD", [1e-4], NESTEROV),
    ("tent", {"nesterov": False, "momentum": 0.3}, "SGD", [1e-4], PLAIN | {"momentum": 0.3}),
    ("bdg", {}, "SGD", [1e-4], NESTEROV),
    ("cmae", {}, "Adam", [1e-6, 1e-4], ADAM),
    ("cmf", {}, "SGD", [2.5e-4], NESTEROV),
    ("cotta", {}, "SGD", [1e-4], NESTEROV),
    ("dept", {}, "SGD", [1e-3], NESTEROV | {"weight_decay": 1e-4}),
    ("deyo", {}, "SGD", [1e-3], MOMENTUM),
    ("eata", {}, "SGD", [1e-3], MOMENTUM),
    ("ecotta", {}, "SGD", [1e-3], MOMENTUM),
    ("eta", {}, "SGD", [1e-3], MOMENTUM),
    ("memo", {}, "AdamW", [1e-5], ADAM | {"weight_decay": 0.01}),
    ("memo", {"optimizer": "sgd"}, "SGD", [1e-5], PLAIN | {"weight_decay": 0.01}),
    ("note_pbrs", {}, "Adam", [1e-4], ADAM),
    ("petta", {}, "Adam", [1e-3], ADAM),
    ("pseudo_label", {}, "SGD", [1e-4], NESTEROV),
    ("pseudo_label_lame", {}, "SGD", [1e-3], PLAIN),
    ("rdumb", {}, "SGD", [2.5e-4], MOMENTUM),
    ("roid", {}, "SGD", [2.5e-4], NESTEROV),
    ("rotta", {}, "Adam", [1e-3], ADAM),
    ("rpl", {}, "SGD", [5e-4], NESTEROV),
    ("santa", {}, "SGD", [0.01], NESTEROV),
    ("santa", {"nesterov": False}, "SGD", [0.01], MOMENTUM),
    ("sar", {}, "SGD", [1e-3], MOMENTUM),
    ("vdp", {}, "Adam", [1e-3, 1e-4], ADAM),
    ("vida", {}, "SGD", [5e-7, 2e-7], NESTEROV),
    ("vida", {"optimizer": "adam"}, "Adam", [5e-7, 2e-7], ADAM),
    *((name, {"optimizer": "adam"}, "Adam", None, ADAM) for name in OTHER if OTHER[name].get("optimizer") == "adam"),
]
# What a network of few blocks needs; everything else has its default.
SMALL = {"dept": {"stages": 2}, "ecotta": {"partitions": 2}}


@pytest.mark.parametrize(("name", "settings", "kind", "rates", "expected"), OPTIMIZERS)
def test_the_optimizer_is_the_published_one(name, settings, kind, rates, expected):
    built = METHODS[name](BACKBONES.get(name, testing.toy_backbone)(), **SMALL.get(name, {}), **settings)
    built.configure_model()
    assert type(built.optimizer).__name__ == kind
    groups = built.optimizer.param_groups
    if rates is not None:
        assert [group["lr"] for group in groups] == rates
    for group in groups:
        assert {key: group[key] for key in expected} == expected


# What the source phase of a method depends on; the rest of its settings are the stream's.
SOURCE = {
    "dept": {
        "weight_decay", "stages", "prompt_length", "head_width", "teacher_momentum", "feature_weight", "prompt_weight",
        "source_spread_weight", "label_smoothing", "warmup_steps", "warmup_lr", "seed",
    },
    "eata": {"num_source"},
    "ecotta": {"partitions", "bottleneck", "warmup_steps", "warmup_lr", "seed"},
    "foa": {"num_source"},
    "petta": {"num_source"},
    "santa": {"num_source"},
    "vdp": {"grid", "frame_width", "warmup_steps", "warmup_lr", "seed"},
    "vida": {"low_rank", "high_rank", "warmup_steps", "warmup_lr", "seed"},
}  # fmt: skip
SOURCE_METHODS = [
    name for name, cls in METHODS.items() if cls.source_need is not SourceNeed.NOTHING and not name.startswith("dpcore")
]


@pytest.mark.parametrize("name", SOURCE_METHODS)
def test_a_source_state_depends_on_the_source_settings_and_on_nothing_else(name):
    def state(**changed):
        settings = {**FAST.get(name, {}), **BASE.get(name, {}), **changed}
        return testing.ready(lambda: METHODS[name](testing.toy_backbone(), **settings)).source_state()

    def same(a, b):
        return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)

    assert set(METHODS[name].source_settings) == SOURCE[name]
    before = state()
    assert before
    wrong = [key for key, value in OTHER[name].items() if same(before, state(**{key: value})) == (key in SOURCE[name])]
    assert not wrong
