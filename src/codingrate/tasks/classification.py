"""Image classification (paper 4.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..data import OpenedData
from ..errors import CrateError
from ..evaluation.features import check_image_input
from ..evaluation.imagenet_real import match_real_labels, real_accuracy
from ..models.base import CratePreTrainedModel, eval_mode
from ..models.classifier import CrateForImageClassification
from .base import SHOWN, Reading, Step, Values, expect_model, freeze_body
from .images import ImageTask, MeasuredSplit
from .reports import ClassificationReport, classification_report

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..inspection import Outcome


class Classification(ImageTask):
    """Cross-entropy of image classes, with the recipe's label smoothing during training."""

    best_metric, higher_is_better = "top1", True

    def create_model(self) -> CratePreTrainedModel:
        classes = self.data.class_names
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
        output = model(pixel_values=batch["pixel_values"])
        logits: Tensor = output.logits
        if len(labels) == 0:  # no image of the batch could be read
            return Step(logits.sum() * 0, 0)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.optimizer.label_smoothing)
        correct = (logits.detach().argmax(-1) == labels).float().mean()
        return Step(inner.regularized(loss, objective=output.objective), len(labels), {"accuracy": correct})

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        labels: Tensor = batch["labels"]
        logits: Tensor = model(pixel_values=batch["pixel_values"]).logits.float()
        top = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        correct = top == labels[:, None]
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "top1": correct[:, 0],
            **({"top5": correct.any(dim=1)} if logits.shape[-1] > 5 else {}),
            "prediction": top[:, 0],
            "label": labels,
        }

    def summarize(self, values: Values) -> dict[str, float]:
        return {name: float(values[name].mean()) for name in ("loss", "top1", "top5") if name in values}

    def headline(self, metrics: dict[str, float]) -> str:
        five = f", top-5 {metrics['top5']:.2%}" if "top5" in metrics else ""
        return f"top-1 {metrics['top1']:.2%}{five}, test loss {metrics['loss']:.4f}"

    def measure_split(
        self, model: CratePreTrainedModel, data: OpenedData | None = None, **reading: Unpack[Reading]
    ) -> MeasuredSplit:
        """Measure every image of a split; the classes of the task's data are matched with the model's by name."""
        if data is None:
            classes, split = class_names(model), reading.get("split") or self.default_split
            data = self.data.with_classes(split, classes, reading.get("class_map"))
        return super().measure_split(model, data, **reading)

    def report(self, measured: MeasuredSplit) -> ClassificationReport:
        return classification_report(measured, self.summarize(measured.values))

    def evaluate_real(
        self, model: CratePreTrainedModel, labels: str | Path, **reading: Unpack[Reading]
    ) -> ClassificationReport:
        """Evaluate on the test split and add the accuracy by ImageNet's ReaL labels (real.json).

        These are indices, so the data must have the classes of the model in the same order, under any names.
        """
        outputs, classes = len(class_names(model)), len(self.data.class_names)
        if outputs != classes:
            raise CrateError(f"the model has {outputs} classes, but {self.data.name} has {classes}")
        accepted = match_real_labels(self.data, self.data.test, labels)
        measured = self.measure_split(model, self.data, **reading)
        predictions = measured.values["prediction"].astype(np.int64)
        crops = measured.crops
        rows = range(len(accepted)) if crops.indices is None else crops.indices
        kept = [accepted[row] for row, readable in zip(rows, crops.readable, strict=True) if readable]
        return replace(self.report(measured), real_top1=real_accuracy(predictions, kept))

    def outcome(
        self, model: CratePreTrainedModel, images: Sequence[Image], own_data: bool, **reading: Unpack[Reading]
    ) -> Outcome:
        from ..inspection import Outcome, Sample, Score

        if not model.config.num_labels:
            return Outcome()
        measured = self.measure_split(model, **reading)
        labels, answers = (measured.values[name].astype(int) for name in ("label", "prediction"))
        accuracy = Score(
            f"Top-1 accuracy on {len(labels):,} images",
            float(measured.values["top1"].mean()),
            percent=True,
            baseline=float(np.bincount(labels).max() / len(labels)),
            baseline_name="most frequent class",
            higher_is_better=True,
        )
        names = measured.crops.data.class_names  # the model's, which the labels are indices into
        samples = []
        for image, answer, label in zip(images[:SHOWN], answers, labels, strict=False):  # classes take turns
            caption = names[answer] if answer == label else f"{names[answer]} (true: {names[label]})"
            samples.append(Sample(caption, bool(answer == label), [image]))
        return Outcome([accuracy], samples, "Predictions for some of the images")

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


def class_names(model: CratePreTrainedModel) -> list[str]:
    """Return the names of a classifier's classes in the order of its outputs."""
    names: Any = model.config.id2label or {}
    if not model.config.num_labels:
        raise CrateError("the model has no classification head; measure its features with crate probe")
    return [str(names[index]) for index in range(model.config.num_labels)]


def labeled_scores(model: CratePreTrainedModel, probabilities: Tensor) -> list[list[dict[str, Any]]]:
    """Return probabilities (batch, classes) as lists of labels with scores, the highest first."""
    names: Any = model.config.id2label or {}
    scores, indices = probabilities.cpu().sort(descending=True)
    return [
        [{"label": names[int(i)], "score": float(s)} for s, i in zip(row, order, strict=True)]
        for row, order in zip(scores, indices, strict=True)
    ]
