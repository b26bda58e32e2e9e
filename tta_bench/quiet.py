"""Keep what a user can do nothing about off the terminal."""

from __future__ import annotations

import logging
import warnings

# Warnings that a user of a run can do nothing about: the order of a stream needs one loader process, and Lightning
# calls a name that torch has deprecated.
UNHELPFUL = (".*does not have many workers", "`isinstance.treespec, LeafSpec.` is deprecated")


def quiet_lightning() -> None:
    """Keep tips, and warnings that a user can do nothing about, off the terminal."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in UNHELPFUL:
        warnings.filterwarnings("ignore", message=message)
