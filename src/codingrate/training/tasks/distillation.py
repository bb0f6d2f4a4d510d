"""Learning without labels from views of the same image (DINO, paper 4.1.3): a student follows its own average."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...data import ImageData, ViewAugment, torch_dataset
from ...models.base import CratePreTrainedModel
from ...models.distillation import CrateForSelfDistillation
from ..distillation_schedules import teacher_momentum, teacher_temperature
from ..recipe import Recipe
from ..start import build_distillation
from .base import Step
from .images import ImageTask, evaluation_processor

COLLAPSED = 0.01
"""Nats the teacher's answers tell about the image, under which it tells nothing."""


class Distillation(ImageTask):
    """The cross-entropy of the student's views against the teacher's; what is saved and evaluated is the teacher."""

    best = None

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.view_augment = ViewAugment(recipe.augment, recipe.views)
        spec = recipe.distil
        self.temperature, self.momentum = spec.final_teacher_temperature, spec.momentum
        self.watching, self.frozen, self.at = True, False, 0

    def build_model(self, data: ImageData) -> CratePreTrainedModel:
        return build_distillation(self.recipe)

    def datasets(self, data: ImageData, rank: int, world: int) -> tuple[Any, Any]:
        recipe = self.recipe
        place: dict[str, Any] = {"rank": rank, "world_size": world}
        seed = recipe.run.seed
        train = torch_dataset(data, recipe.augment, train=True, seed=seed, views=recipe.views, **place)
        return train, torch_dataset(data, recipe.augment, train=False, **place)

    def prepare(self, batch: dict[str, Any], seed: int | None) -> dict[str, Any]:
        if "views" not in batch:
            return super().prepare(batch, seed)
        return {**batch, "views": self.view_augment.train(seed is not None)(batch["views"], seed=seed)}

    def begin(self, step: int, steps: int, steps_per_epoch: int | None) -> None:
        spec, epoch = self.recipe.distil, step / (steps_per_epoch or steps)
        start, end = spec.teacher_temperature, spec.final_teacher_temperature
        self.temperature = teacher_temperature(int(epoch), start, end, spec.temperature_epochs)
        self.momentum = teacher_momentum(step, steps, spec.momentum)
        self.frozen = epoch < spec.freeze_last_epochs
        self.at = step
        self.watching = step % self.recipe.run.log_steps == 0

    def step(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        inner = cast(CrateForSelfDistillation, inner)
        count = len(batch["labels"])
        output = model(
            views=batch["views"],
            student_temperature=self.recipe.distil.student_temperature,
            teacher_temperature=self.temperature,
        )
        if count == 0:  # none of the batch could be read; the centre still waits for the other processes
            inner.update_center(output.teacher_logits, self.recipe.distil.center_momentum)
            return Step(output.student_logits.sum() * 0, 0)
        figures = teacher_figures(output.teacher_logits, inner.center, self.temperature) if self.watching else {}
        inner.update_center(output.teacher_logits, self.recipe.distil.center_momentum)
        return Step(output.loss, count, figures)

    def gradients(self, inner: CratePreTrainedModel) -> None:
        if self.frozen:
            for parameter in cast(CrateForSelfDistillation, inner).student.head.last_layer().parameters():
                parameter.grad = None

    def finish(self, inner: CratePreTrainedModel) -> None:
        cast(CrateForSelfDistillation, inner).update_teacher(self.momentum)

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        inner, pixels = cast(CrateForSelfDistillation, inner), batch["pixel_values"]
        answer = ((inner.teacher(pixels) - inner.center) / self.temperature).log_softmax(-1)
        student = (inner.student(pixels) / self.recipe.distil.student_temperature).log_softmax(-1)
        p = answer.exp()
        return {"loss": -(p * student).sum(-1), "teacher_entropy": -(p * answer).sum(-1)}

    def warning(self, figures: dict[str, float], epoch: float) -> str | None:
        spec = self.recipe.distil
        young = epoch < max(1, spec.temperature_epochs) or self.at * (1 - spec.momentum) < 2  # still its first weights
        if young or figures.get("spread", math.inf) > COLLAPSED:
            return None
        return (
            f"the teacher has collapsed: it answers alike to every image (it tells {figures['spread']:.4f} nats about "
            "it); lower optimise.lr or distil.final_teacher_temperature, or raise schedule.batch"
        )

    def headline(self, figures: dict[str, float]) -> str:
        return f"test loss {figures['loss']:.4f}, teacher entropy {figures['teacher_entropy']:.2f} nats"

    def save(self, model: CratePreTrainedModel, weights: dict[str, Tensor] | None, folder: Path) -> None:
        teacher = cast(CrateForSelfDistillation, model).as_backbone()
        teacher.save_pretrained(folder)
        evaluation_processor(teacher, self.recipe.augment).save_pretrained(folder)


@torch.no_grad()
def teacher_figures(logits: Tensor, center: Tensor, temperature: float) -> dict[str, Tensor]:
    """Whether the teacher (views, batch, P) still tells images apart, in nats.

    `teacher_entropy` is the mean entropy of its answers p = softmax((t − c)/τ): log P when they are flat.
    `center_entropy` is that of softmax(c/τ): near zero when one prototype wins whatever the image. `spread` is what
    an answer tells about the image, H(mean of p) − mean of H(p): zero in both kinds of collapse.
    """
    answers = ((logits - center) / temperature).flatten(0, 1).float().softmax(-1)
    each = torch.special.entr(answers).sum(-1).mean()
    return {
        "teacher_entropy": each,
        "center_entropy": torch.special.entr((center / temperature).float().softmax(-1)).sum(),
        "spread": torch.special.entr(answers.mean(dim=0)).sum() - each,
    }
