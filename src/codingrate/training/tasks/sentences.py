"""Learning classes or numbers of sentences and pairs (GLUE, paper 4.1.4), from a pre-trained body or from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ...data import GLUE, SentenceData, SentenceDataset, load_sentences, sentence_collator
from ...models.base import CratePreTrainedModel
from ...models.presets import preset
from ..processes import main_process_first
from ..recipe import Recipe
from ..start_text import build_sentence_classifier, run_tokenizer
from .base import Step
from .text import TextTask, text_source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAMES = {"f1": "F1", "spearman": "Spearman", "pearson": "Pearson", "matthews": "Matthews"}


@dataclass(frozen=True)
class LabelledText:
    """Labelled sentences, and the tokenizer of the model that reads them."""

    sentences: SentenceData
    tokenizer: PreTrainedTokenizerBase
    streaming: ClassVar[bool] = False


class SequenceClassification(TextTask):
    """Cross-entropy, or squared error of a number. Measured by the task's own metrics on the first development set."""

    higher = True

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.metrics: tuple[str, ...] = ()

    def load_data(self, folder: Path | None = None) -> LabelledText:
        recipe, share = self.recipe, self.recipe.data.test_share
        with main_process_first():
            data = load_sentences(
                **text_source(recipe),
                columns=recipe.text.columns,
                label_column=recipe.data.label_column,
                regression=recipe.text.regression,
                validation_share=0.1 if share is None else share,
            )
            causal = recipe.model.from_ is None and preset(recipe.model.name).fields.get("causal")
            tokenizer = run_tokenizer(recipe, folder, _sentences(data), "causal" if causal else "masked")
        return LabelledText(data, tokenizer)

    def build_model(self, data: LabelledText) -> CratePreTrainedModel:
        return build_sentence_classifier(self.recipe, data.tokenizer, data.sentences.classes)

    def datasets(self, data: LabelledText, rank: int, world: int) -> tuple[Any, Any]:
        self.tokenizer, found = data.tokenizer, data.sentences
        self.metrics = ("accuracy",) if found.classes else ("spearman", "pearson")
        if found.name in GLUE:
            self.metrics = GLUE[found.name].metrics
        self.best, self.collator = self.metrics[0], sentence_collator(data.tokenizer)
        options = (found.columns, data.tokenizer, self.recipe.text.max_length, found.label_column)
        first = next(iter(found.validation.values()))
        return SentenceDataset(found.train, *options), SentenceDataset(first, *options)

    def collate(self, rows: Any) -> dict[str, Any]:
        return dict(self.collator(rows))

    def step(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        labels, logits = batch["labels"], self._logits(model, batch)
        if labels.is_floating_point():
            return Step(inner.regularized(F.mse_loss(logits[:, 0].float(), labels)), len(labels))
        loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.optimise.label_smoothing)
        right = (logits.detach().argmax(-1) == labels).float().mean()
        return Step(inner.regularized(loss), len(labels), {"accuracy": right})

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        labels, logits = batch["labels"], self._logits(model, batch).float()
        if labels.is_floating_point():
            said = logits[:, 0]
            return {"loss": (said - labels).square(), "prediction": said, "label": labels}
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "prediction": logits.argmax(-1),
            "label": labels,
        }

    def _logits(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        logits: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits

    def summarize(self, figures: dict[str, NDArray[np.float64]]) -> dict[str, float]:
        from ...evaluation.glue import sentence_metrics

        found = sentence_metrics(self.metrics, figures["prediction"], figures["label"])
        return {"loss": float(figures["loss"].mean()), **found}

    def measured_batch(self, rows: list[Any]) -> list[Tensor]:
        return [torch.tensor([row["input_ids"]]) for row in rows]  # each by itself, as padding would be measured too

    def headline(self, figures: dict[str, float]) -> str:
        names = ("accuracy", *NAMES)
        said = [f"{NAMES.get(name, name)} {figures[name]:.2%}" for name in names if name in figures]
        return f"{', '.join(said)}, validation loss {figures['loss']:.4f}"


def _sentences(data: SentenceData) -> Iterator[str]:
    """The text to learn a tokenizer from."""
    for column in data.columns:
        yield from data.train[column]
