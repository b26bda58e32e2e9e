"""Preprocessing profiles: what is done to images in [0, 1] before the network sees them.

The largest cause of numbers on ImageNet-C that cannot be reproduced: the same weights and files give a source error of
55.8 % or 49.8 %, depending on the normalisation alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Profile = Literal["timm", "paper", "native"]
PAPER_RESIZE = (256, 224)  # shorter side, then the side of the square cut out of the centre


@dataclass(frozen=True)
class Preprocess:
    """One way of preprocessing, as it is recorded in results.

    Args:
        profile: Its name; ``own`` if mean or std were set by hand.
        mean: What is subtracted from each channel.
        std: What each channel is divided by after that.
        resize: Length that the shorter side is brought to, and side of the square that is then cut out of the centre;
            None leaves the size to the network.
    """

    profile: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: tuple[int, int] | None = None

    def describe(self) -> dict[str, Any]:
        """Plain values for a result file."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def profile_of(
    profile: str,
    mean: Sequence[float],
    std: Sequence[float],
    input_size: int | None,
) -> Preprocess:
    """What a profile means for a checkpoint.

    Args:
        profile: ``timm``: normalised with the checkpoint's own mean and std. ``native``: values in [0, 1] as they are.
            ``paper``: what the released code of ViDA and DPCore does, which is ``native`` and, for a network of 224
            pixels, resizing to 256 and cutting out the centre of 224, although the images of ImageNet-C have that size
            already.
        mean: The checkpoint's own mean.
        std: The checkpoint's own standard deviation.
        input_size: Side in pixels of the images that the checkpoint was trained on; None if unknown.

    Raises:
        ValueError: If there is no such profile.
    """
    if profile not in get_args(Profile):
        raise ValueError(f"model.preprocess must be one of {', '.join(get_args(Profile))}; got {profile!r}")
    if profile == "timm":
        return Preprocess(profile, tuple(mean), tuple(std))
    resize = PAPER_RESIZE if profile == "paper" and input_size == PAPER_RESIZE[1] else None
    return Preprocess(profile, (0.0,) * len(mean), (1.0,) * len(std), resize)
