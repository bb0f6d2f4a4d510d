"""The sums an evaluation keeps while images go by."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..data import ImageData
from .report import ClassAccuracy, ClassificationReport

_LARGEST_CONFUSION = 4096  # classes; the matrix of ImageNet-21K would take four gigabytes


class Tally:
    """Sums over batches; of each image only the predicted class is kept."""

    def __init__(self, classes: int) -> None:
        self.loss, self.among_five = 0.0, 0
        self.images = np.zeros(classes, np.int64)
        self.right = np.zeros(classes, np.int64)
        self.confusion = np.zeros((classes, classes), np.int64) if classes <= _LARGEST_CONFUSION else None
        self.predictions: list[NDArray[np.int64]] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch: logits (batch, classes), labels (batch,) on the CPU. Ties go where `topk` puts them."""
        there = labels.to(logits.device)
        self.loss += float(F.cross_entropy(logits, there, reduction="none").double().sum())
        best = logits.topk(min(5, logits.shape[1])).indices
        self.among_five += int((best == there[:, None]).sum())
        true, guess = labels.numpy(), best[:, 0].cpu().numpy()
        np.add.at(self.images, true, 1)
        np.add.at(self.right, true[true == guess], 1)
        if self.confusion is not None:
            np.add.at(self.confusion, (true, guess), 1)
        self.predictions.append(guess)

    def report(
        self, data: ImageData, split: str, corrupt: tuple[str, ...], real: float | None, seconds: float
    ) -> ClassificationReport:
        """The sums as shares, with what the tally does not know."""
        count = int(self.images.sum())
        per_class: list[ClassAccuracy] = [
            {"class": name, "images": int(images), "accuracy": int(right) / int(images) if images else None}
            for name, images, right in zip(data.classes, self.images, self.right, strict=True)
        ]
        return ClassificationReport(
            data=data.name,
            split=split,
            images=count,
            corrupt=corrupt,
            loss=self.loss / count,
            top1=int(self.right.sum()) / count,
            top5=self.among_five / count if len(data.classes) > 5 else None,
            per_class=per_class,
            confusion=self.confusion,
            classes=data.classes,
            real_top1=real,
            seconds=seconds,
            images_per_second=count / seconds,
        )
