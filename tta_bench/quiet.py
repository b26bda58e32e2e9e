"""Suppresses messages on the terminal that users cannot act on."""

from __future__ import annotations

import logging
import warnings

# Warnings that users cannot act on: the order of a stream needs one worker process, and Lightning uses a name that
# torch has deprecated.
UNHELPFUL = (".*does not have many workers", "`isinstance.treespec, LeafSpec.` is deprecated")


def quiet_lightning() -> None:
    """Suppress Lightning's tips, and warnings that users cannot act on."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in UNHELPFUL:
        warnings.filterwarnings("ignore", message=message)
