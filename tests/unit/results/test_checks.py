"""Every edit of a run folder is detected: each number, each file, each way of hiding it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.helpers.report_runs import result, write_run
from tests.helpers.segmented_runs import write_segmented
from tta_bench.report import FORMATS, report_text
from tta_bench.results.checks import check_run
from tta_bench.results.run_folder import read_results, write_result

BATCHES = [{"fog": (4, 1)}, {"fog": (2, 1), "snow": (2, 0)}, {"snow": (4, 3)}, {"fog": (4, 4)}, {"snow": (3, 0)}]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run that has visits, a mixed batch, a coreset and a last batch that is shorter."""
    sizes = {"coreset_size": [1.0, 1.0, 2.0, 3.0, 3.0], "distance_raw": [0.5, 0.25, 0.75, 1.0, 2.0]}
    return write_run(tmp_path / "run", result("dpcore", ece=0.0), BATCHES, **sizes)


def found(folder: Path) -> dict[str, list[str]]:
    """What the checks say, without those that say nothing."""
    (content,) = read_results([folder])
    return {check: told for check, told in check_run(content).items() if told}


def edit(folder: Path, key: str, change) -> None:
    """Change a number of ``result.json`` as with an editor; the key is dotted."""
    path = folder / "result.json"
    content = json.loads(path.read_text())
    *parents, last = key.split(".")
    node = content
    for parent in parents:
        node = node[int(parent)] if isinstance(node, list) else node[parent]
    last = int(last) if isinstance(node, list) else last
    node[last] = change(node[last])
    path.write_text(json.dumps(content))


def numbers(content, prefix=""):
    """Every number in a result, by dotted key."""
    items = enumerate(content) if isinstance(content, list) else content.items()
    for key, value in items:
        name = f"{prefix}{key}"
        if isinstance(value, dict | list):
            yield from numbers(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name


def test_a_run_that_nobody_changed_agrees(folder):
    assert found(folder) == {}


def test_every_number_of_the_result_that_is_changed_is_noticed(folder):
    original = (folder / "result.json").read_text()
    names = list(numbers(json.loads(original)))
    assert len(names) >= 30
    for name in names:
        edit(folder, name, lambda value: value + 0.001)
        told = found(folder)["schema" if name == "schema" else "checksums"]
        assert told[0].startswith("result.json has schema" if name == "schema" else "result.json was changed"), name
        (folder / "result.json").write_text(original)
    assert found(folder) == {}


COUNTED = {
    "mean_error": "mean_error is 1000, but the batches give 46.6667",
    "sample_error": "sample_error is 1000, but the batches give 47.3684",
    "domain_error.fog": "domain_error.fog is 1000, but the batches give 60",
    "num_samples.snow": "num_samples.snow is 1000, but the batches give 9",
    "forward_per_sample": "forward_per_sample is 1000, but the batches give 1",
    "backward_per_sample": "backward_per_sample is 1000, but the batches give 1",
    "top_class_share": "top_class_share is 1000, but the batches give 0.5",
    "coreset_size": "coreset_size is 1000, but the batches give 3",
    "seconds": "seconds is 1000, but the batches give 0.05",
    "seconds_per_batch_median": "seconds_per_batch_median is 1000, but the batches give 0.01",
    "visit_error.fog.1": "visit_error.fog.1 is 1000, but the batches give 100",
    "revisit_change": "revisit_change is 1000, but the batches give",
    "ece": "ece is 1000, but the batches give nothing",
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_number_that_the_batches_contradict_is_named_also_where_the_checksum_was_made_anew(folder, name):
    """Of 19 samples: fog has 1 + 1 + 4 of 10 wrong, snow 3 of 9."""
    edit(folder, name, lambda _: 1000)
    (content,) = read_results([folder])
    write_result(folder, content)
    ((told,),) = found(folder).values()
    assert told.startswith(COUNTED[name])


def test_the_error_of_a_domain_is_checked_within_rounding_only(folder):
    edit(folder, "domain_error.fog", lambda value: value * (1 + 1e-7))
    assert found(folder)["numbers"] == ["domain_error.fog is 60, but the batches give 60"]
    edit(folder, "domain_error.fog", lambda value: 60 * (1 + 1e-12))
    assert "numbers" not in found(folder)


@pytest.mark.parametrize("name", ["batches.csv", "config.yaml", "stream.json"])
def test_a_file_that_is_changed_or_missing_is_named(folder, name):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0", b"1", 1))
    assert f"{name} was changed after the run" in found(folder)["checksums"]
    path.unlink()
    assert f"{name} is missing" in found(folder)["checksums"]
    path.write_bytes(content)
    assert found(folder) == {}


def test_a_run_that_failed_before_its_first_batch_lacks_no_file(folder):
    for name in ("batches.csv", "stream.json"):
        (folder / name).unlink()
    (content,) = read_results([folder])
    write_result(folder, {**content, "status": "failed"})
    assert found(folder) == {}
    (folder / "config.yaml").unlink()
    assert found(folder) == {"checksums": ["config.yaml is missing"]}


def test_every_cell_of_the_batches_that_is_changed_is_noticed(folder):
    path = folder / "batches.csv"
    original = path.read_bytes()
    lines = [line.split(b",") for line in original.split(b"\r\n")[:-1]]
    path.write_bytes(b"\r\n".join(b",".join(line) for line in lines) + b"\r\n")
    assert found(folder) == {}
    for t in range(1, len(lines)):
        for k, cell in enumerate(lines[t]):
            changed = [list(line) for line in lines]
            changed[t][k] = cell + b"1"
            path.write_bytes(b"\r\n".join(b",".join(line) for line in changed) + b"\r\n")
            assert found(folder), f"{lines[0][k]} of batch {t - 1}"


def test_two_samples_of_the_stream_that_are_swapped_are_noticed(folder):
    path = folder / "stream.json"
    content = json.loads(path.read_text())
    content["indices"][:2] = content["indices"][1::-1]
    path.write_text(json.dumps(content))
    assert found(folder)["stream"][0].startswith("stream.json is a damaged stream file: its content has fingerprint ")


def test_another_stream_is_noticed_by_its_fingerprint_and_by_what_the_batches_hold(folder, tmp_path):
    other = write_run(tmp_path / "other", result(), [{"snow": (4, 1)}, *BATCHES[1:4], {"snow": (2, 0)}])
    (folder / "stream.json").write_bytes((other / "stream.json").read_bytes())
    (content,) = read_results([folder])
    assert found(folder)["stream"] == [
        f"stream.json has fingerprint {read_results([other])[0]['stream_sha256'][:12]}, "
        f"but result.json says {content['stream_sha256'][:12]}"
    ]
    assert found(folder)["batches"] == [
        "2 batches do not have the samples of stream.json, first batch 0: {'fog': 4} instead of {'snow': 4}"
    ]


def test_batches_that_are_lost_are_noticed(folder):
    path = folder / "batches.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert found(folder)["batches"] == ["batches.csv has 4 batches, but stream.json has 5"]
    path.write_text("a,b\n1,2\n")
    assert found(folder)["batches"] == ["batches.csv cannot be read: it has no column 'coreset_size'"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda content: content | {"schema": 7}, "result.json has schema 7, but this version reads 1: repeat the run"),
        (
            lambda content: {k: v for k, v in content.items() if k not in ("seed", "config")},
            "result.json lacks seed, config: it is damaged, repeat the run",
        ),
        (
            lambda content: {k: v for k, v in content.items() if k != "checksums"},
            "result.json has no checksums: it was changed, or written by an earlier version",
        ),
    ],
)
def test_another_schema_missing_keys_and_missing_checksums_are_told(folder, change, told):
    path = folder / "result.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    ((only,),) = found(folder).values()
    assert only == told


def test_a_run_that_has_not_ended_has_nothing_to_compare_and_one_that_failed_its_checksums(tmp_path):
    running = write_run(tmp_path / "a", result(status="running"), BATCHES[:2], planned=BATCHES)
    (running / "config.yaml").write_text("seed: 1\n")
    assert found(running) == {}
    failed = write_run(tmp_path / "b", result(status="failed"), BATCHES[:2], planned=BATCHES)
    assert found(failed) == {}
    edit(failed, "seed", lambda seed: seed + 1)
    assert found(failed) == {"checksums": ["result.json was changed after the run"]}


class TestPixels:
    """Two rounds of two domains: each has an IoU of its own."""

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        return write_segmented(tmp_path / "run", rounds=2)

    def test_agree_where_nobody_changed_them(self, folder):
        assert found(folder) == {}

    @pytest.mark.parametrize(
        "name",
        [
            "mean_iou", "pooled_iou", "domain_iou.fog", "iou_by_round.1.mean", "iou_by_round.0.domain.night",
            "class_iou.road", "class_iou_by_domain.night.sky",
        ],
    )  # fmt: skip
    def test_each_iou_is_checked(self, folder, name):
        edit(folder, name, lambda value: value + 0.5)
        told = found(folder)["numbers"]
        assert [one.startswith(f"{name} is ") for one in told] == [True]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_marks_what_does_not_agree_and_counts_it_nevertheless(folder, tmp_path, form):
    write_run(tmp_path / "good", result("source"), BATCHES)
    honest = report_text(read_results([tmp_path]), form)
    assert "not agree" not in honest
    assert "the batches give" not in honest
    edit(folder, "mean_error", lambda _: 1.5)
    text = " ".join(report_text(read_results([tmp_path]), form).replace("\\", "").split())
    assert "mean_error is 1.5, but the batches give 46.6667" in text
    assert "tta-bench verify" in text
    assert "1.5" in text.replace("mean_error is 1.5", "")
    if form != "csv":
        assert "1 with inconsistent files" in text


def test_numbers_that_are_no_numbers_do_not_agree(folder):
    edit(folder, "mean_error", lambda _: math.nan)
    assert found(folder)["numbers"] == ["mean_error is nan, but the batches give 46.6667"]
    edit(folder, "mean_error", lambda _: "46.6667")
    assert len(found(folder)["numbers"]) == 1
