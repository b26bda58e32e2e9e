"""Settings and networks for fast tests of every method, and an honest method from which broken ones are derived."""

from __future__ import annotations

import torch
from timm.models.deit import VisionTransformerDistilled

from tta_bench import testing
from tta_bench.functional import adapt_norm_layers, softmax_entropy
from tta_bench.methods import TTAMethod
from tta_bench.models.backbones.vit import DistilledViTBackbone
from tta_bench.types import PredictionTiming

# Settings with which a method is fast enough to be checked and reaches all its branches.
FAST = {
    "bdg": {"lr": 0.01, "threshold_momentum": 0.5, "alignment": 0.1},
    "cmae": {"lr": 0.001, "restore_probability": 0.1},
    "cotta": {"threshold": 0.9, "num_views": 3, "restore_probability": 0.05},
    "dept": {"warmup_steps": 3, "stages": 2, "prompt_length": 2, "head_width": 16, "neighbors": 3, "memory_size": 20},
    "deyo": {"lr": 0.01, "entropy_margin": 0.41, "plpd_threshold": 0.05},
    "dpcore": {"steps_new": 3, "num_source": 32},
    "dpcore_b": {"steps_new": 3, "num_source": 32, "buffer_size": 5},
    "dpcore_simplified": {"steps_new": 3, "num_source": 32},
    "eata": {"entropy_margin": 0.41, "cosine_margin": 0.9, "num_source": 32},
    "ecotta": {"warmup_steps": 3, "partitions": 2, "bottleneck": 4, "entropy_margin": 0.665},
    "eta": {"entropy_margin": 0.41, "cosine_margin": 0.9},
    "foa": {"population": 6, "num_source": 32},
    "memo": {"num_views": 2},
    "note_pbrs": {"lr": 0.01, "memory_size": 6, "update_every": 5},
    "petta": {"memory_size": 6, "num_source": 32},
    "pseudo_label": {"threshold": 0.9},
    "rdumb": {"entropy_margin": 0.41, "cosine_margin": 0.9, "reset_every": 3},
    "rotta": {"memory_size": 6, "update_every": 5},
    "santa": {"num_source": 32},
    "sar": {"lr": 0.01, "entropy_margin": 0.41, "reset_threshold": 0.1},
    "vdp": {"jump": 0.02, "grid": 16, "frame_width": 1, "warmup_steps": 3},
    "vida": {"warmup_steps": 3, "high_rank": 4, "num_views": 2},
}


def uneven_backbone():
    """Backbone with uneven norm weights, as after training: with equal ones, every token has mean 0 over channels."""
    backbone = testing.toy_backbone()
    torch.nn.init.normal_(backbone.vit.norm.weight, 1.0, 0.3, generator=torch.Generator().manual_seed(0))
    return backbone


def distilled_backbone():
    """A DeiT with a distillation token, whose features are twice as wide as its tokens; all its weights are random."""
    generator = torch.Generator().manual_seed(0)
    network = VisionTransformerDistilled(
        img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=testing.toy.NUM_CLASSES
    )
    for weight in network.parameters():
        torch.nn.init.normal_(weight, float(weight.ndim == 1), 0.2, generator=generator)
    return DistilledViTBackbone(network, (0.5,) * 3, (0.25,) * 3).eval()


# Networks for methods that do not support vision transformers, or that use such means.
BACKBONES = {"bn_adapt": testing.toy_cnn, "cmae": uneven_backbone}


class Honest(TTAMethod):
    """A short Tent, as a base for methods that violate one part of the contract each."""

    prediction_timing = PredictionTiming.LAST_FORWARD

    def passes(self):
        return (1, 1)

    def configure_adaptation(self):
        self.adapted = adapt_norm_layers(self.backbone)

    def configure_optimizers(self):
        return torch.optim.SGD(self.adapted, lr=0.05, momentum=0.9)

    def forward_and_adapt(self, images):
        logits = self.backbone(images)
        self.update(softmax_entropy(logits).mean())
        return logits
