"""Networks that timm does not build: torchvision's, RobustBench's and one's own.

A timm name runs nothing but timm. ``package.module:function`` imports that module and calls the function: take a yaml
with such an architecture only from where you would take a program.
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
        ValueError: If there is no such classifier.
    """
    models: Any = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(f"torchvision has no classifier {name!r}{did_you_mean(name, (), more=known)}")
    transform: Any = models.get_model_weights(name).DEFAULT.transforms()
    card = {"architecture": f"torchvision.models:{name}", "kwargs": {"weights": None}}
    return {**card, "mean": transform.mean, "std": transform.std, "image_size": transform.crop_size[0]}


def robustbench_card(name: str) -> dict[str, Any]:
    """How RobustBench loads ``dataset/threat/model``, such as ``cifar10/corruptions/Hendrycks2020AugMix_WRN``.

    Its networks normalise images themselves, and it finds, or downloads, their weights itself.

    Raises:
        ValueError: If the package is missing, or the name has other parts.
    """
    dataset, _, rest = name.partition("/")
    threat, _, model = rest.partition("/")
    if not model:
        raise ValueError(
            f"robustbench/{name} should name data set, threat and model: robustbench/cifar10/Linf/Standard"
        )
    if find_spec("robustbench") is None:  # finds the package without importing it
        raise ValueError(f"robustbench/{name} needs the package robustbench: pip install robustbench")
    kwargs = {"model_name": model, "dataset": dataset, "threat_model": threat}
    return {"architecture": "robustbench.utils:load_model", "kwargs": kwargs}


def call_factory(architecture: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Call ``package.module:function`` with keyword arguments.

    Raises:
        ValueError: If there is no such function, it refuses the arguments or it makes no network.
    """
    module, _, function = architecture.partition(":")
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot import {architecture} ({error}): is its folder on PYTHONPATH?") from error
    try:
        network = factory(**kwargs)
    except TypeError as error:
        raise ValueError(f"{architecture} refuses its kwargs: {error}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{architecture} made a {type(network).__name__}, not a torch.nn.Module")
    return network
