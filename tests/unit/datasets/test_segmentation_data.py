"""Cityscapes, ACDC and your own folders: the order of images, and their labels."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tta_bench.datasets.files.label_maps import ColorLabels, NumberLabels, read_class_list
from tta_bench.datasets.segmentation.driving import CLASSES, acdc, cityscapes
from tta_bench.datasets.segmentation.folder import segmentation_folder


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


def grey(level, height=8, width=16):
    return np.full((height, width, 3), level)


@pytest.fixture
def acdc_root(tmp_path):
    """Two images per condition and split, made in another order than that of their names."""
    root = tmp_path / "ACDC"
    for c, condition in enumerate(("fog", "night", "rain", "snow")):
        for s, split in enumerate(("train", "val")):
            for i, (drive, frame) in enumerate((("GP020607", "000002"), ("GOPR0475", "000041"))):
                name = f"{condition}/{split}/{drive}/{drive}_frame_{frame}"
                save(root / f"rgb_anon/{name}_rgb_anon.png", grey(40 * c + 10 * s + i))
                save(root / f"gt/{name}_gt_labelTrainIds.png", [[c, s, i, 255] * 4] * 8)
                save(root / f"gt/{name}_gt_labelColor.png", grey(0))
            save(root / f"rgb_anon/{condition}/{split}_ref/GP02/GP02_frame_000001_rgb_anon.png", grey(255))
    return root


@pytest.fixture
def cityscapes_root(tmp_path):
    root = tmp_path / "cityscapes"
    for split, cities in (("train", ("zurich", "aachen")), ("val", ("munster", "lindau")), ("test", ("berlin",))):
        for i, city in enumerate(cities):
            name = f"{split}/{city}/{city}_000000_000019"
            save(root / f"leftImg8bit/{name}_leftImg8bit.png", grey(100 + i))
            save(root / f"gtFine/{name}_gtFine_labelIds.png", [[7, 8, 33, i, 0, 4] * 2 + [26] * 4] * 8)
            save(root / f"gtFine/{name}_gtFine_labelTrainIds.png", [[0, 1, 18, 255, 255, 255] * 2 + [13] * 4] * 8)
    return root


class TestACDC:
    def test_shows_four_conditions_in_the_order_of_names(self, acdc_root):
        data = acdc(root=str(acdc_root), image_height=None)
        assert (data.name, data.domains, data.classes) == ("acdc", ("fog", "night", "rain", "snow"), CLASSES)
        assert [[data.load(d, i)[0, 0, 0] for i in (0, 1)] for d in data.domains] == [
            [40 * c + 1, 40 * c] for c in range(4)
        ]
        for c, domain in enumerate(data.domains):
            assert data.labels(domain).tolist() == [0, 0]
            assert [data.label_map(domain, i)[0, :4].tolist() for i in (0, 1)] == [[c, 0, 1, 255], [c, 0, 0, 255]]

    @pytest.mark.parametrize(("domains", "names"), [("night", ("night",)), (["snow", "fog"], ("snow", "fog"))])
    def test_conditions_and_the_split_may_be_chosen(self, acdc_root, domains, names):
        data = acdc(root=str(acdc_root), split="val", domains=domains, image_height=None, num_images=1)
        assert data.domains == names
        assert [len(data.labels(d)) for d in names] == [1] * len(names)
        assert data.label_map(names[0], 0)[0, 1] == 1

    def test_images_are_halved_and_labels_are_not(self, acdc_root):
        data = acdc(root=str(acdc_root), image_height=4)
        assert (data.load("fog", 0).shape, data.label_map("fog", 0).shape) == ((4, 8, 3), (8, 16))
        assert acdc(root=str(acdc_root)).describe()["image_height"] == 540

    def test_halving_takes_the_mean_of_four_pixels(self, acdc_root):
        path = next((acdc_root / "rgb_anon/fog/train/GOPR0475").glob("*"))
        pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 3))
        save(path, pixels)
        means = pixels.reshape(4, 2, 8, 2, 3).mean(axis=(1, 3))
        assert np.abs(acdc(root=str(acdc_root), image_height=4).load("fog", 0) - means).max() <= 0.5

    def test_the_source_is_what_cityscapes_trains_on(self, acdc_root, cityscapes_root):
        source = acdc(root=str(acdc_root), image_height=4, source_images=str(cityscapes_root)).source_images()
        assert [source[i][0, 0, 0] for i in range(len(source))] == [101, 100]
        assert source[0].shape == (4, 8, 3)
        assert source.label_map(0)[0, :4].tolist() == [0, 1, 18, 255]
        with pytest.raises(ValueError, match=r"^acdc has no source images: set dataset\.source_images$"):
            acdc(root=str(acdc_root)).source_images()

    def test_corruptions_show_the_images_of_all_conditions(self, acdc_root):
        settings = {"root": str(acdc_root), "image_height": None, "domains": ["rain", "fog"]}
        data = acdc(**settings, corruptions=["brightness/1", "clean"])
        assert data.domains == ("brightness/1", "clean")
        assert [data.load("clean", i)[0, 0, 0] for i in range(4)] == [81, 80, 1, 0]
        assert [data.label_map("clean", i)[0, 0] for i in range(4)] == [2, 2, 0, 0]
        assert data.load("brightness/1", 1)[0, 0, 0] > 81
        assert data.describe()["classes"] == list(CLASSES)

    def test_the_digest_follows_the_labels(self, acdc_root):
        before = acdc(root=str(acdc_root)).describe()
        save(next((acdc_root / "gt/snow/train/GP020607").glob("*TrainIds*")), [[3] * 16] * 8)
        after = acdc(root=str(acdc_root)).describe()
        assert before["digest"] == after["digest"]
        assert {d for d in after["label_digests"] if after["label_digests"][d] != before["label_digests"][d]} == {
            "snow"
        }

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"split": "test"}, "the labels of ACDC's test images are not published"),
            ({"domains": "clear"}, "ACDC has no condition 'clear'; it has fog, night, rain, snow"),
            ({"num_images": 3}, r"dataset\.num_images must be in 1\.\.2, the number of images of fog; got 3"),
            ({"corruptions": "fogg"}, "there is no corruption 'fogg'; did you mean 'fog'"),
        ],
    )
    def test_wrong_arguments_are_named(self, acdc_root, settings, message):
        with pytest.raises(ValueError, match=message):
            acdc(root=str(acdc_root), **settings)

    def test_missing_files_are_named(self, acdc_root):
        labels = next((acdc_root / "gt/rain/train/GP020607").glob("*TrainIds*"))
        labels.unlink()
        with pytest.raises(FileNotFoundError, match=f"_rgb_anon.png has no labels: there is no file {labels}"):
            acdc(root=str(acdc_root))
        with pytest.raises(FileNotFoundError, match=r"gt holds no rgb_anon/fog/\S+; it has: fog, night, rain, snow"):
            acdc(root=str(acdc_root / "gt"))
        with pytest.raises(FileNotFoundError, match=r"^dataset\.root=.*nowhere does not exist$"):
            acdc(root=str(acdc_root / "nowhere"))


class TestCityscapes:
    def test_is_shown_under_corruptions_with_its_own_training_images_as_the_source(self, cityscapes_root):
        data = cityscapes(root=str(cityscapes_root), domains=["clean", "fog/3"], image_height=None)
        assert (data.name, data.domains) == ("cityscapes", ("clean", "fog/3"))
        assert [data.load("clean", i)[0, 0, 0] for i in (0, 1)] == [101, 100]  # lindau, munster
        assert data.label_map("fog/3", 0)[0, :6].tolist() == [0, 1, 18, 255, 255, 255]
        assert [data.source_images()[i][0, 0, 0] for i in (0, 1)] == [101, 100]  # aachen, zurich
        assert cityscapes(root=str(cityscapes_root)).domains == ("snow", "frost", "fog", "brightness")

    def test_the_files_of_the_download_are_read_as_the_training_ids_made_of_them(self, cityscapes_root):
        made = cityscapes(root=str(cityscapes_root), domains=["clean"]).label_map("clean", 0)
        for path in cityscapes_root.rglob("*labelTrainIds.png"):
            path.unlink()
        np.testing.assert_array_equal(
            cityscapes(root=str(cityscapes_root), domains="clean").label_map("clean", 0), made
        )

    def test_every_label_id_has_its_published_training_id(self, cityscapes_root):
        names = {
            7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
            20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car",
            27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
        }  # fmt: skip
        ids = [
            255, 255, 255, 255, 255, 255, 255, 0, 1, 255, 255, 2, 3, 4, 255, 255, 255, 5, 255, 6, 7, 8, 9, 10, 11, 12,
            13, 14, 15, 255, 255, 16, 17, 18,
        ]  # fmt: skip
        for path in cityscapes_root.rglob("*labelTrainIds.png"):
            path.unlink()
        for path in cityscapes_root.rglob("*labelIds.png"):
            save(path, np.resize(np.arange(34), (8, 16)))
        data = cityscapes(root=str(cityscapes_root), domains="clean", image_height=None)
        assert data.label_map("clean", 0).flatten()[:34].tolist() == ids
        assert {number: CLASSES[ids[number]] for number in names} == names

    def test_its_test_labels_are_not_published(self, cityscapes_root):
        with pytest.raises(ValueError, match="Cityscapes' test images are not published"):
            cityscapes(root=str(cityscapes_root), split="test")


def list_of(tmp_path, text):
    (tmp_path / "classes.txt").write_text(text)
    return tmp_path / "classes.txt"


COLORS = "# CamVid's\n128 128 128\tSky\n64 0 128 Car\n\n192 0 128 Car\n0 0 0 Void\n64 64 0 Road marking\n"


class TestLists:
    def test_of_names_number_the_classes(self, tmp_path):
        names, read = read_class_list(list_of(tmp_path, "sky\nvoid\nroad\nsky\n"))
        save(tmp_path / "x.png", [[0, 1, 2, 3, 255]])
        assert names == ("sky", "road")
        assert read(tmp_path / "x.png").tolist() == [[0, 255, 1, 0, 255]]

    def test_of_colours_give_each_its_class(self, tmp_path):
        names, read = read_class_list(list_of(tmp_path, COLORS))
        save(tmp_path / "x.png", [[(64, 0, 128), (192, 0, 128), (0, 0, 0), (128, 128, 128), (64, 64, 0)]])
        assert names == ("Sky", "Car", "Road marking")
        labels = read(tmp_path / "x.png")
        assert (labels.tolist(), labels.dtype) == ([[1, 1, 255, 0, 2]], np.uint8)

    def test_read_a_palette_as_numbers_or_as_colours(self, tmp_path):
        image = Image.fromarray(np.array([[0, 1, 1]], dtype=np.uint8), "P")
        image.putpalette([128, 128, 128, 64, 0, 128])
        image.save(tmp_path / "x.png")
        assert read_class_list(list_of(tmp_path, "a\nb")).read(tmp_path / "x.png").tolist() == [[0, 1, 1]]
        assert read_class_list(list_of(tmp_path, COLORS)).read(tmp_path / "x.png").tolist() == [[0, 1, 1]]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1 2 3 sky\nroad\n", r"'road' has no colour \(three numbers"),
            ("1 2 3 sky\n1 2 300 road\n", "'1 2 300 road' has no colour"),
            ("Void\n", "names no classes"),
            ("", "names no classes"),
        ],
    )
    def test_that_make_no_sense_are_refused(self, tmp_path, text, message):
        with pytest.raises(ValueError, match=message):
            read_class_list(list_of(tmp_path, text))

    def test_that_are_not_there_are_named(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no list of classes at .*nowhere\.txt"):
            read_class_list(tmp_path / "nowhere.txt")


class TestLabelFiles:
    def test_with_a_number_that_is_not_a_class_are_named(self, tmp_path):
        save(tmp_path / "x.png", [[0, 1, 7]])
        with pytest.raises(ValueError, match=r"x\.png holds the label 7, which is neither a class nor 255"):
            NumberLabels({0: 0, 1: 1})(tmp_path / "x.png")
        for number, alike in ((300, 44), (256, 0), (257, 1)):  # the same modulo 256
            Image.fromarray(np.array([[0, number]], dtype=np.uint16)).save(tmp_path / "y.png")
            with pytest.raises(ValueError, match=rf"y\.png holds the label {number}"):
                NumberLabels({0: 0, alike: 1})(tmp_path / "y.png")

    def test_with_colours_where_numbers_are_expected_are_named(self, tmp_path):
        save(tmp_path / "x.png", grey(1))
        with pytest.raises(ValueError, match=r"x\.png is a colour image"):
            NumberLabels({1: 0})(tmp_path / "x.png")

    @pytest.mark.parametrize("color", [(1, 2, 4), (0, 0, 0), (255, 255, 255)])
    def test_with_an_unknown_colour_are_named(self, tmp_path, color):
        save(tmp_path / "x.png", [[(1, 2, 3), (1, 2, 3)], [(1, 2, 3), color]])
        with pytest.raises(ValueError, match=r"x\.png has the colour {} {} {} in row 1, column 1".format(*color)):
            ColorLabels({(1, 2, 3): 0, (9, 9, 9): 1})(tmp_path / "x.png")

    def test_that_are_cut_off_are_named(self, tmp_path):
        save(tmp_path / "x.png", np.random.default_rng(0).integers(0, 2, (64, 64)))
        whole = (tmp_path / "x.png").read_bytes()
        (tmp_path / "x.png").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=r"x\.png is not a readable image"):
            NumberLabels({0: 0, 1: 1})(tmp_path / "x.png")


@pytest.fixture
def folder(tmp_path):
    """As CamVid: images and labels under nearly the same names, in a folder per drive."""
    for d, drive in enumerate(("b_dusk", "a_day")):
        for i in (1, 0):
            save(tmp_path / f"images/{drive}/{i}.png", grey(100 * d + i))
            save(tmp_path / f"labels/{drive}/{i}_L.png", [[d, i] * 8] * 8)
    list_of(tmp_path, "road\nsky\n")
    return tmp_path


def opened(folder, **settings):
    paths = {"images": str(folder / "images"), "labels": str(folder / "labels")}
    return segmentation_folder(**{**paths, "classes": str(folder / "classes.txt"), "label_suffix": "_L", **settings})


class TestFolders:
    def test_are_domains_in_the_order_of_their_names(self, folder):
        data = opened(folder)
        assert (data.name, data.domains, data.classes) == ("segmentation_folder", ("a_day", "b_dusk"), ("road", "sky"))
        assert [[data.load(d, i)[0, 0, 0] for i in (0, 1)] for d in data.domains] == [[100, 101], [0, 1]]
        assert [data.label_map(d, 1)[0, :2].tolist() for d in data.domains] == [[1, 1], [0, 1]]

    def test_one_of_them_may_be_the_source(self, folder):
        data = opened(folder, source_domain="a_day", image_height=4)
        assert data.domains == ("b_dusk",)
        assert [data.source_images()[i][0, 0, 0] for i in (0, 1)] == [100, 101]
        assert (data.source_images()[0].shape, data.source_images().label_map(0).shape) == ((4, 8, 3), (8, 16))

    def test_a_folder_without_folders_is_one_domain(self, folder):
        data = opened(folder, images=str(folder / "images/b_dusk"), labels=str(folder / "labels/b_dusk"))
        assert data.domains == ("b_dusk",)
        assert data.labels("b_dusk").tolist() == [0, 0]

    def test_a_table_says_which_image_is_of_which_domain(self, folder):
        rows = ["b_dusk/1.png,late", "a_day/1.png,early", "b_dusk/0.png,early"]
        (folder / "t.csv").write_text("\n".join(["image,domain", *rows]))
        data = opened(folder, table=str(folder / "t.csv"))
        assert data.domains == ("late", "early")
        assert [data.load("early", i)[0, 0, 0] for i in (0, 1)] == [101, 0]
        assert opened(folder, table=str(folder / "t.csv"), source_domain="late").domains == ("early",)

    def test_corruptions_make_the_domains(self, folder):
        data = opened(folder, domains="a_day", source_domain="b_dusk", corruptions="weather", severity=2)
        assert data.domains == ("snow", "frost", "fog", "brightness")
        assert (data.severity, len(data.labels("fog"))) == (2, 2)
        assert data.label_map("snow", 0).tolist() == opened(folder).label_map("a_day", 0).tolist()

    def test_a_label_file_of_another_size_is_named(self, folder):
        save(folder / "labels/a_day/0_L.png", [[0, 1]] * 8)
        with pytest.raises(ValueError, match=r"0_L\.png has 2x8 pixels, but its image \S+0\.png 16x8"):
            opened(folder).label_map("a_day", 0)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"domains": ["c"]}, "images has no domain 'c'; it has a_day, b_dusk"),
            ({"source_domain": "c"}, "images has no domain 'c'; it has a_day, b_dusk"),
            ({"images": "{}/images/a_day", "source_domain": "a_day"}, "no domains other than the source domain"),
            ({"num_images": 3}, r"dataset\.num_images must be in 1\.\.2, the number of images of a_day; got 3"),
        ],
    )
    def test_wrong_domains_are_named(self, folder, settings, message):
        given = {key: value.format(folder) if isinstance(value, str) else value for key, value in settings.items()}
        with pytest.raises(ValueError, match=message):
            opened(folder, **given)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("file,domain\na,b", "must have the columns image and domain .* but has: 'file', 'domain'"),
            ("image;domain\na;b", "separated by commas, but has: 'image;domain'"),
            ("image,domain\na", "has 2 columns, but 1 values in 'a'"),
            ("", "is empty"),
            ("image,domain\n", "lists no images"),
            ("image,domain\nc.png,x", "lists c.png, which does not exist in"),
        ],
    )
    def test_wrong_tables_are_named(self, folder, text, message):
        (folder / "t.csv").write_text(text)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            opened(folder, table=str(folder / "t.csv"))

    def test_a_table_and_a_list_of_classes_may_begin_with_a_byte_order_mark(self, folder):
        lines = "image,domain \r\na_day/1.png, x\r\n"
        found = sorted((folder / "images").glob("*/*.png"))[0].relative_to(folder / "images").as_posix()
        (folder / "t.csv").write_bytes(b"\xef\xbb\xbf" + lines.replace("a_day/1.png", found).encode())
        assert opened(folder, table=str(folder / "t.csv")).domains == ("x",)

    @pytest.mark.parametrize("key", ["images", "labels", "classes", "table"])
    def test_paths_that_lead_nowhere_are_named(self, folder, key):
        with pytest.raises(FileNotFoundError, match=rf"^dataset\.{key}={folder}/nowhere does not exist$"):
            opened(folder, **{key: str(folder / "nowhere")})

    def test_a_folder_without_images_is_named(self, folder):
        (folder / "images/c").mkdir()
        with pytest.raises(ValueError, match="images/c holds no images"):
            opened(folder)
