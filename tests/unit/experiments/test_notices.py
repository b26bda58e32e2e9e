"""Notices about input that may be misread: what they say, and where a run says them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file

from tests.helpers.commands import invoke
from tta_bench.config.compose import compose_run
from tta_bench.config.words import ConfigError
from tta_bench.datasets.classification.cifar_c import cifar10_c
from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.datasets.procedural.shapes import label, render
from tta_bench.datasets.segmentation.folder import segmentation_folder
from tta_bench.experiments.notices import data_notices, error_notice, model_notices
from tta_bench.experiments.run import Run
from tta_bench.models.loading.load_model import load_model
from tta_bench.prepare.pack import pack

QUIET = Console(quiet=True)
NAMES = ("apple", "birch", "cobalt")
AS_THEY_ARE = {"image_size": None, "resize": None}


def told(domains, **dataset):
    return [notice.told for notice in data_notices(domains, dataset)]


def image(path, level=7):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (level,) * 3).save(path)


@pytest.fixture
def root(tmp_path):
    """Two domains of three classes of two images, and a list of the classes in another order."""
    for domain in ("day", "night"):
        for level, name in enumerate(NAMES):
            for i in range(2):
                image(tmp_path / "own" / domain / name / f"{i}.png", 40 * level + i)
    (tmp_path / "classes.txt").write_text("cobalt\nbirch\napple\n")
    return tmp_path / "own"


@pytest.fixture
def listed(root):
    return str(root.parent / "classes.txt")


class TestWhatIsLeftOut:
    def test_nothing_is_said_of_folders_in_which_everything_is_read(self, root, listed):
        assert told(image_folder(root=str(root), classes=listed, **AS_THEY_ARE), classes=listed) == []

    def test_files_are_counted_by_ending_and_folders_by_name(self, root, listed):
        for name in ("a.heic", "b.HEIC", "c.txt"):
            (root / "day/apple" / name).write_text("x")
        image(root / "night/unsorted/0.png")
        image(root / "night/0.png")
        data = image_folder(root=str(root), classes=listed, **AS_THEY_ARE)
        assert told(data, classes=listed) == [
            "files and folders that are not read: 2 x .heic, 1 x .txt, 1 x images beside the folders, 1 x unsorted/"
        ]

    def test_those_of_the_source_are_counted_apart(self, root, listed):
        (root / "night/apple/a.heic").write_text("x")
        data = image_folder(root=str(root), classes=listed, source_images=str(root / "night"), **AS_THEY_ARE)
        (notice,) = told(data, classes=listed)
        assert notice == "files and folders of the source images that are not read: 1 x .heic"

    def test_of_every_reader_of_image_folders(self, root, listed, tmp_path):
        (root / "day/apple/a.heic").write_text("x")
        data = corrupted(images=str(root / "day"), classes=listed, domains=["fog"])
        assert "1 x .heic" in told(data, classes=listed)[0]
        pack(image_folder(root=str(root), classes=listed, **AS_THEY_ARE), tmp_path / "packed", QUIET)
        run = Run(compose_run(["dataset=packed", f"dataset.root={tmp_path}/packed", *words_of(tmp_path, 3)]))
        assert any("1 x .heic" in notice for notice in told(run.domains))

    def test_damaged_images(self, root, listed):
        (root / "day/birch/0.png").write_bytes(b"\x89PNG")
        data = image_folder(root=str(root), classes=listed, on_bad_image="skip", **AS_THEY_ARE)
        assert told(data, classes=listed) == ["1 damaged image is left out, first day/birch/0.png"]


class TestClassesWithoutLabels:
    def test_of_images_are_named(self, root, listed):
        Path(listed).write_text("cobalt\nbirch\napple\ndusk\n")
        shutil.rmtree(root / "night/birch")
        data = image_folder(root=str(root), classes=listed, **AS_THEY_ARE)
        assert told(data, classes=listed) == [
            "no image has the class dusk (3)",
            "no image of night has the class birch (1)",
        ]

    def test_of_several_domains_the_worst_is_named(self, root, listed):
        shutil.rmtree(root / "night/birch")
        shutil.copytree(root / "day", root / "noon")
        for name in ("birch", "cobalt"):
            shutil.rmtree(root / "day" / name)
        data = image_folder(root=str(root), classes=listed, **AS_THEY_ARE)
        (notice,) = told(data, classes=listed)
        assert (
            notice
            == "no image of day has 2 of 3 classes: cobalt (0), birch (1); other domains that lack classes: night"
        )

    def test_of_a_data_set_with_fixed_classes(self):
        assert told(shapes_c(num_images=10, domains=["fog"])) == []
        (notice,) = told(shapes_c(num_images=4, domains=["fog"]))
        assert notice == "no image has 6 of 10 classes: 4, 5, 6, 7, 8, ..."

    @pytest.mark.parametrize(
        ("values", "classes", "expected"),
        [
            ((0, 1), 2, None),
            ((0, 1, 255), 2, None),
            ((0,), 2, "no pixel of 3 label maps has the class class1 (1)"),
            ((0, 1), 4, "no pixel of 3 label maps has the classes class2 (2), class3 (3)"),
            (
                (0, 255), 2,
                "no pixel of 3 label maps has the class class1 (1), and pixels of 255 are not scored: are the masks 0 "
                "and 255 where 0 and 1 are meant?",
            ),
        ],
    )  # fmt: skip
    def test_of_pixels_are_named(self, tmp_path, values, classes, expected):
        rng = np.random.default_rng(0)
        for i in range(3):
            image(tmp_path / f"images/day/{i}.png")
            (tmp_path / "labels/day").mkdir(parents=True, exist_ok=True)
            mask = rng.choice(values, size=(16, 16)).astype(np.uint8)
            mask.flat[: len(values)] = values
            Image.fromarray(mask).save(tmp_path / f"labels/day/{i}.png")
        (tmp_path / "classes.txt").write_text("\n".join(f"class{k}" for k in range(classes)))
        paths = {key: str(tmp_path / key) for key in ("images", "labels")}
        for corruptions in (None, ["fog", "snow"]):
            data = segmentation_folder(**paths, classes=str(tmp_path / "classes.txt"), corruptions=corruptions)
            assert told(data) == ([] if expected is None else [expected])

    def test_a_class_in_one_of_many_label_maps_is_found_by_looking_at_all_of_them(self, tmp_path):
        for i in range(30):
            image(tmp_path / f"images/{i:02d}.png")
            (tmp_path / "labels").mkdir(exist_ok=True)
            Image.fromarray(np.full((16, 16), i == 28, dtype=np.uint8)).save(tmp_path / f"labels/{i:02d}.png")
        (tmp_path / "classes.txt").write_text("ground\ndisc")
        paths = {key: str(tmp_path / key) for key in ("images", "labels")}
        assert told(segmentation_folder(**paths, classes=str(tmp_path / "classes.txt"))) == []


class TestLabelsOfFolderNames:
    ORDER = "labels follow the names of the class folders (apple = 0, birch = 1, cobalt = 2): if the model's"

    def test_are_told_with_their_order(self, root):
        (notice,) = told(image_folder(root=str(root), **AS_THEY_ARE), classes=None)
        assert notice.startswith(self.ORDER)
        (notice,) = told(corrupted(images=str(root / "day"), domains=["fog"]), classes=None)
        assert notice.startswith(self.ORDER)

    @pytest.mark.parametrize("name", ["unknown", "Unlabeled"])
    def test_a_folder_of_images_without_labels_is_named(self, root, name):
        for domain in ("day", "night"):
            image(root / domain / name / "0.png")
        first, _ = told(image_folder(root=str(root), **AS_THEY_ARE), classes=None)
        assert first.startswith(f"the folder {name} is taken for a class: if its images have no labels, move it away")

    def test_a_source_of_other_folders_is_refused(self, root, tmp_path):
        shutil.copytree(root / "day", tmp_path / "source")
        image(tmp_path / "source/aspen/0.png")
        with pytest.raises(ValueError, match=r"\(aspen only in one of them\).*: list the classes in dataset\.classes"):
            corrupted(images=str(root / "day"), source_images=str(tmp_path / "source"), domains=["fog"])


def words_of(folder, classes):
    """Words for a tiny ViT with so many classes."""
    kwargs = f"img_size: 16, patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2, num_classes: {classes}"
    (folder / "vit.yaml").write_text(f"{{architecture: vit_tiny_patch16_224, kwargs: {{{kwargs}}}}}")
    network = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=classes
    )
    save_file(network.state_dict(), folder / "vit.safetensors")
    return [
        "model=local", f"model.checkpoint={folder}/vit.safetensors", f"model.config={folder}/vit.yaml", "method=source",
        "setting=csc", "setting.batch_size=4", "trainer=cpu",
    ]  # fmt: skip


def folder_words(root, *more):
    own = [f"dataset.root={root}", "dataset.image_size=null", "dataset.resize=null"]
    return ["dataset=image_folder", *own, *more]


class TestHeadsOfOtherClasses:
    @pytest.mark.parametrize("classes", [2, 4, 1000])
    def test_than_the_folders_are_refused(self, root, tmp_path, classes):
        said = f"^image_folder has 3 classes \\(apple, birch, cobalt\\), but model=local has {classes}: choose"
        with pytest.raises(ConfigError, match=said):
            Run(compose_run([*words_of(tmp_path, classes), *folder_words(root)]))

    def test_than_listed_are_refused(self, root, listed, tmp_path):
        Path(listed).write_text("cobalt\nbirch\napple\ndusk\n")
        Run(compose_run([*words_of(tmp_path, 4), *folder_words(root, f"dataset.classes={listed}")]))
        for classes in (3, 5):
            with pytest.raises(ConfigError, match=f"has 4 classes .*, but model=local has {classes}: choose"):
                Run(compose_run([*words_of(tmp_path, classes), *folder_words(root, f"dataset.classes={listed}")]))

    def test_than_a_folder_that_is_corrupted_are_refused(self, root, tmp_path):
        words = ["dataset=corrupted", f"dataset.images={root}/day", "dataset.domains=[fog]"]
        with pytest.raises(ConfigError, match=r"^corrupted has 3 classes"):
            Run(compose_run([*words_of(tmp_path, 5), *words]))

    @pytest.mark.parametrize(("dataset", "known"), [("shapes_c", 10), ("scenes_c", 20)])
    def test_than_fixed_are_refused(self, tmp_path, dataset, known):
        words = [f"dataset={dataset}", "dataset.num_images=4", "dataset.domains=[fog]"]
        for classes in (known - 1, known + 1):
            with pytest.raises(ConfigError, match=f"^{dataset} has {known} classes, but model=local has {classes}"):
                Run(compose_run([*words_of(tmp_path, classes), *words]))

    def test_than_cifar_has_are_refused_packed_or_not(self, tmp_path):
        np.save(tmp_path / "labels.npy", np.tile(np.arange(10), 5))
        np.save(tmp_path / "fog.npy", np.zeros((50, 32, 32, 3), dtype=np.uint8))
        pack(cifar10_c(root=str(tmp_path), domains=["fog"]), tmp_path / "packed", QUIET)
        own = ["dataset=cifar10_c", f"dataset.root={tmp_path}", "dataset.domains=[fog]"]
        for words in (own, ["dataset=packed", f"dataset.root={tmp_path}/packed"]):
            with pytest.raises(ConfigError, match=r"^cifar10_c has 10 classes, but model=local has 100"):
                Run(compose_run([*words_of(tmp_path, 100), *words]))

    @pytest.mark.parametrize("subset", ["imagenet", "imagenet_subset"])
    def test_than_imagenet_has_are_refused_for_some_of_its_classes_as_well(self, tmp_path, subset):
        image(tmp_path / "r/day/n01443537/0.png")
        with pytest.raises(ConfigError, match=r"^image_folder has 1000 classes, but model=local has 1001"):
            Run(compose_run([*words_of(tmp_path, 1001), *folder_words(tmp_path / "r", f"dataset.classes={subset}")]))

    def test_than_labels_of_arrays_are_told(self, tmp_path):
        np.savez(tmp_path / "x.npz", images=np.zeros((3, 16, 16, 3), np.uint8), labels=np.arange(3))
        words = ["dataset=corrupted", f"dataset.images={tmp_path}/x.npz", "dataset.domains=[fog]"]
        run = Run(compose_run([*words_of(tmp_path, 5), *words]))
        (notice,) = model_notices(run.domains, run.backbone)
        assert notice.told.startswith("the highest label is 2, but the model has 5 classes")
        run = Run(compose_run([*words_of(tmp_path, 3), *words]))
        assert list(model_notices(run.domains, run.backbone)) == []
        with pytest.raises(ConfigError, match="the data has a label 2, but the model has 2 classes"):
            Run(compose_run([*words_of(tmp_path, 2), *words]))

    def test_of_a_source_of_cifar_are_refused(self, root, tmp_path):
        np.save(tmp_path / "labels.npy", np.tile(np.arange(10), 5))
        np.save(tmp_path / "fog.npy", np.zeros((50, 32, 32, 3), dtype=np.uint8))
        with pytest.raises(ValueError, match="holds images of 3 classes, and cifar10_c has 10"):
            cifar10_c(root=str(tmp_path), domains=["fog"], source_images=str(root / "day"))


class TestErrors:
    def test_are_told_from_close_to_guessing_on(self):
        data, model = shapes_c(num_images=10, domains=["fog"]), load_model("shapes_vit")
        assert error_notice(85.4, data, {}, model) is None
        told = error_notice(85.6, data, {}, model)
        assert told.startswith(
            "guessing gives 90.0 %: do the labels and the model match? Check the order of the model's"
        )
        assert "If the error of method=source is low, the adaptation failed" not in told
        assert "If the error of method=source is low, the adaptation failed" in error_notice(
            99, data, {}, model, "tent"
        )

    @pytest.fixture
    def moved(self, tmp_path):
        """Shapes in class folders whose names are in another order than the labels."""
        for i in range(20):
            file = tmp_path / "shapes/day" / f"x{(label(i) + 5) % 10}" / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(render("test", i, 64)).save(file)
        (tmp_path / "shapes.txt").write_text("\n".join(f"x{(k + 5) % 10}" for k in range(10)))
        words = [*folder_words(tmp_path / "shapes"), "setting=csc", "setting.batch_size=10", "trainer=cpu"]
        return words, f"dataset.classes={tmp_path}/shapes.txt"

    def test_of_labels_in_another_order_are_told_before_and_after_and_kept(self, moved, tmp_path):
        words, remedy = moved
        done = invoke("bench", "methods=[source,tent]", *words, home=tmp_path)
        said = " ".join(done.output.split())
        order, source = (
            "note: labels follow the names of the class folders (x0 = 0,",
            "note: the error of source is 100.0 %",
        )
        assert said.index(order) < said.index(source) < said.index("run 2 of 2")
        assert said.count(order) == said.count(source) == 1
        results = {r["method"]: r for r in map(json.loads, (p.read_text() for p in tmp_path.rglob("result.json")))}
        assert [notice.split(" (")[0] for notice in results["source"]["notices"]] == [
            "labels follow the names of the class folders",
            "the error of source is 100.0 %, and guessing gives 90.0 %: do the labels and the model match? Labels "
            "follow the names of the class folders; list the classes in the model's order in dataset.classes",
        ]
        assert "guessing gives 90.0 %" in results["tent"]["notices"][-1]
        again = " ".join(invoke("run", "method=source", *words, home=tmp_path).output.split())
        assert "already finished" in again
        assert "Note: the error of source is 100.0 %, and guessing gives 90.0 %" in again
        fixed = " ".join(invoke("run", "method=source", *words, remedy, home=tmp_path).output.split())
        assert "guessing gives" not in fixed
        assert "labels follow" not in fixed
