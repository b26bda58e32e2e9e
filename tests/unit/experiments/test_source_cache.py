"""The cache key of a method's source state depends on everything that determines the state, and on nothing else."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tta_bench.experiments import source_cache
from tta_bench.experiments.resume import DECISIVE, PACKAGE, code_sha256
from tta_bench.experiments.source_cache import source_file
from tta_bench.methods import METHODS
from tta_bench.testing.toy import ToyImages, toy_backbone, toy_data


class Another(METHODS["dpcore"]):
    """The same algorithm under another name."""


class Labelled(ToyImages):
    """Toy images with a label map each."""

    def __init__(self, value):
        super().__init__(8, seed=2)
        self.value = value

    def label_map(self, index):
        return (self.pixels[index][..., 0] > self.value).astype("uint8")


def key(cls=METHODS["dpcore"], change=None, images=None, seed=0, **settings):
    """The key of a toy method after a change of its backbone."""
    backbone, data = toy_backbone(), toy_data()
    backbone.weights_sha256 = "w"
    data.seed = seed
    if images is not None:
        data.domains.source_images = lambda: images
    if change is not None:
        change(backbone)
    return source_file(cls(backbone, **settings), data, Path("cache")).stem


def set_to(name, value):
    return lambda backbone: setattr(backbone, name, value)


def other_mean(name):
    def change(backbone):
        setattr(backbone, name, replace(backbone.preprocess, mean=(0.1, 0.1, 0.1)))

    return change


CASES = {
    "method": {"cls": Another},
    "settings": {"num_source": 32},
    "weights": {"change": set_to("weights_sha256", "v")},
    "kept_classes": {"change": set_to("kept_classes", (0, 1))},
    "dtype": {"change": lambda backbone: backbone.double()},
    "preprocess": {"change": other_mean("preprocess")},
    "source_preprocess": {"change": other_mean("source_preprocess")},
    "image_size": {"change": lambda backbone: setattr(backbone, "image_size", 32)},
    "images": {"images": ToyImages(64, seed=3)},
    "order_seed": {"seed": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_all_that_a_source_state_depends_on_changes_its_key(case):
    assert key(**CASES[case]) != key()


def test_the_label_maps_of_the_source_change_its_key():
    assert key(images=Labelled(100)) == key(images=Labelled(100))
    assert key(images=Labelled(100)) != key(images=Labelled(120))


def test_the_code_changes_its_key(monkeypatch):
    before = key()
    monkeypatch.setattr(source_cache, "code_sha256", lambda method: "another")
    assert key() != before


@pytest.mark.parametrize("settings", [{}, {"lr": 0.5}, {"rho": 0.9}])
def test_what_matters_in_the_stream_only_keeps_it(settings):
    assert key(**settings) == key()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package's code that a test may touch."""
    copied = tmp_path_factory.mktemp("code") / "tta_bench"
    shutil.copytree(PACKAGE, copied, ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")])
    return copied


class TestTheHashOfTheCode:
    @pytest.mark.parametrize("name", DECISIVE)
    def test_changes_with_every_file_that_makes_numbers(self, package, name):
        method = METHODS["source"](toy_backbone())
        before = code_sha256(method, package)
        assert before == code_sha256(method)
        files = sorted((package / name).rglob("*.py")) if (package / name).is_dir() else [package / name]
        assert files
        for file in files:
            content = file.read_bytes()
            file.write_bytes(content + b"\n# touched")
            assert code_sha256(method, package) != before, file
            file.write_bytes(content)

    def test_covers_every_part_of_the_package_that_can_change_a_number(self):
        shown_or_asked = {  # what composes, starts, logs, prepares, reports or trains; it takes no part in a run
            "__init__.py", "__main__.py", "api.py", "cli", "config", "console.py", "files.py", "loggers", "paper",
            "prepare", "quiet.py", "ranks.py", "report", "suggestions.py", "testing", "training",
        }  # fmt: skip
        parts = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
        inside = {name for name in DECISIVE if name.startswith("experiments/")}
        assert {name for name in DECISIVE if "/" not in name} == parts - shown_or_asked - {"experiments"}
        assert inside == {f"experiments/{name}.py" for name in ("run", "source_cache", "source_model", "trainer")}

    def test_does_not_change_with_what_shows_them(self, package):
        method = METHODS["source"](toy_backbone())
        before = code_sha256(method, package)
        (package / "report" / "table.py").write_text("")
        assert code_sha256(method, package) == before

    def test_changes_with_the_file_of_a_method_of_ones_own(self, tmp_path, monkeypatch):
        text = "from tta_bench.methods import Source\n\n\nclass Mine(Source):\n    pass\n"
        (tmp_path / "ownhash.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        import ownhash

        method = ownhash.Mine(copy.deepcopy(toy_backbone()))
        before = code_sha256(method)
        (tmp_path / "ownhash.py").write_text(text + "# touched")
        assert code_sha256(method) != before
