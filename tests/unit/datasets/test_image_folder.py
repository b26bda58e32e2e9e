"""Folders of folders as domains, with labels from names."""

from __future__ import annotations

import pytest
from PIL import Image

from tta_bench.datasets.classification.image_folder import image_folder


def grey(path, level, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level,) * 3).save(path)


@pytest.fixture
def root(tmp_path):
    """As PACS: the same classes in every domain, made in another order than that of their names."""
    for d, domain in enumerate(("sketch", "photo", "cartoon")):
        for c, name in enumerate(("horse", "dog")):
            grey(tmp_path / "pacs" / domain / name / "0.png", 10 * d + c)
    return tmp_path / "pacs"


def opened(root, **settings):
    return image_folder(root=str(root), **{"image_size": None, "resize": None, **settings})


def test_folders_are_domains_in_the_order_of_their_names(root):
    data = opened(root)
    assert (data.name, data.domains) == ("image_folder", ("cartoon", "photo", "sketch"))
    assert [[data.load(d, i)[0, 0, 0] for i in range(2)] for d in data.domains] == [[21, 20], [11, 10], [1, 0]]
    assert all(data.labels(d).tolist() == [0, 1] for d in data.domains)
    assert data.describe()["classes"] == 2


@pytest.mark.parametrize(("domains", "names"), [("photo", ("photo",)), (["sketch", "photo"], ("sketch", "photo"))])
def test_domains_may_be_chosen(root, domains, names):
    assert opened(root, domains=domains).domains == names


def test_the_source_is_no_domain_of_the_stream_unless_it_is_named(root):
    data = opened(root, source_images=str(root / "photo"))
    assert data.domains == ("cartoon", "sketch")
    assert [data.source_images()[i][0, 0, 0] for i in range(2)] == [11, 10]
    assert opened(root, source_images=str(root / "photo"), domains=["photo"]).domains == ("photo",)


def test_images_are_cut_to_224_pixels_by_default(root):
    grey(root / "photo" / "dog" / "0.png", 5, size=(300, 260))
    assert image_folder(root=str(root), domains="photo").load("photo", 0).shape == (224, 224, 3)


class TestClasses:
    def test_a_class_that_one_domain_lacks_is_named(self, root):
        (root / "photo" / "horse" / "0.png").unlink()
        (root / "photo" / "horse").rmdir()
        with pytest.raises(ValueError, match=r"/photo lacks the class horse, .* dataset\.classes"):
            opened(root)

    def test_a_list_gives_the_labels_and_lets_classes_be_missing(self, root, tmp_path):
        (root / "photo" / "horse" / "0.png").unlink()
        grey(root / "photo" / "not_listed" / "0.png", 99)
        (root / "photo" / "cat").mkdir()
        (tmp_path / "classes.txt").write_text("horse\ncat\ndog\n")
        data = opened(root, classes=str(tmp_path / "classes.txt"))
        assert {d: data.labels(d).tolist() for d in data.domains} == {
            "cartoon": [2, 0], "photo": [2], "sketch": [2, 0],
        }  # fmt: skip

    def test_imagenets_relatives_share_the_1000_labels(self, tmp_path):
        names = {
            "imagenet-r": ("n01443537/art_0.jpg", "n15075141/art_1.jpg"),
            "imagenet-a": ("n02096051/0.000061_x.jpg",),
            "imagenetv2-matched-frequency-format-val": ("10/a.jpeg", "2/b.jpeg", "0/c.jpeg"),
            "sketch": ("n01440764/sketch_0.JPEG",),
        }
        for domain, files in names.items():
            for file in files:
                grey(tmp_path / domain / file, 0)
        (tmp_path / "imagenet-r" / "README.txt").write_text("")
        data = opened(tmp_path, classes="imagenet")
        assert [data.labels(d).tolist() for d in names] == [[1, 999], [191], [0, 10, 2], [0]]

    def test_a_domain_without_any_of_the_classes_is_refused(self, root):
        with pytest.raises(ValueError, match="/cartoon holds no class folders of the given names"):
            opened(root, classes="imagenet")


class TestWhatIsWrong:
    def test_a_domain_that_does_not_exist_is_named_with_those_that_do(self, root):
        with pytest.raises(FileNotFoundError, match="has no domain 'art'; it holds: cartoon, photo, sketch"):
            opened(root, domains=["photo", "art"])

    def test_a_folder_of_images_is_no_domain(self, root):
        grey(root / "loose" / "0.png", 0)
        with pytest.raises(ValueError, match="/loose holds no class folders"):
            opened(root)

    @pytest.mark.parametrize("settings", [{}, {"domains": []}])
    def test_no_domain_at_all(self, tmp_path, settings):
        with pytest.raises(ValueError, match="contains no domain folders"):
            opened(tmp_path, **settings)

    def test_a_missing_root(self):
        with pytest.raises(FileNotFoundError, match=r"^dataset\.root=/nowhere does not exist$"):
            opened("/nowhere")

    def test_damaged_images_are_skipped_on_request(self, root):
        (root / "photo" / "dog" / "1.png").write_bytes(b"<html>")
        assert len(opened(root).labels("photo")) == 3
        data = opened(root, on_bad_image="skip")
        assert data.labels("photo").tolist() == [0, 1]
        assert data.describe()["skipped_images"] == {"number": 1, "first": ["photo/dog/1.png"]}
