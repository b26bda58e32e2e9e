"""The hyper-parameters of every method, as published; a changed default would change numbers without a word."""

from __future__ import annotations

import inspect

import pytest

from tta_bench import methods
from tta_bench.methods.base import TTAMethod

SGD = {"optimizer": "sgd", "momentum": 0.9}
DEFAULTS = {
    "BDG": {
        "lr": 1e-4, "optimizer": "sgd", "teacher_momentum": 0.999, "threshold_momentum": 0.999, "quantile": 0.8,
        "diversity_momentum": 0.9, "alignment": 0.001, "views": "cotta",
    },
    "BNAdapt": {"prior": 0.0},
    "CMAE": {
        "lr": 1e-6, "lr_reconstruction": 1e-4, "mask_ratio": 0.5, "reconstruction_weight": 0.5,
        "consistency": "symmetric", "restore_probability": 0.001, "num_views": 10, "views": "cotta",
    },
    "CMF": {
        **SGD, "lr": 2.5e-4, "source_momentum": 0.99, "hidden_momentum": 0.99, "process_noise": 0.005,
        "temperature": 1 / 3, "probability_momentum": 0.9, "prior_correction": "logits", "views": "roid",
    },
    "CoTTA": {
        **SGD, "lr": 1e-4, "nesterov": True, "loss": "symmetric", "teacher_momentum": 0.999,
        "restore_probability": 0.001, "threshold": 0.1, "num_views": None, "views": "cotta",
    },
    "DPCore": {
        "prompt_length": 8, "lr": 0.01, "rho": 0.8, "tau": 3.0, "alpha": 0.999, "steps_new": 50,
        "prompt_space": "tokens", "max_size": None, "overflow": "merge", "floor_guard": 0.0, "coreset_stats": "raw",
        "prompt_init": "gaussian", "source_filter": "none", "num_source": 300,
    },
    "DPCoreB": {
        "buffer_size": 64, "prompt_length": 8, "lr": 0.01, "rho": 0.8, "tau": 3.0, "alpha": 0.999, "steps_new": 50,
        "num_source": 300,
    },
    "DPCoreSimplified": {"theta": 5.0, "prompt_length": 8, "lr": 0.01, "steps_new": 50, "num_source": 300},
    "DePT": {
        "lr": 0.001, "weight_decay": 1e-4, "clip": 1.0, "stages": 4, "prompt_length": 10, "head_width": 2048,
        "teacher_momentum": 0.99, "neighbors": 10, "memory_size": 16384, "feature_weight": 0.1, "prompt_weight": 0.1,
        "diversity_weight": 1.0, "spread_weight": 0.05, "source_spread_weight": 0.005, "label_smoothing": 0.1,
        "warmup_steps": 5000, "warmup_lr": 0.005,
    },
    "DeYO": {**SGD, "lr": 0.001, "entropy_margin": 0.5, "weight_margin": 0.4, "plpd_threshold": 0.2, "grid": 4},
    "EATA": {
        **SGD, "lr": 0.001, "entropy_margin": 0.4, "cosine_margin": 0.05, "fisher_weight": 2000.0, "num_source": 2000,
    },
    "ETA": {**SGD, "lr": 0.001, "entropy_margin": 0.4, "cosine_margin": 0.05},
    "EcoTTA": {
        "lr": 0.001, "regularization": 0.5, "entropy_margin": 0.4, "mode": "two_phase", "partitions": 4,
        "bottleneck": 64, "warmup_steps": 5000, "warmup_lr": 0.001,
    },
    "FOA": {
        "prompt_length": 3, "population": 27, "fitness_weight": 0.4, "step_size": 1.0, "shift_momentum": 0.9,
        "num_source": 300,
    },
    "LAME": {"affinity": "knn", "neighbors": 5, "symmetric": True},
    "MEMO": {"lr": 1e-5, "optimizer": "adamw", "weight_decay": 0.01, "num_views": 64},
    "NOTEPBRS": {"lr": 1e-4, "memory_size": 64, "update_every": 64},
    "PeTTA": {
        "lr": 0.001, "memory_size": 64, "loss": "cross_entropy", "alpha0": 0.001, "lambda0": 1.0, "anchor_weight": 1.0,
        "prototype_share": 0.05, "age_weight": 1.0, "entropy_weight": 1.0, "robust_alpha": 0.05, "num_source": 100_000,
        "views": "cotta",
    },
    "PseudoLabel": {**SGD, "lr": 1e-4, "nesterov": True, "threshold": 0.0, "part": "all"},
    "PseudoLabelLAME": {"lr": 0.001, "momentum": 0.0, "threshold": 0.9},
    "RDumb": {**SGD, "lr": 2.5e-4, "entropy_margin": 0.4, "cosine_margin": 0.05, "reset_every": 1000},
    "ROID": {
        **SGD, "lr": 2.5e-4, "source_momentum": 0.99, "temperature": 1 / 3, "probability_momentum": 0.9,
        "prior_correction": "logits", "views": "roid",
    },
    "RPL": {**SGD, "lr": 5e-4, "nesterov": True, "q": 0.8},
    "RoTTA": {
        "lr": 0.001, "memory_size": 64, "update_every": 64, "teacher_momentum": 0.999, "age_weight": 1.0,
        "entropy_weight": 1.0, "alpha": 0.05, "views": "cotta",
    },
    "SANTA": {
        **SGD, "lr": 0.01, "nesterov": True, "anchor_weight": 1.0, "contrast_weight": 1.0, "temperature": 0.1,
        "projection_dim": 128, "num_source": 100_000, "views": "cotta",
    },
    "SAR": {
        **SGD, "lr": 0.001, "rho": 0.05, "entropy_margin": 0.4, "reset_threshold": 0.2,
        "average_after_recovery": "cleared", "none_reliable": "skip",
    },
    "Source": {},
    "Tent": {**SGD, "lr": 1e-4, "nesterov": True, "steps": 1, "loss": "entropy"},
    "VDP": {
        "lr_specific": 0.001, "lr_agnostic": 1e-4, "grid": 28, "frame_width": 3, "teacher_momentum": 0.999,
        "penalty": 1.0, "damping": 0.001, "jump": 0.1, "warmup_steps": 1000, "warmup_lr": 0.001,
    },
    "ViDA": {
        "lr": 5e-7, "adapter_lr": 2e-7, "optimizer": "sgd", "loss": "symmetric", "low_rank": 1, "high_rank": 128,
        "num_views": 10, "views": "cotta", "threshold": 0.2, "scales": "paper", "teacher_momentum": 0.999,
        "adapter_momentum": 0.8, "restore_probability": 0.0, "warmup_steps": 2000, "warmup_lr": 1e-4,
    },
}  # fmt: skip
METHODS = {
    name: value
    for name in methods.__all__
    if inspect.isclass(value := getattr(methods, name)) and issubclass(value, TTAMethod) and value is not TTAMethod
}


def test_every_method_is_in_the_table():
    assert METHODS.keys() == DEFAULTS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_are_those_of_the_table(name):
    parameters = inspect.signature(METHODS[name]).parameters
    assert parameters["seed"].default == 0
    own = {key: parameter.default for key, parameter in parameters.items() if key not in ("backbone", "seed")}
    assert own == DEFAULTS.get(name)
