"""Orders of the released CDC generators and of CoTTA's ten-order experiment.

cdc_orders.json: runs [domain, batches] of 15 domains that DPCore's released ``create_cdc_sequence`` gave
after ``np.random.seed(numpy_legacy_seed)``. cotta_10_orders.json: the ten corruption orders of CoTTA's
ImageNet-C runs.
"""

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from tta_bench.streams import COTTA_10_ORDERS, STANDARD_ORDER, make_stream

HERE = Path(__file__).parent
ENTRIES = json.loads((HERE / "cdc_orders.json").read_text())


def name_of(entry):
    return "-".join(str(entry.get(k, "")) for k in ("kind", "delta", "batches_per_domain", "numpy_legacy_seed"))


def legacy_stream(entry, **more):
    # Two samples a batch, the last batch short: as many batches as the entry says, and quick to build.
    sizes = dict.fromkeys(STANDARD_ORDER, 2 * entry["batches_per_domain"] - 1)
    if entry["kind"] == "dirichlet":
        kind, params = "cdc", {"delta": entry["delta"], "slots": entry["num_slots"]}
    else:
        kind, params = "cdc_2d", {}
    seed = entry["numpy_legacy_seed"]
    return make_stream(kind, sizes=sizes, batch_size=2, seed=seed, rng="legacy", **params, **more)


def runs_of_batches(stream):
    position = {name: i for i, name in enumerate(STANDARD_ORDER)}
    domains = [position[stream.domains[step.domain_ids[0]]] for step in stream]
    return [[domain, len(list(group))] for domain, group in groupby(domains)]


def test_the_golden_file_has_all_30_orders():
    assert len(ENTRIES) == 30
    assert {entry["kind"] for entry in ENTRIES} == {"dirichlet", "cdc_2d_uniform"}


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_legacy_order_equals_the_released_generator(entry):
    np.random.seed(999)  # the global generator must not matter

    assert runs_of_batches(legacy_stream(entry)) == entry["runs"]


def test_legacy_samples_keep_their_natural_order():
    stream = legacy_stream(ENTRIES[0])

    for i in range(15):
        rows = stream.indices[stream.domain_ids == i]
        assert rows.tolist() == list(range(len(rows)))


def test_cotta_orders_equal_the_released_ones():
    assert [list(order) for order in COTTA_10_ORDERS] == json.loads((HERE / "cotta_10_orders.json").read_text())
