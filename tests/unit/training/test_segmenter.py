"""Training a small SegFormer, and using the result."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.helpers.segmenting import needs_mmseg
from tta_bench.models.loading.segformer import load_segformer, segformer
from tta_bench.training.segmenter import SegmentationTraining, distorted, train_segformer

pytestmark = needs_mmseg


class Halves:
    """Images whose upper half is bright and class 1 in a few columns; the last rows do not count and say nonsense."""

    def __init__(self, num_images, seed):
        self.labels = np.zeros(num_images, dtype=np.int64)
        self.seed = seed

    def __len__(self):
        return len(self.labels)

    def label_map(self, index):
        labels = np.zeros((32, 64), dtype=np.uint8)
        start = np.random.default_rng([self.seed, index]).integers(4, 40)
        labels[:, start : start + 20] = 1
        labels[28:] = 255
        return labels

    def __getitem__(self, index):
        rng = np.random.default_rng([self.seed, index, 1])
        bright = np.where(self.label_map(index) == 1, 200, 60)[..., None]
        image = (bright + rng.normal(0, 10, (32, 64, 3))).clip(0, 255).astype(np.uint8)
        image.flags.writeable = False  # as Pillow's are
        return image

    def describe(self):
        return "halves"


def test_what_was_trained_is_what_is_loaded(tmp_path):
    text, held_out = io.StringIO(), Halves(8, seed=2)
    train_segformer(
        Halves(48, seed=1), held_out, ("dark", "bright"), tmp_path / "w.safetensors", command="make it", seed=0,
        epochs=3, lr=5e-3, embed_dims=8, channels=16, console=Console(file=text, width=200),
    )  # fmt: skip
    *epochs, last = text.getvalue().splitlines()
    assert last.startswith("mean IoU ")
    assert [line.partition(":")[0] for line in epochs] == [f"epoch {i}/3" for i in (1, 2, 3)]
    card = (tmp_path / "w.yaml").read_text()
    assert card.startswith("# Trained by: make it\n# Mean IoU of these weights on 8 images of the source domain: ")
    backbone = load_segformer(tmp_path / "w.yaml", tmp_path / "w.safetensors")
    images = np.stack([held_out[i] for i in range(8)])
    labels = np.stack([held_out.label_map(i) for i in range(8)])
    with torch.no_grad():
        predicted = backbone(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).argmax(dim=1).numpy()
    counted = labels != 255
    iou = [
        (counted & (predicted == k) & (labels == k)).sum() / (counted & ((predicted == k) | (labels == k))).sum()
        for k in (0, 1)
    ]
    assert 0.8 < np.mean(iou) <= 1
    assert f"{100 * np.mean(iou):.2f} %" in card
    assert f"{100 * np.mean(iou):.2f} %" in last


def test_images_and_labels_are_mirrored_together_and_ignored_pixels_teach_nothing(monkeypatch):
    monkeypatch.setattr("tta_bench.training.segmenter.distorted", lambda images: images)
    module = SegmentationTraining(segformer(2, embed_dims=8, channels=16), 0.0, 1, seed=0).eval()
    seen = []
    module.forward = lambda images: seen.append((255 * images).round().byte()) or 255 * images[:, :2]
    images = torch.randint(0, 255, (16, 3, 4, 8), dtype=torch.uint8)
    labels = (images[:, 0] > 128).byte()
    before = images.clone()
    torch.manual_seed(0)
    loss = module.training_step((images.clone(), labels.clone()), 0)
    turned = [torch.equal(a, b.flip(-1)) for a, b in zip(seen[0], before, strict=True)]
    assert 0 < sum(turned) < 16
    assert all(t or torch.equal(a, b) for t, a, b in zip(turned, seen[0], before, strict=True))
    labels[:, 2:] = 255
    scores = torch.where(torch.tensor(turned)[:, None, None, None], before.flip(-1), before)[:, :2].float()
    mirrored = (scores[:, 0] > 128).long()
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, mirrored))
    torch.manual_seed(0)
    part = module.training_step((before.clone(), labels.clone()), 0)
    torch.testing.assert_close(part, torch.nn.functional.cross_entropy(scores[:, :, :2], mirrored[:, :2]))


def test_a_distortion_is_a_contrast_a_saturation_and_a_brightness_per_image():
    images = torch.full((64, 3, 1, 3), 100, dtype=torch.uint8)
    images[..., 1] = 150  # grey, brighter
    images[:, 0, :, 2] = 130  # of mean 110, reddish
    torch.manual_seed(0)
    out = distorted(images).squeeze(2)
    torch.testing.assert_close(out[:, 0, :2], out[:, 1, :2])  # grey stays grey
    contrast = (out[:, 0, 1] - out[:, 0, 0]) / 50
    brightness = out[:, 0, 0] - 100 * contrast
    saturation = (out[:, 0, 2] - out[:, 1, 2]) / 30 / contrast
    for value, low, high in ((contrast, 0.5, 1.5), (brightness, -32, 32), (saturation, 0.5, 1.5)):
        assert low <= value.min() + 1e-4 < low + 0.1 * (high - low)
        assert high >= value.max() - 1e-4 > high - 0.1 * (high - low)
    assert distorted(torch.full((64, 3, 1, 1), 255, dtype=torch.uint8)).max() == 255


def test_the_file_of_the_weights_must_be_safetensors(tmp_path):
    with pytest.raises(ValueError, match=r"--output must end in \.safetensors"):
        train_segformer(
            Halves(8, 0), Halves(1, 0), ("a",), tmp_path / "w.pth", command="", seed=0, epochs=1, lr=1.0,
            console=Console(quiet=True),
        )  # fmt: skip
