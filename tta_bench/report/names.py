"""Names as papers print them, for figures and LaTeX tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tta_bench.report.groups import Entry, Group

METHODS = {
    "source": "Source",
    "bdg": "BDG",
    "bn_adapt": "BN-Adapt",
    "cmae": "Continual-MAE",
    "cmf": "CMF",
    "cotta": "CoTTA",
    "dept": "DePT",
    "deyo": "DeYO",
    "dpcore": "DPCore",
    "dpcore_b": "DPCore-B",
    "dpcore_discard15": "DPCore, 15 elements, oldest discarded",
    "dpcore_exp1": "DPCore Exp-1",
    "dpcore_exp2": "DPCore Exp-2",
    "dpcore_exp3": "DPCore Exp-3",
    "dpcore_guarded": "DPCore, guarded",
    "dpcore_merge15": "DPCore, 15 elements, closest merged",
    "dpcore_official": "DPCore, released code",
    "dpcore_simplified": "DPCore, simplified",
    "dpcore_source_free": "DPCore, source-free",
    "eata": "EATA",
    "ecotta": "EcoTTA",
    "eta": "ETA",
    "foa": "FOA",
    "lame": "LAME",
    "memo": "MEMO",
    "note_pbrs": "NOTE",
    "petta": "PeTTA",
    "pseudo_label": "Pseudo-Label",
    "pseudo_label_lame": "Pseudo-Label + LAME",
    "rdumb": "RDumb",
    "roid": "ROID",
    "rotta": "RoTTA",
    "rpl": "RPL",
    "santa": "SANTA",
    "sar": "SAR",
    "tent": "Tent",
    "vdp": "VDP",
    "vida": "ViDA",
}
SETTINGS = {
    "as_given": "the order of the images",
    "batch_size_1": "CSC with single images",
    "blurred": "CSC with blurred boundaries",
    "cdc": "CDC",
    "cdc_2d": "CDC-2D",
    "cdc_official": "CDC, released code",
    "csc": "CSC",
    "gradual": "gradual change",
    "mixed": "mixed domains",
    "ptta": "PTTA",
    "repeating": "repeated CSC",
}
DATASETS = {
    "acdc": "ACDC",
    "cifar100_c": "CIFAR-100-C",
    "cifar10_c": "CIFAR-10-C",
    "cityscapes": "Cityscapes",
    "corrupted": "own images, corrupted",
    "image_folder": "own images",
    "imagenet_c": "ImageNet-C",
    "manifest": "own stream",
    "packed": "packed images",
    "scenes_c": "Scenes-C",
    "scenes_c_validation": "Scenes-C, validation corruptions",
    "segmentation_folder": "own images",
    "shapes_c": "Shapes-C",
    "shapes_c_validation": "Shapes-C, validation corruptions",
    "streets_c": "Streets-C",
}
MODELS = {
    "local": "own weights",
    "scenes_vit": "ViT",
    "segformer": "SegFormer",
    "segformer_b5": "SegFormer-B5",
    "shapes_vit": "ViT",
    "streets_segformer": "SegFormer-B0",
    "timm": "a timm model",
    "vit_b16_raw": "ViT-B/16",
}


def entry_name(entry: Entry) -> str:
    """Name of an entry: its method, with the hyper-parameters in which it differs from others of the method."""
    return display(METHODS, entry.method) + (f" ({note})" if (note := entry.label[len(entry.method) :].strip()) else "")


def group_slugs(groups: Sequence[Group]) -> list[str]:
    """Data set, setting and model of each group as in file names and labels, with a number if several share them.

    Example:
        >>> some = [Group({"": ["imagenet_c", kind, "vit"]}, {}, (), "source") for kind in ("csc", "cdc", "cdc")]
        >>> group_slugs(some)
        ['imagenet_c-csc-vit', 'imagenet_c-cdc-vit-1', 'imagenet_c-cdc-vit-2']
    """
    plain = ["-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", str(part)) for part in group.protocol[""]) for group in groups]
    return [f"{name}-{plain[: k + 1].count(name)}" if plain.count(name) > 1 else name for k, name in enumerate(plain)]


def display(table: dict[str, str], name: str) -> str:
    """The name in a table; a user's own as it is, with spaces."""
    return table.get(name, name.replace("_", " "))
