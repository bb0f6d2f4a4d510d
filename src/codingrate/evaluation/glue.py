"""Sentences and pairs: the metrics of the GLUE tasks, and the paper's average of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .._files import atomic_write
from ..data import GLUE, SentenceDataset, sentence_collator
from ..errors import CrateError, unknown_name
from ..models import CrateForSequenceClassification
from ..models.modes import evaluating
from ._images import placed
from ._text import check_ids, check_sizes, expect


def _accuracy(predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    return float((predictions == labels).mean())


def _f1(predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    from sklearn.metrics import f1_score

    if max(labels.max(), predictions.max()) > 1:
        raise CrateError("f1 is for two classes; take accuracy for more")
    return float(f1_score(labels, predictions, zero_division=0))


def _matthews(predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions)) if _vary(predictions, labels) else 0.0


def _pearson(predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    from scipy.stats import pearsonr

    return float(pearsonr(predictions.astype(float), labels).statistic) if _vary(predictions, labels) else 0.0


def _spearman(predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, labels).statistic) if _vary(predictions, labels) else 0.0


def _vary(*columns: NDArray[Any]) -> bool:
    """Whether a correlation is defined; for equal predictions it counts as 0, as they tell nothing."""
    return all(np.ptp(column) > 1e-10 * abs(column).max() for column in columns)


SENTENCE_METRICS: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
"""Metrics by name: share of right classes; F1 of class 1; Matthews' and the two correlations of numbers."""

NUMBERS = ("pearson", "spearman")
"""Metrics of a regression; the others are of classes."""


def sentence_metrics(names: Sequence[str], predictions: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """Each named metric of predictions (n,), class indices or numbers, against labels (n,).

    What is undefined is 0: a correlation where all predictions are equal, F1 where class 1 is neither there nor said.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    for name in names:
        if name not in SENTENCE_METRICS:
            raise unknown_name("metric", name, SENTENCE_METRICS)
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise CrateError(f"predictions {predictions.shape} and labels {labels.shape} must both be (n,)")
    if len(labels) == 0:
        raise CrateError("there are no predictions to measure; give a split with rows")
    if not np.isfinite(predictions).all():
        raise CrateError("the predictions are not all numbers: training diverged or the model's file is damaged")
    return {name: SENTENCE_METRICS[name](predictions, labels) for name in names}


def glue_average(scores: Mapping[str, float | Mapping[str, float]]) -> float:
    """The paper's average: the mean of nine numbers, MNLI matched and mismatched counted apart, CoLA left out.

    `scores` gives for each task its first metric; for MNLI a mapping with one for each development set.
    """
    numbers: list[float] = []
    for name, task in GLUE.items():
        if not task.in_average:
            continue
        score = scores.get(name)
        found = score if isinstance(score, Mapping) else {} if score is None else {task.validation[0]: score}
        missing = [split for split in task.validation if split not in found]
        if missing:
            where = f"{name}, {missing[0]}" if len(task.validation) > 1 else name
            raise CrateError(f"the average is that of nine numbers; {where} is missing")
        numbers += [found[split] for split in task.validation]
    return sum(numbers) / len(numbers)


def save_scores(scores: Mapping[str, Any], path: str | Path) -> Path:
    """Write scores to a JSON file, whole or not at all; gives the path."""
    with atomic_write(Path(path)) as draft:
        draft.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    return Path(path)


def score_sentences(
    model: nn.Module,
    rows: SentenceDataset,
    names: Sequence[str],
    *,
    batch_size: int = 32,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """`loss` and the named metrics of a model on labelled sentences.

    The loss is the cross-entropy in nats, or for one output, a regression, the mean squared error. `progress` hears
    after each batch how many rows it held.
    """
    expect(model, CrateForSequenceClassification, "score_sentences")
    check_sizes(batch_size=batch_size)
    loader: DataLoader[Any] = DataLoader(rows, batch_size, collate_fn=sentence_collator(rows.tokenizer))
    place = placed(model, device)
    losses, guesses, truths = 0.0, [], []
    with evaluating(model), torch.inference_mode():
        for batch in loader:
            labels: Tensor = batch["labels"].to(place)
            ids = check_ids(model, batch["input_ids"]).to(place)
            logits = model(input_ids=ids, attention_mask=batch["attention_mask"].to(place)).logits.float()
            _check_head(logits, labels)
            if logits.shape[1] == 1:
                losses += float(F.mse_loss(logits[:, 0], labels.float(), reduction="sum"))
                guesses.append(logits[:, 0].cpu().numpy())
            else:
                losses += float(F.cross_entropy(logits, labels, reduction="sum"))
                guesses.append(logits.argmax(-1).cpu().numpy())
            truths.append(batch["labels"].numpy())
            if progress is not None:
                progress(len(labels))
    if not truths:
        raise CrateError("there are no sentences to measure on; give a split with rows")
    found = sentence_metrics(names, np.concatenate(guesses), np.concatenate(truths))
    return {"loss": losses / sum(map(len, truths)), **found}


def _check_head(logits: Tensor, labels: Tensor) -> None:
    """Refuse labels that the head was not made for."""
    outputs = logits.shape[1]
    if labels.is_floating_point() != (outputs == 1):
        kind = "numbers" if labels.is_floating_point() else "classes"
        raise CrateError(
            f"the model has {outputs} outputs, but the labels are {kind}; take the data it was trained for"
        )
    if outputs > 1 and int(labels.max()) >= outputs:
        raise CrateError(f"the model tells {outputs} classes apart, but there is a label {int(labels.max())}")
