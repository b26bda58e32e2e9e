"""Appearance of the entries of groups in all figures: the baseline and the best have colours of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tta_bench.report.groups import Entry, Group
from tta_bench.report.measures import best_first

MOST = 6
"""Number of entries, besides the baseline, with their own colour; the others are grey."""


@dataclass(frozen=True)
class Look:
    """Appearance of an entry.

    Attributes:
        id: Its id in the page.
        colour: Class of its colour: ``c0`` to ``c5``, ``base`` or ``other``.
    """

    id: str
    colour: str

    @property
    def stands_out(self) -> bool:
        """Whether it has its own colour."""
        return self.colour != "other"


def looks_of(groups: Sequence[Group]) -> dict[Entry, Look]:
    """Choose colours for the baseline and the best entries of each group, if possible the same in all groups."""
    slots: dict[str, int] = {}
    found = {}
    for number, group in enumerate(groups, start=1):
        chosen = [entry for entry in best_first(group) if entry is not group.baseline_entry][:MOST]
        free = [slot for slot in range(MOST) if slot not in {slots.get(entry.label) for entry in chosen}]
        taken: dict[int, Entry] = {}
        for entry in chosen:
            slot = slots.get(entry.label, -1)
            if slot in taken or slot < 0:
                slot = free.pop(0)
            taken[slots.setdefault(entry.label, slot)] = entry
            taken[slot] = entry
        colours = {entry: f"c{slot}" for slot, entry in taken.items()}
        for k, entry in enumerate(group.entries):
            colour = "base" if entry is group.baseline_entry else colours.get(entry, "other")
            found[entry] = Look(f"g{number}e{k}", colour)
    return found
