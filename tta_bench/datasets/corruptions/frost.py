"""Ice textures for the frost corruption: read from a folder, or generated.

The benchmark's own photographs (frost1.png ... frost6.jpg of hendrycks/robustness) are not distributed here.
With a folder that holds them, frost is the published corruption; without one, synthetic textures of the same
brightness, tint and contrast replace them.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tta_bench.datasets.corruptions._common import Image
from tta_bench.datasets.files.decode import read_rgb
from tta_bench.files import existing

_SIDE = 512
_CRYSTAL_DIRECTIONS = 8
# Mean colour and deviation of the brightness, in grey levels, near those of the five photographs in use.
_LOOKS = (
    ((78, 149, 166), 18),
    ((201, 205, 214), 22),
    ((198, 204, 212), 24),
    ((138, 153, 165), 28),
    ((112, 123, 135), 44),
)
_SUFFIXES = (".png", ".jpg", ".jpeg")
PUBLISHED = "c146cff9eab2"  # digest of the five photographs


def load_frost_textures(frost_folder: str | Path | None = None) -> tuple[Image, ...]:
    """Return the RGB textures of a folder in the order of their names, or the generated ones.

    A file called frost6 is left out: the published scripts list it, but never draw it.

    Args:
        frost_folder: Folder with PNG or JPEG files; None for the generated textures.

    Raises:
        ValueError: If the folder contains no textures.
    """
    if frost_folder is None:
        return generate_frost_textures()
    return tuple(np.array(read_rgb(path)) for path in _files(frost_folder))


def name_frost_textures(frost_folder: str | Path | None = None) -> str:
    """Return how results name the textures: ``generated``, ``published``, or the user's own with a digest.

    Args:
        frost_folder: As for ``load_frost_textures``.

    Raises:
        ValueError: If the folder contains no textures.
    """
    if frost_folder is None:
        return "generated"
    files = _files(frost_folder)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    return "published" if digest == PUBLISHED else f"own ({len(files)} files, {digest})"


def _files(frost_folder: str | Path) -> list[Path]:
    folder = existing("dataset.frost_folder", frost_folder, "folder")
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in _SUFFIXES)
    files = [path for path in files if path.stem != "frost6" and not path.name.startswith(".")]
    if not files:
        raise ValueError(f"dataset.frost_folder={frost_folder} holds no PNG or JPEG textures")
    return files


@lru_cache(maxsize=1)
def generate_frost_textures() -> tuple[Image, ...]:
    """Return five synthetic textures (512, 512, 3), the same on every call, read-only."""
    return tuple(_texture(seed, tint, deviation) for seed, (tint, deviation) in enumerate(_LOOKS))


def _texture(seed: int, tint: tuple[int, int, int], deviation: float) -> Image:
    """Grow crystals: patches of streaks, each patch in a direction of its own, over soft clouds."""
    rng = np.random.RandomState(seed)  # its numbers never change between NumPy versions, unlike a Generator's
    angles = np.pi * (np.arange(_CRYSTAL_DIRECTIONS) + rng.uniform()) / _CRYSTAL_DIRECTIONS
    streaks = np.stack([_field(rng, angle, 0.5, 12.0) for angle in angles])
    claims = np.stack([_field(rng, angle, 6.0, 18.0) for angle in angles])
    owner = claims.argmax(axis=0)[None]
    crystals = np.take_along_axis(streaks, owner, 0)[0] + 0.5 * np.take_along_axis(claims, owner, 0)[0]
    relief = crystals + 0.7 * _field(rng, 0.0, 40.0, 40.0)
    relief = (relief - relief.mean()) / relief.std()
    texture: Image = np.clip(np.array(tint) + deviation * relief[..., None], 0, 255).astype(np.uint8)
    texture.flags.writeable = False
    return texture


def _field(rng: np.random.RandomState, angle: float, across: float, along: float) -> npt.NDArray[np.float64]:
    """White noise blurred by a gaussian of ``along`` pixels along ``angle`` and ``across`` pixels across it.

    The field wraps around at its borders and has unit variance.
    """
    v, u = np.meshgrid(np.fft.fftfreq(_SIDE), np.fft.rfftfreq(_SIDE), indexing="ij")
    forward, sideways = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
    response = np.exp(-2 * np.pi**2 * ((along * forward) ** 2 + (across * sideways) ** 2))
    spectrum = np.fft.rfft2(rng.standard_normal((_SIDE, _SIDE))) * response
    spectrum[0, 0] = 0
    field = np.fft.irfft2(spectrum, s=(_SIDE, _SIDE))
    field /= field.std()
    return field
