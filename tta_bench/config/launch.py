"""How the runs of a bench are started: the launcher, the number of parallel runs, and the shard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field

from tta_bench.config.words import ConfigError

T = TypeVar("T")
Positive = Annotated[int, Field(ge=1)]
KEYS = ("launcher", "shard")
"""Keys of a bench, a table and a grid, in addition to those of a run."""


@dataclass(frozen=True)
class LocalLauncher:
    """Runs on this machine.

    Attributes:
        workers: Number of parallel runs, each in its own process if there are several.
    """

    workers: Positive = 1


@dataclass(frozen=True)
class RayLauncher:
    """Runs on a cluster, through Ray.

    Attributes:
        address: Of the cluster, such as ``10.0.0.1:6379``; None takes the environment variable ``RAY_ADDRESS``, else a
            cluster that runs on this machine, else a new local one.
        gpus: GPUs for each run; a fraction lets runs share one. None takes one where the cluster has GPUs.
        cpus: CPU cores for each run.
        max_concurrent: Maximum number of parallel runs; None takes as many as fit into the cluster.
    """

    address: str | None = None
    gpus: Annotated[float, Field(ge=0)] | None = None
    cpus: Annotated[float, Field(gt=0)] = 1.0
    max_concurrent: Positive | None = None


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a list.

    Attributes:
        number: Number of the part, starting at 1.
        count: Number of parts.
    """

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> Shard:
        """Read ``3/16``.

        Raises:
            ConfigError: If it is not a part of a whole.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= count:
            raise ConfigError(
                f"shard={text}: write the part and the number of parts, for example shard=3/16 (from 1/16 to 16/16)"
            )
        return cls(number, count)

    def of(self, items: Sequence[T]) -> list[T]:
        """This part of the items: every ``count``-th.

        Example:
            >>> Shard(2, 3).of("abcdefg")
            ['b', 'e']
        """
        return list(items[self.number - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class Launch:
    """How runs are started.

    Attributes:
        launcher: The launcher.
        shard: The part of the runs; None for all.
    """

    launcher: LocalLauncher | RayLauncher = LocalLauncher()
    shard: Shard | None = None


ONE_BY_ONE = Launch()
"""All runs, in this process."""
