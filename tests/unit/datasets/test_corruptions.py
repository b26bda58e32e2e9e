"""Claims about the corruptions that need no published outputs; those are in tests/golden."""

import hashlib
import inspect

import numpy as np
import pytest
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image as Pillow
from scipy.ndimage import gaussian_filter, zoom
from scipy.stats import ks_2samp

from tta_bench.datasets.corruptions import (
    COMMON,
    CORRUPTIONS,
    FAMILIES,
    GROUPS,
    SEVERITIES,
    VALIDATION,
    corrupt,
    generate_frost_textures,
    load_frost_textures,
    name_frost_textures,
)
from tta_bench.datasets.corruptions.blur import clipped_zoom, gaussian, scatter, streak
from tta_bench.datasets.corruptions.digital import contrast, saturate, smooth_field
from tta_bench.datasets.corruptions.noise import impulse_noise, shot_noise
from tta_bench.datasets.corruptions.weather import brightness, fog, frost, plasma

DETERMINISTIC = {"defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate"}
DETERMINISTIC |= {"pixelate", "jpeg_compression"}
RANDOM = [name for name in CORRUPTIONS if name not in DETERMINISTIC]
UNORDERED = {
    "glass_blur",
    "motion_blur",
    "snow",
    "frost",
    "elastic_transform",
    "spatter",
    "saturate",
    "pixelate",
}
MONOTONE = [name for name in CORRUPTIONS if name not in UNORDERED]
GENERATORS = (np.random.default_rng, np.random.RandomState)


def picture(height=33, width=47, seed=0):
    """A smooth colourful image with some grey, black and white in it."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    image = np.array(Pillow.fromarray(coarse).resize((width, height), Pillow.Resampling.BICUBIC))
    image[: height // 4, : width // 4] = 128
    image[-1, 0], image[-1, -1] = 0, 255
    return image


def any_rng():
    return np.random.default_rng(0)


def test_registry_has_the_15_common_corruptions_in_standard_order_and_4_for_validation():
    order = (
        "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    )
    assert " ".join(COMMON) == order
    assert len(VALIDATION) == 4
    assert set(CORRUPTIONS) == set(COMMON) | set(VALIDATION) == set(SEVERITIES)
    assert len(CORRUPTIONS) == 19
    assert [len(group) for group in GROUPS.values()] == [3, 4, 4, 4]


def test_every_table_has_three_families_of_five_levels_that_fit_the_function():
    for name, families in SEVERITIES.items():
        parameters = [p for p in inspect.signature(CORRUPTIONS[name]).parameters if p != "textures"]
        assert tuple(families) == FAMILIES
        for levels in families.values():
            assert len(levels) == 5
            assert {len(level) for level in levels} == {len(parameters) - 2}


@pytest.mark.parametrize(
    ("family", "digest"),
    [("imagenet", "832d03f0189c7718"), ("cifar", "c37eb362bb27a424"), ("tiny", "bc9483a302ba8b7b")],
)
def test_constants_are_the_published_ones_and_stay_so(family, digest):
    # Golden outputs reach only some of them; these digests are of tables compared with the published scripts.
    table = [(name, [[*map(float, level)] for level in SEVERITIES[name][family]]) for name in sorted(SEVERITIES)]
    assert hashlib.sha256(repr(table).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_output_is_a_new_uint8_array_of_the_same_shape_and_the_input_is_left_alone(name, family):
    for height, width, severity in ((33, 47, 1), (33, 47, 5), (5, 3, 5), (1, 1, 3), (70, 20, 4)):
        image = picture(height, width)
        before = image.copy()
        output = corrupt(image, name, severity, family=family, rng=any_rng())
        assert output.shape == (height, width, 3)
        assert output.dtype == np.uint8
        assert not np.shares_memory(output, image)
        np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_changes_the_picture_at_every_severity_above_1(name):
    for family in FAMILIES:
        for severity in range(2, 6):
            output = corrupt(picture(64, 64), name, severity, family=family, rng=any_rng())
            assert (output != picture(64, 64)).any(), (family, severity)


@pytest.mark.parametrize("make_rng", GENERATORS)
@pytest.mark.parametrize("name", RANDOM)
def test_randomness_comes_from_the_given_generator_alone(name, make_rng):
    state = np.random.get_state()[1].copy()
    first, again, other = (corrupt(picture(), name, 5, rng=make_rng(seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize("name", sorted(DETERMINISTIC))
def test_deterministic_corruptions_draw_nothing(name):
    rng = any_rng()
    corrupt(picture(), name, 3, rng=rng)
    assert rng.random() == any_rng().random()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", MONOTONE)
def test_change_grows_with_severity(name, family):
    image = picture(64, 64)
    change = [
        np.abs(corrupt(image, name, severity, family=family, rng=any_rng()).astype(int) - image).mean()
        for severity in range(1, 6)
    ]
    assert change == sorted(change)
    assert change[4] > change[0]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": "gausian_noise"}, "there is no corruption 'gausian_noise'; did you mean 'gaussian_noise'?"),
        ({"family": "cifar10"}, "there is no family 'cifar10'; did you mean 'cifar'?"),
        ({"severity": 0}, "Severity must be an integer from 1 to 5, not 0."),
        ({"severity": 6}, "Severity must be an integer from 1 to 5, not 6."),
        ({"severity": 2.0}, "Severity must be an integer from 1 to 5, not 2.0."),
        ({"image": np.zeros((8, 8, 3))}, "The image must be a uint8 array, not float64."),
        ({"image": np.zeros((8, 8), np.uint8)}, "must have shape (height, width, 3), not (8, 8)."),
        ({"image": np.zeros((3, 8, 8), np.uint8)}, "must have shape (height, width, 3), not (3, 8, 8)."),
        ({"image": np.zeros((0, 8, 3), np.uint8)}, "must have shape (height, width, 3), not (0, 8, 3)."),
        ({"rng": 3}, "rng must be a numpy Generator or RandomState, not int."),
    ],
)
def test_wrong_arguments_are_refused_with_one_sentence(changed, sentence):
    arguments = {"image": picture(), "name": "fog", "severity": 1, "rng": any_rng()} | changed
    with pytest.raises(ValueError, match=r"\.$|\? choose from: ") as refusal:
        corrupt(**arguments)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_blur_copies_pixels_as_the_published_loop_over_views_does(reach):
    image = picture(21, 30)
    looped, gathered = image.copy(), image
    loop_rng, rng = np.random.RandomState(5), np.random.RandomState(5)
    for _ in range(2):
        for h in range(21 - reach, reach, -1):
            for w in range(30 - reach, reach, -1):
                dx, dy = loop_rng.randint(-reach, reach, size=(2,))
                here, there = looped[h, w], looped[h + dy, w + dx]
                looped[h, w], looped[h + dy, w + dx] = there, here
        gathered = gathered.reshape(-1, 3)[scatter(21, 30, reach, rng)].reshape(image.shape)
    np.testing.assert_array_equal(gathered, looped)
    assert (gathered != image).any()


def test_streak_is_half_a_gaussian_along_its_angle():
    point = np.zeros((31, 31), np.uint8)
    point[15, 15] = 255
    weights = np.exp(-0.5 * (np.arange(9) / 2.0) ** 2)
    levels = np.floor(255 * weights / weights.sum() + 0.5 / 257)
    np.testing.assert_array_equal(streak(point, 4, 2.0, 0.0)[15, 15:6:-1], levels)
    np.testing.assert_array_equal(streak(point, 4, 2.0, -90.0)[15:24, 15], levels)
    assert streak(point, 4, 2.0, 0.0)[15, 16:].sum() == 0
    np.testing.assert_array_equal(streak(np.full((5, 4), 255, np.uint8), 20, 15.0, 30.0), 255)


def test_clipped_zoom_is_scipys_zoom_of_the_centre_crop():
    image = picture(33, 33).astype(np.float64)
    for factor in (1.0, 1.07, 1.31, 2.25, 4.5):
        crop = int(np.ceil(33 / factor))
        top = (33 - crop) // 2
        enlarged = zoom(image[top : top + crop, top : top + crop], (factor, factor, 1), order=1)
        trim = (enlarged.shape[0] - 33) // 2
        expected = enlarged[trim : trim + 33, trim : trim + 33]
        np.testing.assert_allclose(clipped_zoom(image, factor), expected, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.05, 0.7, 3.0])
def test_gaussian_of_a_point_is_the_formula_cut_at_4_sigmas(sigma):
    point = np.zeros((31, 31, 3))
    point[15, 15, 1] = 1
    steps = np.arange(-15, 16)
    weights = np.exp(-0.5 * (steps / sigma) ** 2) * (np.abs(steps) <= int(4 * sigma + 0.5))
    expected = np.multiply.outer(weights, weights) / weights.sum() ** 2
    np.testing.assert_allclose(gaussian(point, sigma)[..., 1], expected, atol=1e-12)
    assert gaussian(point, sigma)[..., [0, 2]].max() == 0
    np.testing.assert_allclose(gaussian(np.full((5, 4), 0.3), 6.0), 0.3)  # edges are repeated


@pytest.mark.parametrize("sigma", [0.0, 0.3, 2.0, 25.0, 170.8])
def test_elastic_smoothing_is_scipys_with_mirrored_edges_even_far_beyond_the_image(sigma):
    field = any_rng().uniform(-1, 1, (12, 19))
    expected = gaussian_filter(field, sigma, mode="reflect", truncate=3)
    np.testing.assert_allclose(smooth_field(field, sigma), expected, atol=1e-12)


def test_elastic_length_is_the_published_one_at_the_size_of_each_family():
    lengths = [SEVERITIES["elastic_transform"][family][0][3] for family in FAMILIES]
    np.testing.assert_allclose(np.multiply(lengths, (224, 32, 64)), (244, 32, 64))


@pytest.mark.parametrize(("factor", "offset"), [(0.1, 0), (2, 0), (20, 0.2)])
def test_saturate_and_brightness_agree_with_a_round_trip_through_hsv(factor, offset):
    image = picture()
    hsv = rgb_to_hsv(image / 255)
    vivid, bright = hsv.copy(), hsv.copy()
    vivid[..., 1] = np.clip(vivid[..., 1] * factor + offset, 0, 1)
    bright[..., 2] = np.clip(bright[..., 2] + 0.3, 0, 1)
    for output, expected in (
        (saturate(image, any_rng(), factor, offset), vivid),
        (brightness(image, any_rng(), 0.3), bright),
    ):
        assert np.abs(output - np.floor(hsv_to_rgb(expected) * 255)).max() <= 1


def test_contrast_shrinks_distances_to_the_mean():
    image = np.zeros((1, 2, 3), np.uint8)
    image[0, 1] = 200
    np.testing.assert_array_equal(contrast(image, any_rng(), 0.3)[0, :, 0], [70, 130])


def test_impulse_noise_sets_the_given_share_to_black_or_white():
    output = impulse_noise(np.full((100, 100, 3), 90, np.uint8), any_rng(), 0.2)
    shares = [(output == level).mean() for level in (0, 255, 90)]
    np.testing.assert_allclose(shares, [0.1, 0.1, 0.8], atol=0.01)


def test_shot_noise_quantises_light():
    levels = np.unique(shot_noise(np.full((50, 50, 3), 128, np.uint8), any_rng(), 3))
    assert set(levels) <= {0, 85, 170, 255}


def test_fog_is_a_cloud_of_full_range_cut_from_the_next_power_of_two_and_keeps_black_black():
    assert [plasma(side, 2.0, any_rng()).shape[0] for side in (1, 32, 33, 224)] == [2, 32, 64, 256]
    cloud = plasma(64, 2.0, any_rng())
    assert (cloud.min(), cloud.max()) == (0.0, 1.0)
    assert fog(np.zeros((20, 9, 3), np.uint8), any_rng(), 2.0, 2.0).max() == 0


def test_frost_is_the_weighted_sum_and_enlarges_a_texture_that_is_too_small():
    image = np.full((40, 30, 3), 50, np.uint8)
    texture = np.full((8, 64, 3), 100, np.uint8)
    np.testing.assert_array_equal(frost(image, any_rng(), 0.6, 0.75, 0.2, [texture]), 105)


def test_frost_crops_at_the_row_and_column_drawn_after_the_texture():
    texture = np.arange(50 * 60, dtype=np.float64).reshape(50, 60, 1) / 12
    texture = np.repeat(texture, 3, axis=2).astype(np.uint8)
    rng = np.random.RandomState(3)
    index, top, left = rng.randint(2), rng.randint(0, 50 - 20), rng.randint(0, 60 - 10)
    textures = [texture // 2, texture]
    output = frost(np.zeros((20, 10, 3), np.uint8), np.random.RandomState(3), 1.0, 1.0, 1.0, textures)
    np.testing.assert_array_equal(output, textures[index][top : top + 20, left : left + 10])


def test_frost_textures_of_a_folder_come_in_order_of_names_without_the_sixth(tmp_path):
    for number, mode in ((2, "RGBA"), (1, "RGB"), (6, "RGB")):
        Pillow.new(mode, (7, 5), (number, 0, 0, 9)[: len(mode)]).save(tmp_path / f"frost{number}.png")
    (tmp_path / "LICENSE").write_text("not an image")
    textures = load_frost_textures(tmp_path)
    assert [texture[0, 0, 0] for texture in textures] == [1, 2]
    assert {texture.shape for texture in textures} == {(5, 7, 3)}


def test_frost_textures_are_named_by_what_their_files_hold(tmp_path, monkeypatch):
    for number, content in ((2, b"b"), (1, b"a"), (6, b"not drawn")):
        (tmp_path / f"frost{number}.jpg").write_bytes(content)
    digest = hashlib.sha256(b"ab").hexdigest()[:12]
    assert name_frost_textures(tmp_path) == f"own (2 files, {digest})"
    monkeypatch.setitem(name_frost_textures.__globals__, "PUBLISHED", digest)
    assert (name_frost_textures(tmp_path), name_frost_textures(None)) == ("published", "generated")


def test_an_empty_frost_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^dataset\.frost_folder=.* holds no PNG or JPEG textures$"):
        load_frost_textures(tmp_path)


def test_generated_frost_textures_are_five_and_always_the_same():
    first = [texture.copy() for texture in load_frost_textures()]
    generate_frost_textures.cache_clear()
    again = generate_frost_textures()
    assert len(again) == 5
    for texture, expected in zip(again, first, strict=True):
        np.testing.assert_array_equal(texture, expected)
        assert not texture.flags.writeable
        assert texture.std() > 10
    assert len({texture.tobytes() for texture in again}) == 5


def test_generated_frost_textures_are_those_of_earlier_versions():
    """Errors under frost are only comparable if the textures are."""
    found = [texture[100:400:133, 40:400:151].mean(axis=2) for texture in generate_frost_textures()]
    expected = [
        [[120.0, 114.0, 140.0], [142.0, 128.0, 143.0], [124.0, 120.0, 104.0]],
        [[207.7, 220.7, 243.7], [217.7, 209.7, 209.7], [197.7, 219.7, 156.7]],
        [[168.7, 213.7, 200.7], [212.7, 199.7, 241.7], [189.7, 209.7, 198.7]],
        [[152.0, 156.0, 150.0], [122.0, 140.0, 167.0], [151.0, 133.0, 140.0]],
        [[108.3, 111.3, 112.3], [124.3, 81.3, 164.3], [112.3, 92.3, 71.3]],
    ]
    np.testing.assert_allclose(found, expected, atol=1)


def spread(name, family, make_rng, draws=300):
    """Mean, contrast and roughness of a corrupted 32-pixel picture, draw by draw: three arrays (draws,)."""
    outputs = [corrupt(picture(32, 32), name, 5, family=family, rng=make_rng(seed)) for seed in range(draws)]
    levels = np.stack(outputs).astype(float)
    return levels.mean((1, 2, 3)), levels.std((1, 2, 3)), np.abs(np.diff(levels, axis=1)).mean((1, 2, 3))


@pytest.mark.parametrize("family", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", RANDOM)
def test_a_generator_gives_the_distribution_of_the_published_stream(name, family):
    legacy, modern = (spread(name, family, make_rng) for make_rng in (np.random.RandomState, np.random.default_rng))
    for one, other in zip(legacy, modern, strict=True):
        assert ks_2samp(one, other).pvalue > 0.002


@pytest.mark.parametrize(
    ("name", "family", "deviation"),
    [
        ("gaussian_noise", "imagenet", 255 * 0.08),
        ("shot_noise", "cifar", 255 * np.sqrt(128 / 255 / 500)),  # Poisson: the variance is the mean
        ("speckle_noise", "cifar", 128 * 0.06),
    ],
)
def test_noise_has_the_moments_of_its_formula(name, family, deviation):
    levels = corrupt(np.full((150, 150, 3), 128, np.uint8), name, 1, family=family, rng=any_rng()).astype(float)
    assert abs(levels.mean() - 127.5) < 4 * deviation / np.sqrt(levels.size)  # truncation takes half a level
    np.testing.assert_allclose(levels.var(), deviation**2 + 1 / 12, rtol=4 * np.sqrt(2 / levels.size))
