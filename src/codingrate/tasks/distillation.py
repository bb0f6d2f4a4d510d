"""Self-distillation without labels (DINO, paper 4.1.3): a student learns from the average of its own weights."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from ..data import ViewAugment
from ..errors import CrateError
from ..evaluation import extract_features, neighbor_accuracy
from ..models.base import CratePreTrainedModel
from ..models.classifier import CrateForImageClassification
from ..models.distillation import CrateForSelfDistillation
from ..recipes.schema import Recipe
from .base import Reading, Step, TaskPaths, cosine
from .images import ImageTask
from .reports import FeatureReport

COLLAPSED = 0.01
"""Mutual information in nats between answer and image below which the teacher has collapsed."""


def teacher_momentum(step: int, steps: int, start: float = 0.996) -> float:
    """m(i) = 1 − ½(1 − start)(1 + cos(πi/T)); it ends at 1, a teacher that no longer moves."""
    return cosine(start, 1.0, min(step, steps) / max(steps, 1))


def teacher_temperature(epoch: int, start: float, end: float, warmup_epochs: int) -> float:
    """τ_t of an epoch counted from 0: linear from `start` in the first of `warmup_epochs` to `end` in the last.

    As in the released code's linspace, n warm-up epochs make n − 1 steps, and a single one stays at `start`.
    """
    if epoch >= warmup_epochs:
        return end
    return start + (end - start) * epoch / max(warmup_epochs - 1, 1)


class Distillation(ImageTask):
    """The cross-entropy of the student's views against the teacher's; the teacher is saved and evaluated."""

    best_metric = None

    def __init__(self, recipe: Recipe, paths: TaskPaths | None = None) -> None:
        super().__init__(recipe, paths)
        self.view_augment = ViewAugment(recipe.augment, recipe.views)
        section = recipe.distillation
        self.temperature, self.momentum = section.final_teacher_temperature, section.momentum
        self.logs_metrics, self.last_layer_frozen, self.current_step = True, False, 0

    def create_model(self) -> CratePreTrainedModel:
        recipe = self.recipe
        body = self.build_vision_model({"num_labels": 0})
        if not isinstance(body, CrateForImageClassification):
            raise CrateError(
                f"model.name {recipe.model.name}: task distillation needs a body such as crate-dino-small-patch16"
            )
        for size in (recipe.augment.image_size, recipe.views.local_size) if recipe.views.local_count else ():
            if size % body.config.patch_size:
                raise CrateError(
                    f"views.local_size {recipe.views.local_size} is not divisible by patch_size "
                    f"{body.config.patch_size}"
                )
        model = CrateForSelfDistillation(body.config)
        if self.paths.source is not None:
            model.start_from(body)
        return model

    def prepare(self, batch: dict[str, Any], seed: int | None, model: CratePreTrainedModel) -> dict[str, Any]:
        if "views" not in batch:
            return super().prepare(batch, seed, model)
        return {**batch, "views": self.view_augment.train(seed is not None)(batch["views"], seed=seed)}

    def on_step_begin(self, step: int, steps: int, steps_per_epoch: int | None) -> None:
        section, epoch = self.recipe.distillation, step / (steps_per_epoch or steps)
        start, end = section.teacher_temperature, section.final_teacher_temperature
        self.temperature = teacher_temperature(int(epoch), start, end, section.temperature_epochs)
        self.momentum = teacher_momentum(step, steps, section.momentum)
        self.last_layer_frozen = epoch < section.freeze_last_epochs
        self.current_step = step
        self.logs_metrics = step % self.recipe.run.log_steps == 0

    def loss(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        inner, section = cast(CrateForSelfDistillation, inner), self.recipe.distillation
        count = len(batch["labels"])
        output = model(
            views=batch["views"],
            student_temperature=section.student_temperature,
            teacher_temperature=self.temperature,
        )
        if count == 0:  # no image could be read; updating the center still waits for the other processes
            inner.update_center(output.teacher_logits, section.center_momentum)
            return Step(output.student_logits.sum() * 0, 0)
        metrics = teacher_metrics(output.teacher_logits, inner.center, self.temperature) if self.logs_metrics else {}
        inner.update_center(output.teacher_logits, section.center_momentum)
        return Step(output.loss, count, metrics)

    def on_gradients(self, inner: CratePreTrainedModel) -> None:
        if self.last_layer_frozen:
            for parameter in cast(CrateForSelfDistillation, inner).student.head.last_layer().parameters():
                parameter.grad = None

    def on_step_end(self, inner: CratePreTrainedModel) -> None:
        cast(CrateForSelfDistillation, inner).update_teacher(self.momentum)

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        inner, pixels = cast(CrateForSelfDistillation, inner), batch["pixel_values"]
        teacher = ((inner.teacher(pixels) - inner.center) / self.temperature).log_softmax(-1)
        student = (inner.student(pixels) / self.recipe.distillation.student_temperature).log_softmax(-1)
        p = teacher.exp()
        return {"loss": -(p * student).sum(-1), "teacher_entropy": -(p * teacher).sum(-1)}

    def warning(self, metrics: dict[str, float], epoch: float) -> str | None:
        section = self.recipe.distillation
        warming_up = epoch < max(1, section.temperature_epochs)
        initial_weights = self.current_step * (1 - section.momentum) < 2  # the teacher has hardly moved yet
        if warming_up or initial_weights or metrics.get("spread", math.inf) > COLLAPSED:
            return None
        return (
            f"the teacher has collapsed: its answers carry {metrics['spread']:.4f} nats of information about the "
            "image; lower optimizer.lr or distillation.final_teacher_temperature, or raise schedule.batch_size"
        )

    def headline(self, metrics: dict[str, float]) -> str:
        return f"test loss {metrics['loss']:.4f}, teacher entropy {metrics['teacher_entropy']:.2f} nats"

    def save(self, model: CratePreTrainedModel, weights: dict[str, Tensor] | None, folder: Path) -> None:
        super().save(cast(CrateForSelfDistillation, model).as_backbone(), None, folder)

    def evaluate(self, model: CratePreTrainedModel, **reading: Unpack[Reading]) -> FeatureReport:
        """Measure by nearest neighbors within the split how well the features tell classes apart.

        This reads one split and no training images. A probe, which has many more neighbors, gives a higher accuracy.
        """
        start, data, split = time.perf_counter(), self.data, reading.get("split") or self.default_split
        features = extract_features(
            model,
            data,
            self.recipe.augment,
            split=split,
            limit=reading.get("limit"),
            batch_size=reading.get("batch_size", 64),
            workers=self.recipe.data.workers,
            device=model.device,
            progress=reading.get("progress"),
            max_corrupt=self.recipe.data.max_corrupt,
        )
        reading.get("unreadable", []).extend(features.corrupt)
        return FeatureReport(
            data=data.name,
            split=split,
            images=len(features),
            corrupt=features.corrupt,
            neighbor_top1=neighbor_accuracy(features),
            seconds=time.perf_counter() - start,
            total=data.total,
            unreadable=len(features.corrupt),
        )


@torch.no_grad()
def teacher_metrics(logits: Tensor, center: Tensor, temperature: float) -> dict[str, Tensor]:
    """Measure in nats how well the teacher's answers (views, batch, P) tell images apart.

    `teacher_entropy` is the mean entropy of its answers p = softmax((t − c)/τ): log P if they are flat.
    `center_entropy` is the entropy of softmax(c/τ): near zero if one prototype always wins. `spread` is the mutual
    information of answer and image, H(mean of p) − mean of H(p): zero in both kinds of collapse.
    """
    answers = ((logits - center) / temperature).flatten(0, 1).float().softmax(-1)
    entropy = torch.special.entr(answers).sum(-1).mean()
    return {
        "teacher_entropy": entropy,
        "center_entropy": torch.special.entr((center / temperature).float().softmax(-1)).sum(),
        "spread": torch.special.entr(answers.mean(dim=0)).sum() - entropy,
    }
