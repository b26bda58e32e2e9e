"""A user's folder of configurations and tuned values, with the layout of ``configs/`` and searched before it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from tta_bench.config import FOLDER_VARIABLE
from tta_bench.config.words import ConfigError, Override, value_of


def user_folder(words: Sequence[Override]) -> Path | None:
    """Return the folder of ``config_dir=...``, or else of the environment variable ``TTA_BENCH_CONFIG_DIR``.

    Raises:
        ConfigError: If the folder does not exist.
    """
    given = value_of(words, "config_dir") or os.environ.get(FOLDER_VARIABLE)
    if not given:
        return None
    folder = Path(str(given)).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}, as set by config_dir (or {FOLDER_VARIABLE}): create it, or unset this"
        )
    return folder


class _OwnFolder(SearchPathPlugin):
    """Lets Hydra search the user's folder first."""

    folder: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.folder is not None:
            search_path.prepend("config_dir", f"file://{self.folder}")


@cache
def _register() -> None:
    Plugins.instance().register(_OwnFolder)


@contextmanager
def search_first(folder: Path | None) -> Iterator[None]:
    """Let Hydra search a folder before all others."""
    _register()
    _OwnFolder.folder = folder
    try:
        with warnings.catch_warnings():  # a file named like one of our classes overrides its values, as intended
            warnings.filterwarnings(
                "ignore", message="(?s).*is validated against ConfigStore schema", category=UserWarning
            )
            yield
    finally:
        _OwnFolder.folder = None
