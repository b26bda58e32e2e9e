"""Domains generated from clean images: what determines an image, and what results say about it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tta_bench.datasets.classification.corrupted import CorruptedDomains
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.datasets.corruptions import COMMON, GROUPS, VALIDATION, corrupt
from tta_bench.datasets.corruptions.names import domain_names
from tta_bench.datasets.procedural.shapes import ShapesImages

CLEAN = ShapesImages("test", 10)


def made(domains=("fog", "gaussian_noise", "clean"), **settings):
    return CorruptedDomains("d", CLEAN, None, domains=domains, **settings)


def test_an_image_depends_on_seed_domain_and_number_only():
    one, other = made(), made(("gaussian_noise", "clean", "fog", "snow"))
    order = [(domain, i) for domain in ("fog", "gaussian_noise") for i in range(4)]
    forwards = {key: one.load(*key) for key in order}
    backwards = {key: other.load(*key) for key in reversed(order)}
    for key in order:
        np.testing.assert_array_equal(forwards[key], backwards[key])
        np.testing.assert_array_equal(forwards[key], one.load(*key))


@pytest.mark.parametrize(
    ("settings", "domain", "index"),
    [({"seed": 1}, "gaussian_noise", 0), ({}, "gaussian_noise/5", 0), ({}, "gaussian_noise", 1)],
)
def test_another_seed_domain_or_number_has_other_random_numbers(settings, domain, index):
    flat = np.full((32, 32, 3), 128, dtype=np.uint8)
    same = [flat, flat]

    class Flat(list):
        labels = np.zeros(2, dtype=np.int64)

        def describe(self):
            return "flat"

    noise = ("gaussian_noise", "gaussian_noise/5")  # the same corruption and severity
    first = CorruptedDomains("d", Flat(same), None, domains=noise).load("gaussian_noise", 0)
    second = CorruptedDomains("d", Flat(same), None, domains=noise, **settings).load(domain, index)
    assert (first != second).mean() > 0.5


def test_a_domain_may_name_its_severity():
    data = made(("gaussian_noise", "gaussian_noise/1", "gaussian_noise/3"), severity=5)
    assert data.domains == ("gaussian_noise", "gaussian_noise/1", "gaussian_noise/3")
    distances = [np.abs(data.load(f"gaussian_noise{s}", 0).astype(int) - CLEAN[0]).mean() for s in ("/1", "/3", "")]
    assert distances == sorted(distances)
    assert distances[0] * 2 < distances[2]


def test_the_severity_of_the_data_set_holds_for_the_other_domains():
    three = made(("contrast", "contrast/5"), severity=3)
    rng = np.random.default_rng(0)  # contrast draws nothing
    np.testing.assert_array_equal(three.load("contrast", 2), corrupt(CLEAN[2], "contrast", 3, rng=rng))
    np.testing.assert_array_equal(three.load("contrast/5", 2), corrupt(CLEAN[2], "contrast", 5, rng=rng))


def test_the_clean_domain_shows_the_clean_images():
    np.testing.assert_array_equal(made().load("clean", 3), CLEAN[3])


def test_every_domain_has_the_same_labels():
    data = made(num_images=4)
    for domain in data.domains:
        assert data.labels(domain).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("domains", "names"),
    [
        ("common", COMMON),
        ("validation", VALIDATION),
        ("noise", GROUPS["noise"]),
        ("fog", ("fog",)),
        (["fog"], ("fog",)),
    ],
)
def test_domains_are_a_set_a_group_or_names(domains, names):
    assert made(domains).domains == names


def test_a_list_of_domains_joins_sets_groups_and_corruptions():
    assert domain_names(["noise", "spatter", "shot_noise"]) == (*domain_names("noise"), "spatter")
    assert domain_names(["common", "fog"]) == domain_names("common")
    assert domain_names(["fog", "common"])[:2] == ("fog", "gaussian_noise")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"domains": ["fogg"]}, "'fogg'; did you mean 'fog'"),
        ({"domains": "comon"}, "'comon'; did you mean 'common'"),
        ({"domains": []}, r"dataset\.domains is empty"),
        ({"domains": ["fog/0"]}, "'fog/0' is not"),
        ({"domains": ["fog/x"]}, "'fog/x' is not"),
        ({"domains": ["fog/"]}, "'fog/' is not"),
        ({"domains": ["clean/2"]}, "'clean/2' is not"),
        ({"severity": 0}, r"dataset\.severity must be 1, 2, 3, 4 or 5, got 0"),
        ({"num_images": 11}, r"dataset\.num_images must be in 1\.\.10.* got 11"),
        ({"num_images": 0}, r"dataset\.num_images must be in 1\.\.10.* got 0"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        made(**settings)


def test_a_description_tells_apart_what_has_other_images():
    described = [made().describe(), made(severity=3).describe(), made(seed=1).describe(), made(num_images=4).describe()]
    described += [made(family="cifar").describe(), shapes_c(num_images=10, domains=["fog"]).describe()]
    other = CorruptedDomains("d", ShapesImages("validation", 10), None, domains=["fog"])
    described.append(other.describe())
    assert len({str(d) for d in described}) == len(described) - 1  # shapes_c has the same images as the first
    assert described[5] == described[0]


@pytest.mark.parametrize("domain", ["frost", "frost/3"])
def test_own_textures_are_used_for_every_frost_and_named(tmp_path, domain):
    Image.fromarray(np.full((128, 128, 3), 255, dtype=np.uint8)).save(tmp_path / "frost1.png")
    generated, own = made([domain]), made([domain], frost_folder=str(tmp_path))
    assert (generated.load(domain, 0) != own.load(domain, 0)).mean() > 0.2
    assert generated.describe()["frost_textures"] == "generated"
    assert own.describe()["frost_textures"].startswith("own (1 files, ")


class TestShapesC:
    def test_has_256_images_under_the_15_common_corruptions(self):
        data = shapes_c()
        assert (data.name, data.domains, len(data.labels("fog"))) == ("shapes_c", COMMON, 256)

    def test_its_source_images_are_not_those_of_the_stream(self):
        data = shapes_c(num_images=20)
        source = data.source_images()
        assert len(source) == 4000
        assert not {source[i].tobytes() for i in range(20)} & {data.clean[i].tobytes() for i in range(20)}

    def test_it_has_as_many_source_images_as_asked_for(self):
        assert len(shapes_c(num_images=1, num_source_images=10_000).source_images()) == 10_000
        with pytest.raises(ValueError, match=r"dataset\.num_source_images must be at least 1, got 0"):
            shapes_c(num_source_images=0)

    def test_its_validation_split_shows_other_images(self):
        test, validation = (shapes_c(num_images=3, split=s, domains=["clean"]) for s in ("test", "validation"))
        assert all((test.load("clean", i) != validation.load("clean", i)).any() for i in range(3))

    @pytest.mark.parametrize("split", ["train", "source", "val"])
    def test_other_splits_are_refused(self, split):
        with pytest.raises(ValueError, match=r"dataset\.split must be test or validation"):
            shapes_c(split=split)
