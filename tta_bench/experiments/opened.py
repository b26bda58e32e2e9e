"""Shared by runs: data sets and source models, which are opened once, and notices, which are printed once."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from omegaconf import DictConfig

from tta_bench.config.compose import build, plain
from tta_bench.datasets.base import DomainDataset
from tta_bench.experiments.source_model import source_model
from tta_bench.models.backbones.base import Backbone, PassMeter


@dataclass
class Opened:
    """The data sets and source models of earlier runs in this process.

    Attributes:
        said: Notices that these runs have printed.
    """

    said: set[str] = field(default_factory=set)
    _domains: dict[str, DomainDataset] = field(default_factory=dict)
    _models: dict[str, Backbone] = field(default_factory=dict)

    def keep(self, node: DictConfig, domains: DomainDataset) -> Opened:
        """Keep a data set that was opened from this configuration."""
        self._domains[str(plain(node))] = domains
        return self

    def domains(self, node: DictConfig) -> DomainDataset:
        """The data set that a configuration describes; every run sees the same images, rendered once.

        Raises:
            ValueError: If it cannot be opened.
        """
        key = str(plain(node))
        if key not in self._domains:
            self._domains[key] = build(node)
        return self._domains[key]

    def backbone(self, node: DictConfig, name: str, dataset: DictConfig) -> Backbone:
        """A copy of the source model, for a run to adapt.

        Args:
            node: The configuration of the model.
            name: Its name, for messages.
            dataset: The configuration of the data set.

        Raises:
            ConfigError: If the model does not fit the data.
            ValueError: If the model cannot be built.
        """
        key = str((plain(node), plain(dataset)))
        if key not in self._models:
            self._models[key] = source_model(node, name, self.domains(dataset))
        fresh = copy.deepcopy(self._models[key])
        # Otherwise copies share these two, which only those of one run should.
        fresh.meter, fresh.compilation = PassMeter(), fresh.compilation.renewed()
        return fresh
