"""The doctor finds everything that would go wrong, and nothing else."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tta_bench.cli.app import app
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.datasets.procedural.shapes import label, render
from tta_bench.experiments import doctor
from tta_bench.experiments import known_protocols as anchors
from tta_bench.experiments.known_protocols import Anchor
from tta_bench.models.loading.load_model import load_model
from tta_bench.prepare.download import Archive

SMALL = ["dataset.num_images=40", "dataset.domains=[gaussian_noise,fog]", "logger=off"]


@pytest.fixture
def examined(tmp_path):
    """Run the doctor on words: exit status, and what it found by name."""

    def run(*words, images=60):
        places = [f"output={tmp_path}/no/runs", f"cache_dir={tmp_path}/no/cache"]
        command = ["doctor", *words, *places, "--images", str(images)]
        done = CliRunner(env={"COLUMNS": "600"}).invoke(app, command)
        assert "Traceback" not in done.output
        rows = [line.split("│")[1:-1] for line in done.output.splitlines() if line.startswith("│")]
        return done, {name.strip(): (found.strip(), state.strip()) for name, found, state in rows}

    return run


@pytest.fixture
def folder(tmp_path):
    """Twenty shapes in a domain of class folders."""
    for i in range(20):
        file = tmp_path / "images/day" / str(label(i)) / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(render("test", i, 64)).save(file)
    return tmp_path / "images"


def words_for(folder):
    cut = ["dataset.image_size=null", "dataset.resize=null", "setting=csc", "logger=off", "method=source"]
    return ["dataset=image_folder", f"dataset.root={folder}", *cut]


@pytest.fixture(scope="module")
def errors():
    """The source model's error in each domain."""
    data, model, errors = shapes_c(num_images=40, domains=["gaussian_noise", "fog"]), load_model("shapes_vit"), {}
    for domain in data.domains:
        images = np.stack([data.load(domain, i) for i in range(40)])
        with torch.no_grad():
            predicted = model(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).argmax(dim=1)
        errors[domain] = 100 * (predicted.numpy() != data.labels(domain)).mean()
    return errors


class TestWhereAllIsWell:
    def test_it_ends_with_status_0_and_writes_nothing(self, examined, tmp_path):
        done, found = examined(*SMALL, "methods=[source,tent,dpcore]")
        assert done.exit_code == 0
        assert {state for _, state in found.values()} <= {"ok", "note"}
        assert not (tmp_path / "no").exists()
        assert found["data"][0] == "shapes_c: 2 domains of 40 images, 80 in all"
        assert found["classes"][0] == "labels 0 to 9, 4 images per class and domain"
        assert found["image sizes"][0] == "64x64"
        assert found["preprocess"][0] == "timm: mean [0.5, 0.5, 0.5], std [0.25, 0.25, 0.25], not resized"
        assert found["weights"][0] == f"SHA-256 {load_model('shapes_vit').weights_sha256[:16]}..."
        assert {"memory, source", "memory, tent", "memory, dpcore"} <= set(found)

    def test_it_says_where_frost_comes_from(self, examined):
        words = ["method=source", "dataset.num_images=20", "logger=off"]
        assert examined(*words, "dataset.domains=[frost/2]")[1]["frost textures"] == ("generated", "note")
        assert "frost textures" not in examined(*words, "dataset.domains=[fog]")[1]

    def test_it_measures_the_error_of_the_source_model(self, examined, errors):
        _, found = examined(*SMALL, "method=source", images=80)
        assert found["source error, stream"][0].startswith(f"{sum(errors.values()) / 2:.1f} ± ")
        assert found["source error, clean"][0].endswith("on 26 images")

    def test_it_says_which_protocol_the_errors_look_like(self, examined, errors, monkeypatch):
        """Errors that the model has, and others, as if they were published."""
        mean = sum(errors.values()) / 2
        known = (Anchor("a", "us", errors), Anchor("b", "us", dict.fromkeys(errors, 99.0)))
        monkeypatch.setitem(anchors.ANCHORS, "shapes_c", known)
        _, found = examined(*SMALL, "method=source", images=80)
        assert found["protocol"][0].startswith(f"matches a: {mean:.1f} % there (us), {mean:.1f} ± ")
        assert found["protocol"][1] == "ok"
        monkeypatch.setitem(anchors.ANCHORS, "shapes_c", known[1:])
        assert examined(*SMALL, "method=source")[1]["protocol"][1] == "note"

    def test_a_run_without_adaptation_says_it_too(self, tmp_path, monkeypatch):
        monkeypatch.setitem(anchors.ANCHORS, "shapes_c", (Anchor("a", "us", {"fog": 20.0}),))
        words = [*SMALL, "dataset.domains=[fog]", "setting=csc", f"output={tmp_path}", "trainer=cpu"]
        said = [CliRunner().invoke(app, ["run", *words, f"method={name}"]).output for name in ("source", "tent")]
        assert ["The source error matches" in text for text in said] == [True, False]


class TestProblems:
    def test_data_that_are_not_there(self, examined):
        done, found = examined("dataset=image_folder", "dataset.root=/nowhere", "logger=off")
        assert done.exit_code == 1
        assert found["data"] == ("dataset.root=/nowhere does not exist", "problem")
        assert "model" not in found

    def test_a_domain_without_a_class(self, examined, folder):
        (folder / "night/3").mkdir(parents=True)
        (folder / "night/3/x.png").write_bytes((folder / "day/3/3.png").read_bytes())
        assert "lacks the class 0" in examined(*words_for(folder))[1]["data"][0]
        (folder.parent / "classes.txt").write_text("\n".join(map(str, range(10))))
        done, found = examined(*words_for(folder), f"dataset.classes={folder.parent}/classes.txt")
        assert found["label map"][0] == "0 = 0, 1 = 1, 2 = 2, ..., 9 = 9"
        assert found["classes"] == ("labels 0 to 9, 1 to 2 images per class and domain", "ok")
        lacking = "no image of night has 9 of 10 classes: 0 (0), 1 (1), 2 (2), 4 (4), 5 (5), ..."
        assert found["absent classes"] == (lacking, "note")
        assert done.exit_code == 0

    def test_images_of_two_sizes(self, examined, folder):
        Image.fromarray(render("test", 0, 48)).save(folder / "day/0/0.png")
        done, found = examined(*words_for(folder))
        assert done.exit_code == 1
        assert found["image sizes"] == ("48x48, 64x64: set dataset.image_size", "problem")
        assert "source error, stream" not in found

    def test_images_that_the_model_does_not_take(self, examined, folder):
        for file in folder.rglob("*.png"):
            Image.open(file).resize((96, 96)).save(file)
        done, found = examined(*words_for(folder))
        assert done.exit_code == 1
        assert "images of 96x96 pixels do not fit a model of 64x64" in found["images"][0]

    def test_a_damaged_image(self, examined, folder):
        (folder / "day/0/0.png").write_bytes(b"\x89PNG")
        done, found = examined(*words_for(folder))
        assert done.exit_code == 1
        assert found["data"][0].endswith("day/0/0.png is not a readable image: remove or replace it")

    def test_labels_of_another_order(self, examined, folder):
        """The class folders change their names: the files are fine, the labels are not the model's."""
        for name in range(10):
            (folder / "day" / str(name)).rename(folder / "day" / f"x{(name + 5) % 10}")
        done, found = examined(*words_for(folder))
        assert done.exit_code == 1
        assert "guessing gives 90.0 %: do the labels and the model match?" in found["source error, stream"][0]

    def test_a_label_that_the_model_does_not_know(self, examined, tmp_path):
        np.savez(tmp_path / "x.npz", images=np.zeros((4, 64, 64, 3), np.uint8), labels=[0, 1, 2, 10])
        words = ["dataset=corrupted", f"dataset.images={tmp_path}/x.npz", "dataset.domains=[clean]", "logger=off"]
        done, found = examined(*words, "method=source")
        assert done.exit_code == 1
        assert "the data has a label 10, but the model has 10 classes" in found["model"][0]

    def test_a_method_that_cannot_run_does_not_hide_the_others(self, examined, folder):
        done, found = examined(*words_for(folder)[:-1], "methods=[source,dpcore,bn_adapt]")
        assert done.exit_code == 1
        assert "set dataset.source_images" in found["method dpcore"][0]
        assert found["method bn_adapt"][1] == "problem"
        assert found["memory, source"][1] == "ok"

    def test_wrong_words_are_one_sentence_and_status_2(self, examined):
        done, found = examined("dataset=shapes")
        assert (done.exit_code, found) == (2, {})
        assert "there is no dataset 'shapes'" in done.output


class TestArchives:
    @pytest.fixture
    def published(self, monkeypatch):
        archive = Archive("https://example.org/x.tar", hashlib.md5(b"right").hexdigest())
        monkeypatch.setattr(doctor, "PUBLIC", {"x": (archive,)})

    @pytest.mark.parametrize(
        ("content", "found", "state", "status"),
        [(b"right", "MD5 as published", "ok", 0), (b"wrong", "MD5 differs", "problem", 1)],
    )
    def test_beside_the_data_are_compared(self, examined, folder, published, content, found, state, status):
        (folder.parent / "x.tar").write_bytes(content)
        done, rows = examined(*words_for(folder))
        assert rows["archives"] == (f"{folder.parent}/x.tar: {found}", state)
        assert done.exit_code == status

    def test_that_were_unpacked_are_told(self, examined, folder, published):
        (folder / ".x.tar.unpacked").touch()
        found = examined(*words_for(folder))[1]["archives"]
        assert found == ("x.tar was unpacked by tta-bench data download; its MD5 was checked", "ok")


class TestWandb:
    @pytest.fixture
    def online(self, monkeypatch):
        monkeypatch.delenv("WANDB_MODE")
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)

    def test_a_server_out_of_reach_is_no_problem(self, examined, online, monkeypatch):
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        done, found = examined(*SMALL[:-1], "method=source")
        assert done.exit_code == 0
        assert found["W&B"][0].startswith("http://127.0.0.1:9 does not answer")
        assert found["W&B"][1] == "note"

    def test_a_server_that_answers_is_told(self, examined, online, monkeypatch):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_error(404)

            def log_message(self, *args):
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("WANDB_BASE_URL", address)
        found = examined(*SMALL[:-1], "method=source")[1]["W&B"]
        server.shutdown()
        server.server_close()
        assert found == (f"{address} answers (404)", "ok")

    def test_without_a_key_runs_stay_offline(self, examined, monkeypatch, tmp_path):
        monkeypatch.delenv("WANDB_MODE")
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        monkeypatch.setenv("NETRC", str(tmp_path / "none"))
        assert examined(*SMALL[:-1], "method=source")[1]["W&B"][0].startswith("offline: runs stay in their folders")
