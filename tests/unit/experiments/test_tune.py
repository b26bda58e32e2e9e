"""Tuning: the data that it may use, the points of the grid, and the output file."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tta_bench.config.compose import compose_run, plain
from tta_bench.config.words import ConfigError, read_word
from tta_bench.datasets.corruptions import COMMON, VALIDATION
from tta_bench.experiments.tune import Tuned, Tuning, make_tuning, tune, tuned_yaml, tuning_table, write_tuned


class TestTestDataAreRefused:
    @pytest.mark.parametrize("dataset", ["shapes_c", "shapes_c_validation", "scenes_c", "imagenet_c", "packed"])
    @pytest.mark.parametrize("domains", ["common", "noise", "clean", "[speckle_noise,fog]", "fog/3", "[fog/3]"])
    def test_named_in_words(self, dataset, domains):
        words = ["method=tent", f"dataset={dataset}", f"dataset.domains={domains}"]
        with pytest.raises(ConfigError, match="only on the validation corruptions"):
            make_tuning([*words, "dataset.root=x"] if dataset in ("imagenet_c", "packed") else words)

    @pytest.mark.parametrize("name", COMMON)
    def test_every_corruption_that_methods_are_compared_on(self, name):
        with pytest.raises(ConfigError, match=f"contains {name}: .* only on the validation corruptions"):
            make_tuning(["method=tent", f"dataset.domains=[{name}]"])

    @pytest.mark.parametrize("dataset", ["shapes_c", "shapes_c_validation", "scenes_c", "corrupted"])
    def test_the_test_split(self, dataset):
        with pytest.raises(ConfigError, match=r"dataset\.split=test"):
            make_tuning(["method=tent", f"dataset={dataset}", "dataset.split=test"])

    @pytest.mark.parametrize("words", [[], ["dataset=shapes_c"], ["dataset.domains=validation", "dataset=shapes_c"]])
    def test_shapes_become_its_validation_set(self, words):
        config = compose_run(make_tuning(["method=tent", *words]).base).config
        assert config.dataset.split == "validation"
        assert config.dataset.domains == "validation"

    def test_scenes_become_their_own_validation_set(self):
        composed = compose_run(make_tuning(["method=tent", "dataset=scenes_c"]).base)
        assert composed.choices["dataset"] == "scenes_c_validation"
        assert (composed.config.dataset.split, composed.config.dataset.domains) == ("validation", "validation")

    def test_other_data_show_the_validation_corruptions(self):
        base = make_tuning(["method=tent", "dataset=imagenet_c", "dataset.root=x"]).base
        assert tuple(compose_run(base).config.dataset.domains) == VALIDATION

    def test_a_domain_that_only_the_opened_data_show_is_refused_before_anything_runs(self, tmp_path):
        for domain in ("speckle_noise", "sketch"):
            folder = tmp_path / "images" / domain / "a"
            folder.mkdir(parents=True)
            Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(folder / "0.png")
        words = ["method=tent", "dataset=image_folder", f"dataset.root={tmp_path}/images", "trainer=cpu", "logger=off"]
        tuning = make_tuning([*words, f"output={tmp_path}/runs"])
        hidden = (*(w for w in tuning.base if "domains" not in w.key), read_word("dataset.domains=null"))
        with pytest.raises(ConfigError, match="the data contain sketch: "):
            tune(Tuning(hidden, (), tuning.candidates, (0,), "tent", "image_folder"), Console(quiet=True))
        assert not (tmp_path / "runs").exists()


class TestTheGrid:
    def points(self, *words, grid=()):
        return list(make_tuning(["method=tent", *words], grid).candidates)

    def test_is_a_product_with_the_published_values_first(self):
        published = {"lr": 0.0001, "momentum": 0.9}
        expected = [published] + [{"lr": lr, "momentum": m} for lr in (0.01, 0.1) for m in (0.5, 0.9)]
        assert self.points(grid=["lr=[0.01,0.1],momentum=[0.5,0.9]"]) == expected
        assert self.points(grid=["lr=[0.01,0.1]", "method.momentum=[0.5,0.9]"]) == expected

    def test_does_not_repeat_the_published_values(self):
        assert self.points(grid=["lr=[1e-4,1e-3]"]) == [{"lr": 0.0001}, {"lr": 0.001}]

    def test_without_one_the_learning_rate_varies(self):
        assert [point["lr"] for point in self.points()] == [1e-4, 1e-5, 3e-5, 3e-4, 1e-3]

    def test_ignores_what_was_tuned_before(self):
        composed = compose_run(make_tuning(["method=sar", "dataset=cifar10_c", "dataset.root=x"]).base)
        assert composed.choices["tuned"] == "off"

    def test_every_point_runs_with_every_seed(self):
        tuning = make_tuning(["method=tent", "seeds=[3,5]"], ["lr=[0.01]"])
        runs = [(job.config.method.lr, job.config.seed) for job in tuning.jobs()]
        assert runs == [(0.0001, 3), (0.0001, 5), (0.01, 3), (0.01, 5)]

    def test_a_null_stays_null(self):
        tuning = make_tuning(["method=dpcore"], ["max_size=[4]"])
        assert [job.config.method.max_size for job in tuning.jobs()] == [None, 4]

    @pytest.mark.parametrize(
        ("words", "grid", "part"),
        [
            ([], [], "method=tent"),
            (["method=tent", "seed=1"], [], r"seeds=\[1\]"),
            (["method=source"], [], "no learning rate"),
            (["method=tent"], ["lrr=[1]"], "'method.lr'"),
            (["method=tent"], ["lr=0.1"], "is lists of values"),
            (["method=tent"], ["lr=[]"], "is lists of values"),
            (["method=tent", "method.lr=0.1"], ["lr=[0.1]"], "leave out one"),
            (["method=tent", "dataset=imagenet_c"], [], r"dataset\.root"),
        ],
    )
    def test_a_wrong_word_is_one_sentence(self, words, grid, part):
        with pytest.raises(ConfigError, match=part) as caught:
            make_tuning(words, grid)
        assert "\n" not in str(caught.value)


def tuned(*errors, words=()):
    tuning = make_tuning(["method=tent", *words], ["lr=[0.01,0.1],steps=[2]"])
    return Tuned(tuning, errors, {"severity": 5}, ("it broke",) * errors.count(None))


class TestTheOutcome:
    def test_the_lowest_error_wins_and_the_published_values_a_tie(self):
        assert tuned(40.0, 30.0, 35.0).best == 1
        assert tuned(30.0, 30.0, 35.0).best == 0
        assert tuned(None, 40.0, 35.0).best == 2

    def test_nothing_is_written_if_all_failed(self, tmp_path):
        with pytest.raises(ConfigError, match="all runs failed, the first with: it broke"):
            write_tuned(tuned(None, None, None), tmp_path / "t.yaml")
        assert list(tmp_path.iterdir()) == []

    def test_the_table_has_the_best_on_top_and_the_failed_below(self):
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(tuning_table(tuned(40.0, None, 35.0)))
        lines = [line.split() for line in console.export_text().splitlines() if line.startswith("│")]
        assert [line[5] for line in lines] == ["35.00", "40.00", "failed"]
        assert "published" in lines[1]

    def test_the_file_says_where_its_values_come_from(self):
        text = tuned_yaml(tuned(40.0, 30.0, None, words=["output=here", "seeds=[0,1]"]))
        assert text.startswith("# @package _global_\n# Chosen by tta-bench tune on ")
        for part in (*VALIDATION, "seeds [0, 1]", "severity 5", "torch ", "method.lr=0.01 method.steps=2: 30.00\n"):
            assert part in text
        assert "method.lr=0.0001 method.steps=1: 40.00 (published)\n" in text
        assert "method.lr=0.1 method.steps=2: failed\n" in text
        assert "here" not in text

    def test_the_file_in_the_users_folder_makes_the_run_that_was_best(self, tmp_path):
        place = f"config_dir={tmp_path}"
        done = tuned(40.0, 30.0, 35.0, words=["method.momentum=0.5", "setting.batch_size=8", "setting=csc", place])
        said = write_tuned(done)
        file = tmp_path / "tuned" / "shapes_c" / "tent.yaml"
        assert said == f"the best values are in {file}: every run of tent on shapes_c with {place} uses them"
        composed = compose_run(["method=tent", place])
        assert composed.tuned == str(file)
        config = plain(composed.config)
        assert config["method"] == plain(done.tuning.jobs()[1].config)["method"]
        assert (config["method"]["lr"], config["method"]["momentum"], config["method"]["steps"]) == (0.01, 0.5, 2)
        assert (config["setting"]["kind"], config["setting"]["batch_size"]) == ("cdc", 64)  # not what was chosen
        assert compose_run(["method=tent"]).tuned is None

    def test_without_a_folder_of_ones_own_it_is_said_how_to_use_the_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        said = write_tuned(tuned(40.0, 30.0, 35.0))
        assert said.startswith(
            "the best values are in shapes_c_tent.yaml: moved to FOLDER/tuned/shapes_c/tent.yaml, they apply"
        )
        assert said.endswith("config_dir=FOLDER; for a single run, add method.lr=0.01 method.steps=2")
        assert (tmp_path / "shapes_c_tent.yaml").is_file()

    def test_what_an_own_class_has_without_tuning_is_its_default_and_not_published(self, tmp_path, monkeypatch):
        (tmp_path / "mypkg.py").write_text("from tta_bench.methods import Tent\n\n\nclass Mine(Tent):\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        tuning = make_tuning(["method=mypkg.Mine"], ["lr=[0.01]"])
        assert (tuning.untuned, make_tuning(["method=tent"]).untuned) == ("default", "published")
        assert "method.lr=0.0001: 40.00 (default)" in tuned_yaml(Tuned(tuning, (40.0, 30.0), {"severity": 5}))
