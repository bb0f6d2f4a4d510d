"""Image classification (paper 4.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..errors import CrateError
from ..evaluation.imagenet_real import match_real_labels, real_accuracy
from ..evaluation.inputs import check_image_input
from ..models.base import CratePreTrainedModel, eval_mode
from ..models.classifier import CrateForImageClassification
from .base import Reading, Step, Values, expect_model, freeze_body
from .images import ImageTask, MeasuredSplit
from .reports import ClassificationReport, classification_report


class Classification(ImageTask):
    """Cross-entropy of image classes, with the recipe's label smoothing during training."""

    best_metric, higher_is_better = "top1", True

    def create_model(self) -> CratePreTrainedModel:
        classes = self.data.classes
        labels = {
            "id2label": dict(enumerate(classes)),
            "label2id": {name: index for index, name in enumerate(classes)},
        }
        model = self.build_vision_model(labels, {"num_labels": len(classes)})
        if not isinstance(model, CrateForImageClassification):
            raise CrateError(f"model.name {self.recipe.model.name}: task classification needs an image classifier")
        if self.recipe.model.freeze:
            freeze_body(model, ("head",))
        return model

    def loss(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        labels: Tensor = batch["labels"]
        logits: Tensor = model(pixel_values=batch["pixel_values"]).logits
        if len(labels) == 0:  # no image of the batch could be read
            return Step(logits.sum() * 0, 0)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.optimizer.label_smoothing)
        correct = (logits.detach().argmax(-1) == labels).float().mean()
        return Step(inner.regularized(loss), len(labels), {"accuracy": correct})

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        labels: Tensor = batch["labels"]
        logits: Tensor = model(pixel_values=batch["pixel_values"]).logits.float()
        top = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        correct = top == labels[:, None]
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "top1": correct[:, 0],
            "top5": correct.any(dim=1),
            "prediction": top[:, 0],
            "label": labels,
        }

    def summarize(self, values: Values) -> dict[str, float]:
        return {name: float(values[name].mean()) for name in ("loss", "top1", "top5")}

    def headline(self, metrics: dict[str, float]) -> str:
        return f"top-1 {metrics['top1']:.2%}, top-5 {metrics['top5']:.2%}, test loss {metrics['loss']:.4f}"

    def measure_split(self, model: CratePreTrainedModel, **reading: Unpack[Reading]) -> MeasuredSplit:
        self._check_head(model)
        return super().measure_split(model, **reading)

    def report(self, measured: MeasuredSplit) -> ClassificationReport:
        return classification_report(measured, self.summarize(measured.values))

    def evaluate_real(
        self, model: CratePreTrainedModel, labels: str | Path, **reading: Unpack[Reading]
    ) -> ClassificationReport:
        """Evaluate on the test split and add the accuracy by ImageNet's ReaL labels (real.json)."""
        accepted = match_real_labels(self.data, self.data.test, labels)
        measured = self.measure_split(model, **reading)
        predictions = measured.values["prediction"].astype(np.int64)
        crops = measured.crops
        rows = range(len(accepted)) if crops.indices is None else crops.indices
        kept = [accepted[row] for row, readable in zip(rows, crops.readable, strict=True) if readable]
        return replace(self.report(measured), real_top1=real_accuracy(predictions, kept))

    def _check_head(self, model: CratePreTrainedModel) -> None:
        outputs, classes = model.config.num_labels, len(self.data.classes)
        if outputs == 0:
            raise CrateError("the model has no classification head; measure its features with crate probe")
        if outputs != classes:
            raise CrateError(f"the model has {outputs} classes, but {self.data.name} has {classes}")

    def predict(self, model: CratePreTrainedModel, inputs: Sequence[Any]) -> list[Any]:
        """Return for every image its classes with their probabilities, the most probable first."""
        expect_model(model, CrateForImageClassification, self.recipe.task)
        if model.config.num_labels == 0:
            return super().predict(model, inputs)
        check_image_input(model, self.recipe.augment)
        with eval_mode(model), torch.inference_mode():
            pixels = self.read(inputs).to(model.device, model.dtype)
            logits = cast(Any, model)(pixel_values=pixels).logits.float()
        return labeled_scores(model, logits.softmax(-1))


def labeled_scores(model: CratePreTrainedModel, probabilities: Tensor) -> list[list[dict[str, Any]]]:
    """Return probabilities (batch, classes) as lists of labels with scores, the highest first."""
    names: Any = model.config.id2label or {}
    scores, indices = probabilities.cpu().sort(descending=True)
    return [
        [{"label": names[int(i)], "score": float(s)} for s, i in zip(row, order, strict=True)]
        for row, order in zip(scores, indices, strict=True)
    ]
