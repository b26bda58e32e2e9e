"""The procedural streets of streets_c and their weathers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tta_bench.datasets.procedural.street_scenes import CLASSES, IGNORE, SPLITS, render_scene
from tta_bench.datasets.procedural.street_weather import WEATHER
from tta_bench.datasets.segmentation.streets_c import StreetScenes, cached_scene, streets_c

ROAD, SIDEWALK, BUILDING, POLE, VEGETATION, SKY, PERSON, CAR = range(8)

# Of the images as they were when the weights in the package were trained.
GOLDEN = {
    ("train", "day", 0): "68dcd92c2849dc4a",
    ("source", "day", 3): "37b6c037db99dcd1",
    ("validation", "fog", 5): "522d11778101b8cd",
    ("test", "night", 0): "548ae7296625f93e",
    ("test", "rain", 17): "950597c2959540a6",
    ("test", "snow", 4): "3f664d08b1cf3f3b",
}


def thumbnail(image):
    """16x32 pixels in 16 grey levels: the last bit of a sine or a blur differs between processors."""
    return np.round(image.reshape(16, 8, 32, 8, 3).mean(axis=(1, 3)) / 16).astype(np.uint8)


@pytest.fixture(scope="module")
def scenes():
    return [render_scene("test", i) for i in range(12)]


@pytest.mark.parametrize(("split", "weather", "index"), GOLDEN)
def test_images_are_the_same_as_ever(split, weather, index):
    image = StreetScenes(split, index + 1, weather)[index]
    assert hashlib.sha256(thumbnail(image).tobytes()).hexdigest()[:16] == GOLDEN[split, weather, index]


def test_an_image_does_not_depend_on_what_was_drawn_before():
    data = streets_c(num_images=3)
    first, labels = data.load("rain", 1), data.label_map("rain", 1)
    cached_scene.cache_clear()
    again = streets_c(num_images=3)
    again.load("day", 2)
    np.testing.assert_array_equal(again.load("rain", 1), first)
    np.testing.assert_array_equal(again.label_map("rain", 1), labels)


def test_weathers_show_the_same_streets_in_their_own_way():
    data = streets_c(num_images=2)
    assert (data.name, data.domains, data.classes) == ("streets_c", ("day", "fog", "night", "rain", "snow"), CLASSES)
    images = {domain: data.load(domain, 0) for domain in data.domains}
    assert {(image.shape, image.dtype) for image in images.values()} == {((128, 256, 3), np.dtype(np.uint8))}
    assert len({image.tobytes() for image in images.values()}) == 5
    for domain in data.domains:
        np.testing.assert_array_equal(data.label_map(domain, 0), data.label_map("day", 0))
        assert data.labels(domain).tolist() == [0, 0]


def test_another_seed_is_another_weather_over_the_same_streets():
    one, two = streets_c(num_images=1), streets_c(num_images=1, seed=1)
    assert (one.load("snow", 0) != two.load("snow", 0)).any()
    np.testing.assert_array_equal(one.label_map("snow", 0), two.label_map("snow", 0))
    assert one.describe()["digest"] != two.describe()["digest"]


def test_splits_share_no_street():
    drawn = [render_scene(split, i).labels.tobytes() for split in SPLITS for i in range(3)]
    assert len(set(drawn)) == len(drawn)
    data = streets_c(num_images=1)
    assert "source, day, 400 images" in data.source_images().describe()
    assert (streets_c(split="validation", num_images=1).load("day", 0) != data.load("day", 0)).any()


def test_label_maps_may_be_written_to():
    data = streets_c(num_images=1)
    data.label_map("day", 0)[:] = 3
    assert (data.label_map("day", 0) != 3).any()


class TestAStreet:
    def test_has_every_class_somewhere_and_none_everywhere(self, scenes):
        pixels = np.concatenate([scene.labels.ravel() for scene in scenes])
        shares = np.bincount(pixels, minlength=256) / pixels.size
        assert set(np.unique(pixels)) == {*range(len(CLASSES)), IGNORE}
        assert shares[:8].min() > 0.003
        assert shares[:8].max() < 0.5
        assert sum((scene.labels == PERSON).any() for scene in scenes) >= 10

    def test_has_sky_above_the_horizon_and_ground_below(self, scenes):
        for scene in scenes:
            rows = np.arange(128)[:, None] + 0.5
            assert not (rows > scene.horizon + 4)[(scene.labels == SKY).any(axis=1)].any()
            ground = np.isin(scene.labels, (ROAD, SIDEWALK))
            assert not (rows < scene.horizon)[ground.any(axis=1)].any()

    def test_is_nearer_further_down(self, scenes):
        for scene in scenes:
            road = np.where(scene.labels == ROAD, scene.depth, np.nan)[:, 128]
            road = road[~np.isnan(road)]
            assert (np.diff(road) < 0).all()
            assert np.isinf(scene.depth[scene.labels == SKY]).all()
            assert np.isfinite(scene.depth[scene.labels != SKY]).all()

    def test_ends_in_the_hood_which_does_not_count(self, scenes):
        for scene in scenes:
            assert (scene.labels == IGNORE)[-1].mean() > 0.7
            assert not (scene.labels == IGNORE)[:110].any()

    def test_shines_at_night_from_windows_lamps_and_cars(self, scenes):
        for scene in scenes:
            assert not scene.lights[np.isin(scene.labels, (ROAD, SIDEWALK, PERSON))].any()
        for kind in (BUILDING, POLE, CAR):
            assert max(scene.lights[scene.labels == kind].max(initial=0) for scene in scenes) > 0.5


class TestWeather:
    def shown(self, name, scene):
        return WEATHER[name](scene, np.random.default_rng(0)).clip(0, 1)

    def test_night_is_dark(self, scenes):
        for scene in scenes:
            assert self.shown("night", scene).mean() < 0.5 * self.shown("day", scene).mean()

    def test_fog_hides_what_is_far(self, scenes):
        for scene in scenes:
            counted = scene.labels != IGNORE
            near, far = counted & (scene.depth < 10), counted & (scene.depth > 60) & np.isfinite(scene.depth)
            day, fog = self.shown("day", scene), self.shown("fog", scene)
            assert fog[far].std() < 0.5 * day[far].std()
            assert fog[near].std() > 0.5 * day[near].std()

    def test_rain_is_grey_and_snow_is_white(self, scenes):
        for scene in scenes:
            day, rain, snow = (self.shown(name, scene) for name in ("day", "rain", "snow"))
            assert np.ptp(rain, axis=2).mean() < 0.7 * np.ptp(day, axis=2).mean()
            ground = np.isin(scene.labels, (ROAD, SIDEWALK))
            assert snow[ground].mean() > day[ground].mean() + 0.15


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "train"}, r"dataset\.split must be test or validation, got 'train'"),
        ({"num_images": 0}, r"dataset\.num_images must be at least 1, got 0"),
        ({"domains": "foggy"}, "streets_c has no weather 'foggy'; did you mean 'fog'"),
        ({"domains": []}, r"dataset\.domains is empty"),
    ],
)
def test_wrong_arguments_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        streets_c(**settings)


@pytest.mark.parametrize(("domains", "names"), [("night", ("night",)), (["snow", "day"], ("snow", "day"))])
def test_weathers_may_be_chosen(domains, names):
    assert streets_c(domains=domains, num_images=1).domains == names
