"""From a method's name to a method that is ready for its first batch."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from tta_bench.methods import METHODS, TTAMethod
from tta_bench.models.backbones.base import Backbone


def create_method(name: str, backbone: Backbone, **settings: Any) -> TTAMethod:
    """Build a method around a source model, on the device where the model is.

    Args:
        name: A name in ``tta_bench.methods.METHODS``.
        backbone: The source model; the method changes it in place.
        settings: The method's keyword arguments.

    Raises:
        ValueError: If there is no such method.

    Example:
        >>> import tta_bench as tta
        >>> method = tta.create_method("tent", tta.load_model("shapes_vit"), lr=1e-3)
    """
    if name not in METHODS:
        near = get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no method {name!r}{hint} known are: {', '.join(METHODS)}")
    method = METHODS[name](backbone, **settings)
    method.to(next(backbone.parameters()).device)
    method.configure_model()
    return method
