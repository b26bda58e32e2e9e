"""Streams: examples by hand, limits, files, pictures and messages."""

import copy
import json
import pickle
import subprocess
import sys
from itertools import groupby

import numpy as np
import pytest
from rich.text import Text

from tta_bench.streams import (
    COTTA_10_ORDERS,
    KINDS,
    NAMED_ORDERS,
    STANDARD_ORDER,
    Arrivals,
    Schedule,
    make_stream,
    plot_timeline,
    repeated,
    rng_for,
    timeline_text,
)
from tta_bench.streams.draws import draw_runs
from tta_bench.streams.orders import fixed_probabilities
from tta_bench.streams.timeline import MAX_COLUMNS, PALETTE, class_shares, lane_picture, share_picture

SIZES = {"fog": 10, "snow": 5, "frost": 7}
LABELS = {"fog": [0, 1, 2, 0, 1, 2, 0, 1, 2, 0], "snow": [1, 1, 0, 0, 2], "frost": [2, 2, 1, 1, 0, 0, 0]}


def small(kind="cdc", **more):
    return make_stream(kind, **{"sizes": SIZES, "labels": LABELS, "batch_size": 2, **more})


def demo():
    return Schedule("demo", {"seed": 0}, ("fog", "snow"), [0, 0, 0, 1, 0], [2, 0, 1, 0, 3], [0, 2, 3, 4, 5])


def segment_names(stream):
    return [segment.domain for segment in stream.segments()]


def label_runs(stream, labels):
    """Number of runs of one class in a stream of one domain."""
    return len(list(groupby(np.asarray(labels)[stream.indices].tolist())))


# --- the schedule as a value


def test_a_step_is_the_window_between_its_offsets():
    step = demo()[0]

    assert step.domain_ids.tolist() == [0, 0]
    assert step.indices.tolist() == [2, 0]
    assert demo()[np.int64(-1)].indices.tolist() == [3]


@pytest.mark.parametrize("step", [4, -5])
def test_a_step_outside_the_stream_is_refused(step):
    with pytest.raises(IndexError, match=f"step {step} is outside a stream of 4 steps"):
        demo()[step]


def test_segments_are_the_runs_of_a_domain():
    assert demo().segments() == [("fog", 0, 3), ("snow", 3, 4), ("fog", 4, 5)]


def test_describe_counts_samples_visits_and_first_step():
    assert demo().describe().splitlines() == [
        "demo: 4 steps, 5 samples, 3 segments",
        f"fingerprint {demo().fingerprint()}",
        "seed=0",
        "domain  samples  visits  first step",
        "fog           4       2           0",
        "snow          1       1           2",
    ]


def test_the_first_step_is_the_batch_in_which_a_domain_arrives():
    stream = Schedule("demo", {}, ("fog", "snow"), [0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [0, 2, 4, 5])

    assert stream.describe().splitlines()[-1].split() == ["snow", "2", "1", "1"]


def test_identity_is_names_and_arrays_not_kind_and_params():
    renamed = Schedule(
        "other", {"seed": 9}, *(getattr(demo(), k) for k in ("domains", "domain_ids", "indices", "offsets"))
    )

    assert renamed == demo()
    assert len({renamed, demo()}) == 1
    assert demo() != "demo"


@pytest.mark.parametrize(
    "changed",
    [
        {"domains": ("fog", "frost")},
        {"domain_ids": [0, 0, 1, 1, 0]},
        {"indices": [0, 2, 1, 0, 3]},
        {"offsets": [0, 1, 3, 4, 5]},
    ],
)
def test_identity_changes_with_every_part(changed):
    fields = {k: getattr(demo(), k) for k in ("kind", "params", "domains", "domain_ids", "indices", "offsets")}

    assert Schedule(**{**fields, **changed}) != demo()


def test_arrays_are_read_only_copies_of_fixed_width():
    mine = np.array([2, 0, 1, 0, 3], dtype=np.int32)
    stream = Schedule("demo", {}, ("fog", "snow"), [0, 0, 0, 1, 0], mine, [0, 2, 3, 4, 5])
    mine[0] = 7

    assert stream.indices[0] == 2
    assert (stream.domain_ids.dtype, stream.indices.dtype, stream.offsets.dtype) == (
        np.int16,
        np.int32,
        np.int64,
    )
    for array in (stream.domain_ids, stream.indices, stream.offsets, stream[0].indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_copies_and_pickles_are_equal():
    assert copy.deepcopy(demo()) == demo()
    assert pickle.loads(pickle.dumps(demo())) == demo()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"domains": ("fog", "fog")}, "a domain name occurs twice"),
        ({"domains": ("fog", "snow", "frost")}, "exactly the domain ids that occur"),
        ({"domains": ("fog",)}, "exactly the domain ids that occur"),
        ({"domain_ids": [1, 0, 0, 1, 0]}, "in order of first arrival"),
        ({"domain_ids": [0, 0, 0, -1, 0]}, "exactly the domain ids that occur"),
        ({"domain_ids": [0, 1]}, "of equal length"),
        ({"domain_ids": [], "indices": [], "offsets": [0]}, "not empty"),
        ({"indices": [2, 0, 1, 0, -1]}, "row number"),
        ({"indices": [2, 0, 1, 0, 2**31]}, "row number"),
        ({"offsets": [0, 2, 2, 4, 5]}, "at least one sample"),
        ({"offsets": [0, 2, 4]}, "start at 0 and end at the number of samples"),
        ({"offsets": [1, 5]}, "start at 0 and end at the number of samples"),
    ],
)
def test_contradictory_arrays_are_refused(changed, message):
    fields = {k: getattr(demo(), k) for k in ("kind", "params", "domains", "domain_ids", "indices", "offsets")}

    with pytest.raises(ValueError, match=message):
        Schedule(**{**fields, **changed})


def test_a_parameter_that_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="cannot be stored in JSON"):
        Schedule("demo", {"delta": object()}, ("fog",), [0], [0], [0, 1])


# --- golden fingerprints: a change here changes every published stream


def test_fingerprint_of_a_small_cdc_stream_is_golden():
    assert small("cdc").fingerprint() == "b11ce708914af1ea493bdc5654756b95bcc1d8908b596d47ffe15810754a562f"


def test_fingerprint_of_a_small_ptta_stream_is_golden():
    assert small("ptta").fingerprint() == "81faa864e9a6198d884b8ced2815f1cefac03ee8d6949c8021d23be397b8bd9f"


def test_scoped_generators_differ_by_seed_purpose_and_name():
    scopes = [(0, "a", "b"), (0, "a", "c"), (0, "b", "a"), (0, "ab"), (1, "a", "b"), (0, "a"), (2**64, "a")]

    assert len({rng_for(*scope).random() for scope in scopes}) == len(scopes)


# --- files


def test_a_file_keeps_the_schedule(tmp_path):
    small("gradual").save(tmp_path / "stream.json")
    loaded = Schedule.load(tmp_path / "stream.json")

    assert loaded == small("gradual")
    assert loaded.params == {"batch_size": 2, "seed": 0, "severities": [1, 2, 3, 4, 5, 4, 3, 2, 1]}


def test_a_file_shows_its_head_line_by_line(tmp_path):
    demo().save(tmp_path / "stream.json")

    lines = (tmp_path / "stream.json").read_text().splitlines()
    assert lines[1:4] == ['"schema":"tta_bench.stream/1",', '"kind":"demo",', '"params":{"seed":0},']
    assert lines[6:8] == ['"domain_runs":[[0,3],[1,1],[0,1]],', '"batch_runs":[[2,1],[1,3]],']


def test_a_stream_of_75000_samples_is_a_file_below_half_a_megabyte(tmp_path):
    make_stream("cdc", sizes=dict.fromkeys(STANDARD_ORDER, 5000)).save(tmp_path / "stream.json")

    assert (tmp_path / "stream.json").stat().st_size < 500_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("indices", [0, 2, 1, 0, 3]),
        ("domains", ["fog", "rain"]),
        ("batch_runs", [[1, 1], [2, 1], [1, 2]]),
        ("domain_runs", [[0, 2], [1, 1], [0, 2]]),
        ("fingerprint", "0" * 64),
        ("fingerprint", None),
        ("indices", None),
        ("indices", ["a"] * 5),
        ("domain_runs", [[0, 3, 1]]),
        ("domain_runs", [[0, -3]]),
        ("domain_runs", [[0, 2**40]]),
        ("batch_runs", [[1, 2**40]]),
        ("batch_runs", "x"),
        ("domains", 5),
        ("params", 5),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, key, value):
    path = tmp_path / "stream.json"
    demo().save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: value}))

    with pytest.raises(ValueError, match=r"stream\.json is a damaged stream file: [^\n]*$"):
        Schedule.load(path)


def test_a_file_without_a_key_is_refused(tmp_path):
    path = tmp_path / "stream.json"
    demo().save(path)
    content = json.loads(path.read_text())
    del content["indices"]
    path.write_text(json.dumps(content))

    with pytest.raises(ValueError, match="damaged stream file: KeyError"):
        Schedule.load(path)


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", '{"schema": "other"}', '{"schema":"tta_bench.stream/1","ki', "\xff\xfe"]
)
def test_a_foreign_file_is_refused(tmp_path, text):
    path = tmp_path / "stream.json"
    path.write_text(text, encoding="latin-1")

    with pytest.raises(ValueError, match=r"stream\.json is not a stream file"):
        Schedule.load(path)


# --- the settings


def test_csc_shows_each_domain_once_in_the_given_order():
    stream = small("csc")

    assert segment_names(stream) == ["fog", "snow", "frost"]
    assert np.diff(stream.offsets).tolist() == [2] * 5 + [2, 2, 1] + [2, 2, 2, 1]


def test_equal_domains_get_different_orders():
    stream = make_stream("csc", sizes={"fog": 50, "snow": 50}, batch_size=50)

    assert stream[0].indices.tolist() != stream[1].indices.tolist()


def test_a_small_delta_gives_whole_domains_and_a_large_one_as_many_visits_as_slots():
    sizes = dict.fromkeys("abcdefgh", 300)

    assert len(make_stream("cdc", sizes=sizes, batch_size=1, delta=1e-300).segments()) == 8
    segments = make_stream("cdc", sizes=sizes, batch_size=1, delta=1e12, slots=4).segments()
    assert len(segments) in range(29, 33)  # fewer where a domain ends one slot and begins the next


def test_a_large_delta_cuts_a_domain_into_equal_chunks():
    stream = make_stream("cdc", sizes={"fog": 300, "snow": 300}, batch_size=1, delta=1e12, seed=1)

    edges = {edge for s in stream.segments() for edge in (s.start, s.stop)}
    assert all(min(edge % 100, -edge % 100) <= 3 for edge in edges)  # 100 each, cut down to whole batches


def test_scoped_cdc_does_not_depend_on_the_order_of_domains():
    assert small("cdc", order=["frost", "fog", "snow"]) == small("cdc")
    assert small("cdc", order=["frost", "fog", "snow"], rng="legacy") != small("cdc", rng="legacy")


def test_cdc_2d_chooses_domains_by_their_probabilities():
    first = [
        small("cdc_2d", seed=seed, probabilities={"snow": 3.0, "fog": 1.5, "frost": 1.5}).domains[0]
        for seed in range(1000)
    ]

    assert first.count("snow") / 1000 == pytest.approx(0.5, abs=0.06)  # four standard deviations
    assert first.count("fog") / 1000 == pytest.approx(0.25, abs=0.06)


def test_cdc_2d_takes_one_to_all_batches_left_with_equal_chance():
    counts = [draw_runs("scoped", {"fog": 4}, "uniform", seed)[0][1] for seed in range(2000)]

    shares = np.bincount(counts, minlength=5) / 2000
    assert shares == pytest.approx([0, 0.25, 0.25, 0.25, 0.25], abs=0.04)  # four standard deviations


def test_probabilities_may_be_a_list_a_mapping_or_unnormalised():
    by_name = small("cdc_2d", probabilities={"frost": 4, "snow": 2, "fog": 1})

    assert small("cdc_2d", probabilities=[1, 2, 4]) == by_name
    assert small("cdc_2d", probabilities=np.array([0.25, 0.5, 1.0])) == by_name


def test_probabilities_may_be_as_large_as_numbers_get():
    assert small("cdc_2d", probabilities=[1.5e308] * 3) == small("cdc_2d", probabilities=[1.0] * 3)


def test_the_ten_fixed_vectors_are_positive_different_and_open_ended():
    vectors = [fixed_probabilities(f"R{k}", 15) for k in range(1, 11)]

    assert all(0 < p <= 1 for vector in vectors for p in vector)
    assert len({tuple(vector) for vector in vectors}) == 10
    assert [fixed_probabilities(f"R{k}", 4) for k in range(1, 11)] == [vector[:4] for vector in vectors]


def test_the_fixed_vectors_are_used():
    sizes = dict.fromkeys(STANDARD_ORDER, 20)
    streams = [make_stream("cdc_2d", sizes=sizes, batch_size=1, probabilities=p) for p in ("uniform", "R1", "R10")]

    assert len(set(streams)) == 3


def test_ptta_towards_zero_shows_each_class_in_one_run():
    labels = np.arange(400) % 8
    stream = make_stream("ptta", labels={"fog": labels}, concentration=1e-300, slots=20)

    assert label_runs(stream, labels) == 8


def test_ptta_towards_infinity_balances_the_classes_in_every_slot():
    labels = np.repeat(np.arange(4), 50)
    stream = make_stream("ptta", labels={"fog": labels}, concentration=1e12, slots=5)

    for slot in range(5):
        counts = np.bincount(labels[stream.indices[slot * 40 : (slot + 1) * 40]], minlength=4)
        assert np.abs(counts - 10).max() <= 4  # cuts are rounded down, each class by one sample at most


def test_ptta_with_small_chunks_is_nearly_iid():
    labels = np.arange(1000) % 10
    stream = make_stream("ptta", labels={"fog": labels}, concentration=1e12, slots=100)

    assert label_runs(stream, labels) > 850  # 900 are expected of a random order, 10 of a sorted one


def test_the_seed_and_the_domain_decide_the_order_of_labels_in_ptta():
    labels = {name: np.arange(200) % 10 for name in ("fog", "snow")}
    streams = [make_stream("ptta", labels=labels, seed=seed) for seed in (0, 1)]
    in_order = [tuple(part) for s in streams for part in (s.indices.reshape(2, -1) % 10).tolist()]

    assert len(set(in_order)) == 4


def test_ptta_keeps_a_class_together_inside_a_slot():
    labels = np.arange(60) % 3
    stream = make_stream("ptta", labels={"fog": labels}, concentration=1.0, slots=4)

    assert label_runs(stream, labels) <= 3 * 4


@pytest.mark.parametrize(("classes", "slots"), [(7, 7), (150, 100)])
def test_ptta_has_as_many_slots_as_classes_but_at_most_100(classes, slots):
    labels = {"fog": np.arange(600) % classes}

    assert make_stream("ptta", labels=labels) == make_stream("ptta", labels=labels, slots=slots)
    assert make_stream("ptta", labels=labels) != make_stream("ptta", labels=labels, slots=slots + 1)


def test_ptta_batches_may_straddle_a_boundary():
    stream = small("ptta", batch_size=4)

    assert segment_names(stream) == ["fog", "snow", "frost"]
    assert np.diff(stream.offsets).tolist() == [4, 4, 4, 4, 4, 2]
    assert stream[2].domain_ids.tolist() == [0, 0, 1, 1]


def test_ptta_does_not_depend_on_the_names_of_classes():
    labels = np.arange(60) % 3

    assert make_stream("ptta", labels={"a": labels * 1000 - 5}) == make_stream("ptta", labels={"a": labels})


def test_gradual_climbs_and_falls():
    stream = make_stream("gradual", sizes={"fog": 18, "snow": 4}, batch_size=64)

    ramp = [f"fog/{k}" for k in (1, 2, 3, 4, 5, 4, 3, 2, 1)]
    assert segment_names(stream) == [*ramp, "snow/1", "snow/2", "snow/3", "snow/4"]
    assert np.diff(stream.offsets).tolist() == [2] * 9 + [1] * 4


def test_the_share_of_the_next_domain_rises_linearly_across_a_blurred_boundary():
    stream = make_stream("blurred", sizes={"fog": 40_000, "snow": 40_000}, batch_size=100, width=200)

    window = stream.domain_ids[20_000:60_000].reshape(8, -1)
    assert stream.domain_ids[:20_000].max() == 0
    assert stream.domain_ids[60_000:].min() == 1
    assert window.mean(axis=1) == pytest.approx((np.arange(8) + 0.5) / 8, abs=0.02)


def test_blurring_with_width_zero_is_csc():
    assert small("blurred", width=0) == small("csc")
    assert small("blurred", width=2) != small("csc")


def test_a_blurred_domain_lends_at_most_half_to_each_side():
    stream = make_stream("blurred", sizes=dict.fromkeys("abc", 100), batch_size=10, width=1000)

    assert set(stream.domain_ids[50:150].tolist()) == {0, 1}
    assert set(stream.domain_ids[150:250].tolist()) == {1, 2}


def test_a_short_domain_keeps_its_place_between_long_neighbours():
    stream = make_stream("blurred", sizes={"a": 100, "b": 20, "c": 100}, batch_size=10, width=1000)

    assert set(stream.domain_ids[:90].tolist()) == {0}
    assert set(stream.domain_ids[130:].tolist()) == {2}


def test_the_seed_decides_where_neighbours_mix():
    patterns = [small("blurred", seed=seed, width=2).domain_ids.tolist() for seed in (0, 1)]

    assert patterns[0] != patterns[1]


def test_equal_domains_are_mixed_in_different_orders():
    stream = make_stream("mixed", sizes={"fog": 50, "snow": 50})

    assert stream.indices[stream.domain_ids == 0].tolist() != stream.indices[stream.domain_ids == 1].tolist()


def test_mixed_batches_hold_all_domains():
    stream = make_stream("mixed", sizes=dict.fromkeys("abc", 1000), batch_size=300)

    for step in stream:
        assert np.bincount(step.domain_ids, minlength=3) == pytest.approx([100] * 3, abs=35)


# --- make_stream


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_and_all_arguments_are_recorded(kind):
    stream = small(kind, seed=np.int64(3), rounds=2)

    assert stream.kind == kind
    assert {"batch_size": 2, "seed": 3, "rounds": 2}.items() <= stream.params.items()


def test_sizes_follow_from_labels():
    assert make_stream("csc", labels=LABELS, batch_size=2) == make_stream("csc", sizes=SIZES, batch_size=2)


def test_a_named_order_reorders_the_domains():
    sizes = dict.fromkeys(STANDARD_ORDER, 3)

    assert make_stream("csc", sizes=sizes, order="cotta_3").domains == COTTA_10_ORDERS[3]
    assert make_stream("csc", sizes=sizes, order="standard") == make_stream("csc", sizes=sizes)
    assert small("ptta", order=["frost", "fog", "snow"]).domains == ("frost", "fog", "snow")


def test_every_named_order_has_the_15_corruptions():
    assert list(NAMED_ORDERS) == ["standard", *(f"cotta_{k}" for k in range(10))]
    assert {frozenset(order) for order in NAMED_ORDERS.values()} == {frozenset(STANDARD_ORDER)}
    assert {len(order) for order in NAMED_ORDERS.values()} == {15}


def test_rounds_repeat_the_stream():
    stream = small("csc", rounds=3)

    assert segment_names(stream) == ["fog", "snow", "frost"] * 3
    assert stream == repeated(small("csc"), 3)


def test_repeating_less_than_once_is_refused():
    with pytest.raises(ValueError, match="rounds must be at least 1, not 0"):
        repeated(small("csc"), 0)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("cd", {}, r"unknown stream 'cd'; did you mean 'cdc'\? choose from: csc, cdc"),
        ("xyz", {}, r"unknown stream 'xyz'; choose from: csc"),
        ("cdc", {"detla": 1.0}, r"unknown parameter of the stream 'cdc': 'detla'; did you mean 'delta'\?"),
        ("csc", {"delta": 1.0}, r"unknown parameter of the stream 'csc': 'delta'"),
        ("ptta", {"labels": None}, "the stream 'ptta' needs labels"),
        ("cdc", {"labels": None, "sizes": None}, "the stream 'cdc' needs sizes"),
        ("cdc", {"labels": None, "sizes": {}}, "sizes is empty"),
        ("ptta", {"labels": {}, "sizes": None}, "labels is empty"),
        ("ptta", {"labels": {"fog": []}, "sizes": None}, "labels of 'fog' must be a non-empty one-dimensional array"),
        (
            "ptta",
            {"labels": {"fog": [0.5]}, "sizes": None},
            "labels of 'fog' must be a non-empty one-dimensional array",
        ),
        (
            "ptta",
            {"labels": {"fog": [[1]]}, "sizes": None},
            "labels of 'fog' must be a non-empty one-dimensional array",
        ),
        ("csc", {"sizes": {"fog": 3}}, "contradict the labels"),
        ("csc", {"labels": None, "sizes": {"fog": 0}}, "the size of 'fog' must be at least 1, not 0"),
        ("csc", {"labels": None, "sizes": {"fog": 2.5}}, "the size of 'fog' must be an integer, not 2.5"),
        ("csc", {"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ("ptta", {"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ("csc", {"seed": -1}, "seed must be at least 0, not -1"),
        ("cdc", {"seed": -1, "rng": "legacy"}, "seed must be at least 0, not -1"),
        ("csc", {"rounds": 1.5}, "rounds must be an integer, not 1.5"),
        ("csc", {"rounds": 0}, "rounds must be at least 1, not 0"),
        ("cdc", {"delta": 0}, "delta must be a positive finite number, not 0"),
        ("cdc", {"delta": float("nan")}, "delta must be a positive finite number, not nan"),
        ("cdc", {"delta": float("inf")}, "delta must be a positive finite number, not inf"),
        ("cdc", {"delta": "1"}, "delta must be a positive finite number, not '1'"),
        (
            "cdc",
            {"delta": 1e-300, "rng": "legacy"},
            "NumPy cannot sample such an extreme Dirichlet distribution",
        ),
        ("cdc", {"slots": 0}, "slots must be at least 1, not 0"),
        ("cdc", {"rng": "global"}, "rng must be 'scoped' or 'legacy', not 'global'"),
        ("cdc_2d", {"rng": "global"}, "rng must be 'scoped' or 'legacy', not 'global'"),
        (
            "cdc_2d",
            {"probabilities": "R11"},
            "must be 'uniform', 'R1' to 'R10', or positive numbers, not 'R11'",
        ),
        ("cdc_2d", {"probabilities": [1, 2]}, "2 probabilities were given for 3 domains"),
        ("cdc_2d", {"probabilities": [1, 0, 1]}, "the probability of 'snow' must be a positive finite number"),
        ("cdc_2d", {"probabilities": {"fog": 1}}, "must name exactly the domains fog, snow, frost"),
        ("cdc_2d", {"probabilities": "R1", "rng": "legacy"}, "supports only uniform probabilities"),
        ("ptta", {"concentration": -1}, "concentration must be a positive finite number, not -1"),
        ("ptta", {"slots": 0}, "slots must be at least 1, not 0"),
        ("gradual", {"severities": []}, "severities is empty"),
        ("gradual", {"severities": [0]}, "a severity must be at least 1, not 0"),
        ("blurred", {"width": -1}, "width must be at least 0, not -1"),
        ("csc", {"order": "cotta_10"}, "unknown order 'cotta_10': choose from standard, cotta_0"),
        ("csc", {"order": ["fog", "snow"]}, r"no data for none, missing from the order \['frost'\]"),
        (
            "csc",
            {"order": ["fog", "snow", "frost", "rain"]},
            r"no data for \['rain'\], missing from the order none",
        ),
        ("csc", {"order": ["fog", "snow", "frost", "fog"]}, "names a domain twice"),
    ],
)
def test_a_wrong_argument_is_named_in_one_sentence(kind, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        small(kind, **arguments)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_of_imagenet_c_arrives_once(kind):
    stream = make_stream(kind, labels={name: np.arange(50_000) % 1000 for name in STANDARD_ORDER})

    corruption = np.array([STANDARD_ORDER.index(name.split("/")[0]) for name in stream.domains])  # gradual: "fog/1"
    arrived = np.sort(corruption[stream.domain_ids] * 50_000 + stream.indices)

    np.testing.assert_array_equal(arrived, np.arange(750_000))  # an index above 32,767 must not wrap around


def test_streams_need_neither_torch_nor_matplotlib():
    code = "import sys, tta_bench.streams; print({'torch', 'matplotlib', 'lightning'} & set(sys.modules))"

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout == "set()\n"


# --- timelines


def test_the_text_timeline_shows_the_prevailing_domain():
    stream = make_stream("csc", sizes={"fog": 60, "snow": 20}, batch_size=2)

    assert timeline_text(stream, 8, coloured=False) == "aaaaaabb\na=fog  b=snow"


def test_severities_share_a_lane():
    stream = make_stream("gradual", sizes={"fog": 18, "snow": 18}, batch_size=1)

    assert timeline_text(stream, 4, coloured=False) == "aabb\na=fog  b=snow"


def test_one_severity_keeps_its_name():
    stream = make_stream("csc", sizes={"fog/5": 2, "snow/5": 2})

    assert timeline_text(stream, 2, coloured=False) == "ab\na=fog/5  b=snow/5"


def test_colours_leave_the_text_as_it_is():
    stream = make_stream("csc", sizes={"fog": 60, "[bold]snow": 20}, batch_size=2)

    assert Text.from_markup(timeline_text(stream, 8)).plain == timeline_text(stream, 8, coloured=False)


def test_a_domain_has_the_same_colour_whenever_it_arrives():
    there, back = (
        timeline_text(make_stream("csc", sizes=dict.fromkeys(names, 1)), 2).splitlines()[0].split("[/]")[:2]
        for names in (("fog", "snow"), ("snow", "fog"))
    )

    assert [cell[:-1] for cell in there] == [cell[:-1] for cell in reversed(back)]
    assert len({cell[:-1] for cell in there}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_is_written_for_every_kind(kind, tmp_path):
    plot_timeline(small(kind), tmp_path / "timeline.png", title="A title")

    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_where_domains_are():
    snow, fog = ([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)] for colour in PALETTE[:2])  # in usual order
    lanes, strip = lane_picture(demo()), share_picture(demo())

    assert (lanes.shape, strip.shape) == ((2, 4, 4), (100, 4, 3))
    assert lanes[:, :, 3].tolist() == [[1, 1, 0, 1], [0, 0, 1, 0]]
    assert lanes[0, 0, :3] == pytest.approx(fog)
    assert strip[50, 2] == pytest.approx(snow)


def test_a_visit_of_one_batch_in_12000_is_seen():
    ids = np.zeros(12_000, dtype=int)
    ids[7001] = 1
    stream = Schedule("demo", {}, ("fog", "snow"), ids, np.arange(12_000), np.arange(12_001))
    lanes = lane_picture(stream)

    assert lanes.shape == (2, MAX_COLUMNS, 4)
    assert lanes[1, :, 3].tolist() == [float(k == 7001 * MAX_COLUMNS // 12_000) for k in range(MAX_COLUMNS)]


def test_a_lane_has_the_colour_of_its_domain_however_small_its_share():
    ids = np.array([0, 0, 0, 1, 1, 1, 1, 1])  # a quarter of the first batch, then all of the second
    stream = Schedule("demo", {}, ("fog", "snow"), ids, np.arange(8), np.array([0, 4, 8]))
    lanes = lane_picture(stream)
    np.testing.assert_allclose(lanes[1, 0, :3], lanes[1, 1, :3])
    assert lanes[1, 0, :3].max() > 0
    assert lanes[1, :, 3].tolist() == [0.5, 1.0]  # the root of the share


def test_the_share_of_each_class_in_each_batch_follows_the_labels_of_the_samples_that_arrive():
    """Two domains whose samples have other labels: batch 0 has classes 0, 0, 2, batch 1 has 1, 2."""
    schedule = Schedule("demo", {}, ("fog", "snow"), [0, 0, 1, 1, 0], [1, 2, 0, 1, 0], [0, 3, 5])
    labels = {"snow": np.array([2, 1]), "fog": np.array([2, 0, 0])}
    assert class_shares(schedule, labels).tolist() == [[2 / 3, 0.0], [0.0, 0.5], [1 / 3, 0.5]]


# --- the data set's own order


class TestAsGiven:
    ARRIVALS = Arrivals(np.array([1, 0, 1, 0]), np.array([1, 0, 0, 1]), np.array([0.0, 60.0, 30_000.0, 30_060.0]))

    def given(self, **more):
        return make_stream(
            "as_given", **{"sizes": {"a": 2, "b": 2}, "batch_size": 3, "arrivals": self.ARRIVALS, **more}
        )

    def test_the_order_is_kept_and_a_batch_may_hold_several_domains(self):
        stream = self.given()
        names = [stream.domains[i] for i in stream.domain_ids]
        assert list(zip(names, stream.indices.tolist(), strict=True)) == [("b", 1), ("a", 0), ("b", 0), ("a", 1)]
        assert [len(step.indices) for step in stream] == [3, 1]
        assert self.given(seed=7) == stream

    def test_by_time_sorts_and_keeps_the_order_of_equal_times(self):
        times = np.array([5.0, 1.0, 1.0, 0.0])
        stream = self.given(arrivals=self.ARRIVALS._replace(times=times), by_time=True)
        names = [stream.domains[i] for i in stream.domain_ids]
        assert list(zip(names, stream.indices.tolist(), strict=True)) == [("a", 1), ("a", 0), ("b", 0), ("b", 1)]

    def test_by_time_needs_every_time(self):
        for times in (None, np.array([0.0, np.nan, 1.0, 2.0])):
            with pytest.raises(ValueError, match="by_time needs the time of every image"):
                self.given(arrivals=self.ARRIVALS._replace(times=times), by_time=True)

    def test_pauses_are_noted_and_change_nothing(self):
        stream = self.given(batch_size=2)
        assert stream.params["boundaries"] == [1]
        assert self.given(batch_size=2, gap_hours=9).params["boundaries"] == []
        assert self.given(batch_size=2, gap_hours=None) == stream
        hours = self.ARRIVALS._replace(times=np.array([0.0, 3600.0, 7200.5, 7200.5]))  # an hour is no pause of an hour
        assert self.given(batch_size=1, arrivals=hours, gap_hours=1).params["boundaries"] == [2]

    def test_other_data_arrive_domain_after_domain(self):
        stream = make_stream("as_given", sizes={"a": 2, "b": 1}, batch_size=2)
        assert (stream.domain_ids.tolist(), stream.indices.tolist()) == ([0, 0, 1], [0, 1, 0])

    def test_a_named_order_is_refused(self):
        with pytest.raises(ValueError, match="as_given keeps the order of the data set"):
            self.given(order=["b", "a"])


def test_an_image_without_a_label_is_no_class_in_the_plot():
    stream = make_stream("csc", labels={"a": [0, -1, 1, -1]}, batch_size=4)
    assert class_shares(stream, {"a": np.array([0, -1, 1, -1])}).tolist() == [[0.5], [0.5]]
