"""Sentence classification and regression: the metrics of the GLUE tasks, and their average as in the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..data import GLUE, SentenceRows, pad_batch
from ..errors import CrateError, unknown_name
from ..models import CrateForSequenceClassification
from ..models.modes import evaluating
from .inputs import check_model_type, check_positive, check_token_ids, move_to_device

CLASS_METRICS = ("accuracy", "f1", "matthews")
"""Metrics of class predictions; `f1` is that of class 1, `matthews` is a correlation."""
REGRESSION_METRICS = ("pearson", "spearman")
"""Metrics of numbers, both correlations."""


def sentence_metrics(names: Sequence[str], predictions: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """Return each named metric of predictions (n,), which are class indices or numbers, and labels (n,).

    An undefined metric is 0: a correlation if all predictions are equal, F1 if class 1 occurs in neither.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    known = (*CLASS_METRICS, *REGRESSION_METRICS)
    for name in names:
        if name not in known:
            raise unknown_name("metric", name, known)
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise CrateError(f"predictions {predictions.shape} and labels {labels.shape} must both be (n,)")
    if len(labels) == 0:
        raise CrateError("there are no predictions to score; use a split that is not empty")
    if not np.isfinite(predictions).all():
        raise CrateError("the predictions are not all finite: training diverged or the model's file is damaged")
    return {name: float(_metric(name, predictions, labels)) for name in names}


def _metric(name: str, predictions: NDArray[Any], labels: NDArray[Any]) -> Any:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import f1_score, matthews_corrcoef

    if name == "accuracy":
        return (predictions == labels).mean()
    if name == "f1":
        if max(labels.max(), predictions.max()) > 1:
            raise CrateError("f1 needs two classes; use accuracy for more")
        return f1_score(labels, predictions, zero_division=0)
    if any(np.ptp(column) <= 1e-10 * abs(column).max() for column in (predictions, labels)):  # one is constant
        return 0.0
    if name == "matthews":
        return matthews_corrcoef(labels, predictions)
    return (pearsonr if name == "pearson" else spearmanr)(predictions.astype(float), labels).statistic


def glue_average(scores: Mapping[str, float | Mapping[str, float]]) -> float:
    """Return the paper's average: the mean of nine scores, with two for MNLI (matched, mismatched) and without CoLA.

    `scores` contains the main metric of each task; for MNLI, a mapping with one score per validation set.
    """
    values: list[float] = []
    for name, task in GLUE.items():
        if not task.in_average:
            continue
        score = scores.get(name)
        by_split = score if isinstance(score, Mapping) else {} if score is None else {task.validation[0]: score}
        missing = [split for split in task.validation if split not in by_split]
        if missing:
            label = f"{name}, {missing[0]}" if len(task.validation) > 1 else name
            raise CrateError(f"the average needs nine scores; {label} is missing")
        values += [by_split[split] for split in task.validation]
    return sum(values) / len(values)


def score_sentences(
    model: nn.Module,
    rows: SentenceRows,
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
    check_model_type(model, CrateForSequenceClassification, "score_sentences")
    check_positive(batch_size=batch_size)
    pad: Any = rows.tokenizer.pad_token_id
    loader: DataLoader[Any] = DataLoader(rows, batch_size, collate_fn=lambda some: pad_batch(some, pad))
    place = move_to_device(model, device)
    losses, guesses, truths = 0.0, [], []
    with evaluating(model), torch.inference_mode():
        for batch in loader:
            labels: Tensor = batch["labels"].to(place)
            ids = check_token_ids(model, batch["input_ids"]).to(place)
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
