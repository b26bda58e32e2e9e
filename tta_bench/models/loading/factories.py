"""Networks that timm does not build: torchvision's, RobustBench's and your own.

A timm name runs only timm. ``package.module:function`` imports that module and calls the function: treat a yaml with
such an architecture like a program, and use it only if you trust its source.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from torch import nn

from tta_bench.suggestions import did_you_mean


def torchvision_card(name: str) -> dict[str, Any]:
    """Architecture and normalisation of a torchvision classifier, such as ``resnet50``.

    Raises:
        ValueError: If the classifier is unknown.
    """
    models: Any = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(f"torchvision has no classifier {name!r}{did_you_mean(name, (), more=known)}")
    transform: Any = models.get_model_weights(name).DEFAULT.transforms()
    card = {"architecture": f"torchvision.models:{name}", "kwargs": {"weights": None}}
    return {**card, "mean": transform.mean, "std": transform.std, "image_size": transform.crop_size[0]}


def robustbench_card(name: str) -> dict[str, Any]:
    """Model description of RobustBench's ``dataset/threat/model``.

    An example is ``cifar10/corruptions/Hendrycks2020AugMix_WRN``. The networks normalise images themselves, and
    RobustBench finds or downloads their weights itself.

    Raises:
        ValueError: If the package is missing, or the name does not have these parts.
    """
    dataset, _, rest = name.partition("/")
    threat, _, model = rest.partition("/")
    if not model:
        raise ValueError(
            f"robustbench/{name} should name data set, threat and model, as in robustbench/cifar10/Linf/Standard"
        )
    if find_spec("robustbench") is None:  # finds the package without importing it
        raise ValueError(f"robustbench/{name} needs the package robustbench: pip install robustbench")
    kwargs = {"model_name": model, "dataset": dataset, "threat_model": threat}
    return {"architecture": "robustbench.utils:load_model", "kwargs": kwargs}


def call_factory(architecture: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Call ``package.module:function`` with keyword arguments.

    Raises:
        ValueError: If the function does not exist, rejects the arguments or does not return a network.
    """
    module, _, function = architecture.partition(":")
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot import {architecture} ({error}): is its folder on PYTHONPATH?") from error
    try:
        network = factory(**kwargs)
    except TypeError as error:
        raise ValueError(f"{architecture} rejects its kwargs: {error}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{architecture} returned a {type(network).__name__}, not a torch.nn.Module")
    return network
