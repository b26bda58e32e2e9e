"""Labels of class folders, from their names and never from the order in which the disk lists them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from pathlib import Path

from tta_bench.files import read_lines

IMAGENET = "imagenet"
IMAGENET_SUBSET = "imagenet_subset"


@lru_cache(maxsize=1)
def imagenet_classes() -> tuple[str, ...]:
    """The 1000 WordNet ids of ILSVRC-2012 in order; the index of an id is its label."""
    return tuple(resources.files("tta_bench.datasets.files").joinpath("imagenet_classes.txt").read_text().split())


def label_map(classes: str | None, found: Iterable[str] = ()) -> dict[str, int]:
    """The label of each class folder by its name.

    Args:
        classes: ``imagenet`` for the 1000 classes, whose folders are named by WordNet id, or by label as in
            ImageNet-V2; or the path of a text file with one class name per line, in label order; or None.
        found: Names of class folders; their sorted order gives the labels if ``classes`` is None.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is empty or names a class twice.

    Example:
        >>> label_map(None, ["dog", "cat"])
        {'cat': 0, 'dog': 1}
        >>> label_map("imagenet")["n01440764"], label_map("imagenet")["999"]
        (0, 999)
    """
    if classes == IMAGENET:
        wnids = imagenet_classes()
        return {wnid: i for i, wnid in enumerate(wnids)} | {str(i): i for i in range(len(wnids))}
    if classes is not None and not Path(classes).expanduser().exists():
        raise FileNotFoundError(
            f"there is no list at {classes}: dataset.classes must be {IMAGENET}, with dataset=image_folder also "
            f"{IMAGENET_SUBSET}, or the path of a list"
        )
    names = sorted(set(found)) if classes is None else read_list(classes, "dataset.classes")
    return {name: i for i, name in enumerate(names)}


def read_list(path: str | Path, key: str) -> list[str]:
    """Read the non-blank lines of a text file; ``key`` is the configuration key that names the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is empty, is not text, or contains a line twice.
    """
    path = Path(path).expanduser()
    names = read_lines(path, f"list for {key}")
    if not names:
        raise ValueError(f"{path} is empty: {key} takes a list with one name per line")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{path} names {name} twice")
        seen.add(name)
    return names
