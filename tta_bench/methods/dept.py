"""DePT: data-efficient prompt tuning for test-time adaptation (Gao et al., arXiv 2022), online."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer

from tta_bench.functional import ema_update, soft_cross_entropy
from tta_bench.functional.pixels import labeled_cross_entropy, per_class
from tta_bench.functional.training_views import training_pair
from tta_bench.methods.base import TTAMethod
from tta_bench.methods.warm_up import warm_up
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parts.stage_prompts import add_stage_prompts, encode_prompted, project, stage_prompts
from tta_bench.types import PredictionTiming, SourceNeed

TEACHER_TEMPERATURE, STUDENT_TEMPERATURE = 0.07, 0.1  # released code, after DINO
CENTER_MOMENTUM = 0.9


class Seen(NamedTuple):
    """What a network makes of a strongly augmented batch."""

    logits: Tensor  # (B, K) or (B, K, H, W)
    projection: Tensor  # (B, P), of the feature
    prompts: Tensor  # (B, S, L, P), projections of what each stage made of its prompts


class DePT(TTAMethod):
    """Tune prompts at each stage with pseudo-labels from a memory, and keep student and averaged teacher alike.

    The released code adapts offline, in many passes over the target images. This is an online port, ours: one step
    per batch, the memory filled as images come.

    Args:
        backbone: The source model; a vision transformer whose number of blocks ``stages`` divides, or a SegFormer.
        lr: Learning rate of SGD (Nesterov momentum 0.9). Released code 5e-3; 1e-3 for 1,000 classes is ours.
        weight_decay: Released code.
        clip: Largest gradient norm of each of the prompts and the classifier's parameters (released code).
        stages: Stages with prompts of their own (released code).
        prompt_length: Prompts per stage; 10 in the released configuration, its scripts have 50.
        head_width: Directions of a projection head, and width of its hidden layer (released scripts).
        teacher_momentum: Share of the old teacher in the new (released code).
        neighbors: Entries of the memory whose predictions make a pseudo-label (released code).
        memory_size: Images in the memory, at least ``neighbors``; ours, the released code remembers all targets.
        feature_weight: beta, of the teacher's projected feature as target (released scripts).
        prompt_weight: beta2, of the cosine distance to the teacher's prompts (released scripts).
        diversity_weight: eta, of the negative entropy of the mean prediction (released scripts).
        spread_weight: lambda, of the closeness of one stage's prompts (released scripts).
        source_spread_weight: The same in the warm-up (released scripts).
        label_smoothing: In the warm-up (released code).
        warmup_steps: Updates of prompts, heads and classifier on labeled source images; ours. With 0 the prompts stay
            as drawn, which harms the source model. The released code trains the whole network for five epochs.
        warmup_lr: Learning rate of SGD in the warm-up; the released code's for prompts and heads.
        seed: Seed of the initial prompts and heads, and the augmentations.

    Raises:
        ValueError: If the memory is too small, or the backbone is not a transformer.

    States:
        center (P,): of the teacher's projections. memory_features (N, D), memory_probabilities (N, K): of the last
            ``memory_size`` images by the teacher; empty at the start.

    Cost:
        4 forward passes and 1 backward pass per sample.

    Source:
        The paper; repository yhygao/DePT.

    Departures:
        Besides what is marked as ours: the image itself is the weak view; a prediction is the student's before its
        step; an image is its own pseudo-label while the memory is smaller than ``neighbors``; the center is a mean
        over the batch, where the released code sums on a single device; the last stage's prompts are taken before the
        final norm; no learning rate is annealed, nor is the teacher's temperature. In a SegFormer (ours) prompts are
        keys and values of every layer of a stage, and what a stage makes of them is the mean of its map under their
        attention. Where every pixel has scores (ours) the memory stays empty, for images that are alike do not tell
        which pixel is what: a pixel's pseudo-label is the teacher's for the image itself, cropped and mirrored with
        the student's view.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    source_need = SourceNeed.LABELED
    source_settings = (
        "weight_decay", "stages", "prompt_length", "head_width", "teacher_momentum", "feature_weight", "prompt_weight",
        "source_spread_weight", "label_smoothing", "warmup_steps", "warmup_lr", "seed",
    )  # fmt: skip
    paper = "Gao et al., arXiv 2022"
    provenance = "online port ours; released code (yhygao/DePT) where it applies"
    center: Tensor
    memory_features: Tensor
    memory_probabilities: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        clip: float = 1.0,
        stages: int = 4,
        prompt_length: int = 10,
        head_width: int = 2048,
        teacher_momentum: float = 0.99,
        neighbors: int = 10,
        memory_size: int = 16384,
        feature_weight: float = 0.1,
        prompt_weight: float = 0.1,
        diversity_weight: float = 1.0,
        spread_weight: float = 0.05,
        source_spread_weight: float = 0.005,
        label_smoothing: float = 0.1,
        warmup_steps: int = 5000,
        warmup_lr: float = 5e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        if memory_size < neighbors:
            raise ValueError(f"a memory of {memory_size} images never holds {neighbors} neighbors: enlarge memory_size")

    def passes(self) -> tuple[float, float]:
        """4 forward (images and strong views, by the student and by the teacher) and 1 backward."""
        return (4, 1)

    def configure_adaptation(self) -> None:
        """Train prompts, projection heads and the classifier; declare an empty memory."""
        h = self.hparams
        add_stage_prompts(self.backbone, h.stages, h.prompt_length, h.head_width, self.setup_rng)
        self.add_copy("teacher")
        like = stage_prompts(self.backbone).prompts
        self.add_state("center", like.new_zeros(h.head_width))
        self.add_state("memory_features", like.new_empty(0, self.backbone.feature_dim))
        self.add_state("memory_probabilities", like.new_empty(0, self.backbone.num_classes))

    def configure_optimizers(self) -> Optimizer:
        """SGD with Nesterov momentum and weight decay."""
        return self._sgd(self.hparams.lr)

    def _sgd(self, lr: float) -> Optimizer:
        trainable = [p for p in self.backbone.parameters() if p.requires_grad]
        return SGD(trainable, lr=lr, momentum=0.9, nesterov=True, weight_decay=self.hparams.weight_decay)

    def measure_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train what was added with cross-entropy and the student's distance to the teacher on source images.

        Args:
            loader: Batches of images (B, C, H, W) in [0, 1] and labels (B,) or (B, H, W).
        """
        h = self.hparams

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            ema_update(self.teacher, self.backbone, h.teacher_momentum)
            view, seen_labels = strong_view(images, labels, self.setup_rng, crop=0.6)
            student, teacher = self.see(view, strong_view(images, labels, self.setup_rng, crop=0.6)[0])
            classified = labeled_cross_entropy(student.logits, seen_labels, label_smoothing=h.label_smoothing)
            return classified + self.distilled(student, teacher) + h.source_spread_weight * self.closeness(student)

        warm_up(self, loader, self._sgd(h.warmup_lr), loss, h.warmup_steps)
        self.teacher.load_state_dict(self.backbone.state_dict())
        self.center = torch.zeros_like(self.center)  # the released code makes a new one for the target phase

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> the student's logits (B, K) or (B, K, H, W) before its step."""
        with torch.no_grad():
            plain = encode_prompted(self.backbone, images)
            logits = self.backbone.classify(plain.encoded)
        ema_update(self.teacher, self.backbone, self.hparams.teacher_momentum)
        if self.backbone.segments:
            labels = self._seen_by_teacher(images)[1].argmax(dim=1)
        else:
            labels = self.pseudo_labels(plain.features, logits)
        for_student, labels = self.draw_view(images, labels)
        for_teacher, _ = self.draw_view(images, labels)
        self.update(self.loss(*self.see(for_student, for_teacher), labels))
        if not self.backbone.segments:
            self._remember(images)
        return logits

    def draw_view(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """A strong view, and its labels."""
        return strong_view(images, labels, self.rng, crop=0.2)

    def pseudo_labels(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B,): the class that the nearest entries of the memory give most probability to."""
        if len(self.memory_features) < self.hparams.neighbors:
            return logits.argmax(dim=1)
        similarity = F.normalize(features, dim=1) @ self.memory_features.T
        nearest = similarity.topk(self.hparams.neighbors, dim=1).indices  # (B, k)
        return self.memory_probabilities[nearest].mean(dim=1).argmax(dim=1)

    def see(self, for_student: Tensor, for_teacher: Tensor) -> tuple[Seen, Seen]:
        """What the student and the teacher make of their views; the teacher's without a graph."""

        def seen(network: Backbone, view: Tensor) -> Seen:
            prompted = encode_prompted(network, view)
            return Seen(network.classify(prompted.encoded), *project(network, prompted))

        with torch.no_grad():
            teacher = seen(self.teacher, for_teacher)
        return seen(self.backbone, for_student), teacher

    def loss(self, student: Seen, teacher: Seen, labels: Tensor) -> Tensor:
        """The loss of the stream: pseudo-labels (B,) or (B, H, W), diversity, distillation and closeness, weighted."""
        h = self.hparams
        mean = per_class(student.logits.softmax(dim=1))
        diversity = (mean * (mean + 1e-8).log()).sum()  # negative entropy
        classified = F.cross_entropy(student.logits, labels) + h.diversity_weight * diversity
        total: Tensor = classified + self.distilled(student, teacher) + h.spread_weight * self.closeness(student)
        return total

    def distilled(self, student: Seen, teacher: Seen) -> Tensor:
        """Cross-entropy of the projected features and cosine distance of the prompts, weighted; moves the center."""
        target = (teacher.projection - self.center) / TEACHER_TEMPERATURE
        by_feature = soft_cross_entropy(student.projection / STUDENT_TEMPERATURE, target).mean()
        self.center = torch.lerp(teacher.projection.mean(dim=0), self.center, CENTER_MOMENTUM)
        distance = 1 - F.cosine_similarity(student.prompts, teacher.prompts, dim=-1)  # (B, S, L)
        by_prompt = over_stages(distance.mean(dim=(0, 2)))
        total: Tensor = self.hparams.feature_weight * by_feature + self.hparams.prompt_weight * by_prompt
        return total

    def closeness(self, student: Seen) -> Tensor:
        """Minus the mean cosine distance between prompts of one stage; a prompt and itself count as a pair."""
        unit = F.normalize(student.prompts, dim=-1)
        return -over_stages((1 - unit @ unit.mT).mean(dim=(0, 2, 3)))

    def update(self, loss: Tensor) -> None:
        """One optimizer step, with gradients clipped parameter by parameter except in the projection heads."""
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        heads = {id(p) for p in stage_prompts(self.backbone).heads.parameters()}
        for p in self.backbone.parameters():
            if p.grad is not None and id(p) not in heads:
                clip_grad_norm_([p], self.hparams.clip)
        self.optimizer.step()

    @torch.no_grad()
    def _seen_by_teacher(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, D) and probabilities (B, K) or (B, K, H, W) of the teacher for the images themselves."""
        plain = encode_prompted(self.teacher, images)
        return plain.features, self.teacher.classify(plain.encoded).softmax(dim=1)

    def _remember(self, images: Tensor) -> None:
        """Append the teacher's features and probabilities to the memory, and forget the oldest."""
        features, probabilities = self._seen_by_teacher(images)
        size = self.hparams.memory_size
        self.memory_features = torch.cat([self.memory_features, F.normalize(features, dim=1)])[-size:]
        self.memory_probabilities = torch.cat([self.memory_probabilities, probabilities])[-size:]

    def diagnostics(self) -> dict[str, float]:
        """Images in the memory."""
        return {"memory": float(len(self.memory_features))}


def over_stages(values: Tensor) -> Tensor:
    """Mean of a value per stage (S,), weighted by exp(stage): late stages count most."""
    weights = torch.arange(len(values), dtype=values.dtype, device=values.device).softmax(dim=0)
    return (weights * values).sum()


def strong_view(images: Tensor, labels: Tensor, rng: torch.Generator, *, crop: float) -> tuple[Tensor, Tensor]:
    """A ``training_pair`` whose colours change as those of a strong view do.

    Source: repository yhygao/DePT.
    """
    return training_pair(images, labels, rng, crop=crop, jitter=0.8, grey=0.2, blur=0.5)
