"""Learning classes of images (paper 4.1.1)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ...data import ImageData
from ...models.base import CratePreTrainedModel
from ..start import build_classifier
from .base import Step
from .images import ImageTask


class Classification(ImageTask):
    """Cross-entropy, with the recipe's label smoothing while training."""

    best, higher = "top1", True

    def build_model(self, data: ImageData) -> CratePreTrainedModel:
        return build_classifier(self.recipe, data.classes)

    def step(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        labels: Tensor = batch["labels"]
        logits: Tensor = model(pixel_values=batch["pixel_values"]).logits
        if len(labels) == 0:  # none of the batch could be read
            return Step(logits.sum() * 0, 0)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.optimise.label_smoothing)
        right = (logits.detach().argmax(-1) == labels).float().mean()
        return Step(inner.regularized(loss), len(labels), {"accuracy": right})

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        labels: Tensor = batch["labels"]
        logits: Tensor = model(pixel_values=batch["pixel_values"]).logits.float()
        right = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == labels[:, None]
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "top1": right[:, 0],
            "top5": right.any(dim=1),
        }

    def headline(self, figures: dict[str, float]) -> str:
        return f"top-1 {figures['top1']:.2%}, top-5 {figures['top5']:.2%}, test loss {figures['loss']:.4f}"
