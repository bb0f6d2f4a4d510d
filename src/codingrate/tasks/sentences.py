"""Classification and regression of sentences and pairs (GLUE, paper 4.1.4), from a pre-trained or a new body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from .._distributed import ListedBatches, SharedBatches, main_process_first
from ..data import GLUE, OpenedData, balanced_indices, load_sentences
from ..data.sentences import SentenceDataset, sentence_collator
from ..data.tokens import check_tokenizer
from ..errors import CrateError
from ..evaluation import bag_of_words_metrics, sentence_metrics
from ..models.base import CrateModel, CratePreTrainedModel, eval_mode
from ..models.config import CrateConfig
from ..models.language import CrateForSequenceClassification
from ..models.loading import inherited_config, load_body
from ..models.presets import build_config, preset
from .base import SHOWN, Progress, Reading, Samples, Step, Task, Values, expect_model, freeze_body, no_progress
from .classification import class_names, labeled_scores
from .reports import SentenceReport, class_tables
from .text import TextTask, batched, check_context, rows_of, token_fields

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

    from ..inspection import Outcome

NAMES = {"f1": "F1", "spearman": "Spearman", "pearson": "Pearson", "matthews": "Matthews"}


@dataclass(frozen=True)
class LabeledText:
    """Labeled sentences, and the tokenizer of the model that reads them."""

    sentences: OpenedData
    tokenizer: PreTrainedTokenizerBase


class SequenceClassification(TextTask):
    """Cross-entropy of classes, or squared error of numbers, measured by the metrics of the GLUE task."""

    higher_is_better = True

    def with_data(self, name: str, path: str | None = None, *, held_out: bool = True) -> Task:
        other = super().with_data(name, path, held_out=held_out)
        if other.recipe.data.test_share == 1:  # the columns of the run are tried first
            return other
        data, text = replace(other.recipe.data, label_column=None), replace(other.recipe.text, columns=None)
        return type(self)(replace(other.recipe, data=data, text=text), self.paths)

    @cached_property
    def data(self) -> LabeledText:
        recipe, share = self.recipe, self.recipe.data.test_share
        with main_process_first():
            sentences = load_sentences(
                **self.data_source(),
                columns=recipe.text.columns,
                label_column=recipe.data.label_column,
                regression=recipe.text.regression,
                validation_share=0.1 if share is None else share,
            )
            causal = self.paths.source is None and preset(recipe.model.name).fields.get("causal")
            texts = (text for column in sentences.columns for text in sentences.train[column])
            tokenizer = self.build_tokenizer(texts, "causal" if causal else "masked")
        return LabeledText(sentences, tokenizer)

    @cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of the GLUE task; accuracy or correlations for other data."""
        sentences = self.data.sentences
        if sentences.name in GLUE:
            return GLUE[sentences.name].metrics
        return ("accuracy",) if sentences.classes else ("spearman", "pearson")

    @property
    def best_metric(self) -> str:  # type: ignore[override]
        return self.metric_names[0]

    def dataset(self, split: str, sentences: OpenedData | None = None) -> SentenceDataset:
        """Return a split of the sentences, by default the task's, as a dataset of token ids and labels."""
        sentences = sentences or self.data.sentences
        length = self.recipe.text.max_length
        return SentenceDataset(
            sentences.split(split), sentences.columns, self.tokenizer, length, sentences.label_column
        )

    def datasets(self, rank: int = 0, world_size: int = 1) -> tuple[Any, Any]:
        return self.dataset("train"), self.dataset(self.data.sentences.held_out[0])

    @cached_property
    def _collator(self) -> Callable[[Any], dict[str, Any]]:
        return sentence_collator(self.tokenizer)

    def collate(self, samples: Any) -> dict[str, Any]:
        return self._collator(samples)

    # Model and loss

    def create_model(self) -> CratePreTrainedModel:
        recipe, classes, length = self.recipe, self.data.sentences.classes, self.recipe.text.max_length
        labels: dict[str, Any] = {"num_labels": 1}
        if classes is not None:
            labels = {"id2label": dict(enumerate(classes)), "label2id": {name: i for i, name in enumerate(classes)}}
        source = None if self.paths.source is None else self.load_source()
        if source is None:
            fields = {**preset(recipe.model.name).fields, **token_fields(self.tokenizer, length)}
            config = cast(CrateConfig, build_config({**fields, **labels, **recipe.model.config}))
        else:
            config = inherited_config(source, {**labels, **recipe.model.config})
        if config.modality != "text":
            name = recipe.source or recipe.model.name
            raise CrateError(f"model {name}: task {recipe.task} needs a text model such as crate-bert-base")
        check_context(config, self.tokenizer, "text.max_length", length)
        model = CrateForSequenceClassification(config)
        if source is not None:
            load_body(model.crate, cast(CrateModel, source.base_model).state_dict())
            self.log_source(source, model)
        if recipe.model.freeze:
            freeze_body(model, ("dense.", "head."))
        return model

    def loss(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        labels, output = batch["labels"], self._output(model, batch)
        logits: Tensor = output.logits
        if labels.is_floating_point():
            loss = F.mse_loss(logits[:, 0].float(), labels)
            return Step(inner.regularized(loss, objective=output.objective), len(labels))
        loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.optimizer.label_smoothing)
        correct = (logits.detach().argmax(-1) == labels).float().mean()
        return Step(inner.regularized(loss, objective=output.objective), len(labels), {"accuracy": correct})

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        labels, logits = batch["labels"], self._output(model, batch).logits.float()
        if labels.is_floating_point():
            prediction = logits[:, 0]
            return {"loss": (prediction - labels).square(), "prediction": prediction, "label": labels}
        loss = F.cross_entropy(logits, labels, reduction="none")
        return {"loss": loss, "prediction": logits.argmax(-1), "label": labels}

    def _output(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])

    def summarize(self, values: Values) -> dict[str, float]:
        metrics = sentence_metrics(self.metric_names, values["prediction"], values["label"])
        return {"loss": float(values["loss"].mean()), **metrics}

    def headline(self, metrics: dict[str, float]) -> str:
        names = ("accuracy", *NAMES)
        shown = [f"{NAMES.get(name, name)} {metrics[name]:.2%}" for name in names if name in metrics]
        return f"{', '.join(shown)}, validation loss {metrics['loss']:.4f}"

    def layerwise_batch(self, samples: list[Any]) -> list[Tensor]:
        return [torch.tensor([sample["input_ids"]]) for sample in samples]  # one by one: padding would be measured too

    # Evaluation

    def evaluate(self, model: CratePreTrainedModel, **reading: Unpack[Reading]) -> SentenceReport:
        """Measure a split, or every validation split."""
        expect_model(model, CrateForSequenceClassification, self.recipe.task)
        check_tokenizer(self.tokenizer, model.config)
        own, split, class_map = self.data.sentences, reading.get("split"), reading.get("class_map")
        _check_kind(model, own)
        classes = None if own.classes is None else tuple(class_names(model))
        scores, per_class, confusion = {}, {}, {}
        for name in own.held_out if split is None else [split]:
            dataset = self._filled(name, None if classes is None else own.with_classes(name, classes, class_map))
            values = self.measure_batches(model, self.loaded(model, dataset, reading))
            scores[name] = {**self.summarize(values), "rows": len(dataset)}
            if classes is not None:
                per_class[name], confusion[name] = class_tables(values, classes, "sentences")
        return SentenceReport(own.name, scores, own.total, classes, per_class, confusion)

    def _filled(self, split: str, sentences: OpenedData | None = None) -> SentenceDataset:
        dataset = self.dataset(split, sentences)
        if len(dataset) == 0:
            raise CrateError(f"the {split} split of {self.data.sentences.name} is empty; use another `split`")
        return dataset

    def baseline(self, split: str | None = None, progress: Progress | None = None) -> dict[str, dict[str, float]]:
        """Measure logistic regression on the words of the sentences, on a split or on every validation split."""
        sentences = self.data.sentences
        scores = {}
        for name in sentences.held_out if split is None else [split]:
            scores[name] = bag_of_words_metrics(
                sentences.train,
                sentences.split(name),
                sentences.columns,
                self.metric_names,
                label_column=sentences.label_column,
            )
            if progress is not None:
                progress(1)
        return scores

    # Prediction and inspection

    def outcome(
        self, model: CratePreTrainedModel, images: Sequence[Image], own_data: bool, **reading: Unpack[Reading]
    ) -> Outcome:
        from ..inspection import Outcome, Sample, Score

        sentences, split = self.data.sentences, reading.get("split") or self.data.sentences.held_out[0]
        rows = sentences.split(split)
        metrics = self.evaluate(model, split=split, batch_size=reading.get("batch_size", 64)).splits[split]
        labels = list(rows[sentences.label_column])
        scores = []
        for name in self.metric_names:
            share = Counter(labels).most_common(1)[0][1] / len(labels) if name == "accuracy" else None
            title = f"{name.capitalize()} on {len(labels):,} sentences"
            scores.append(Score(title, metrics[name], True, share, "most frequent class", True))
        shown = rows.select(balanced_indices(self.dataset(split).labels, SHOWN // 2))
        inputs = list(zip(*(shown[column] for column in sentences.columns), strict=True))
        samples = []
        for text, answer in zip(inputs, self.predict(model, inputs), strict=True):
            best = f"{answer:.2f}" if isinstance(answer, float) else f"{answer[0]['label']} ({answer[0]['score']:.0%})"
            samples.append(Sample("", None, text=" / ".join(text), answer=f" → {best}"))
        return Outcome(scores, samples, "Predictions for some of the sentences")

    def predict(self, model: CratePreTrainedModel, inputs: Sequence[Any]) -> list[Any]:
        """Return for every sentence or pair its classes with probabilities, or the predicted number."""
        expect_model(model, CrateForSequenceClassification, self.recipe.task)
        check_tokenizer(self.tokenizer, model.config)
        texts = [(text,) if isinstance(text, str) else tuple(text) for text in inputs]
        length = self.recipe.text.max_length
        batch = self.collate([self.tokenizer(*text, truncation=True, max_length=length) for text in texts])
        with eval_mode(model), torch.inference_mode():
            logits = self._output(model, {name: ids.to(model.device) for name, ids in batch.items()}).logits.float()
        return logits[:, 0].tolist() if logits.shape[1] == 1 else labeled_scores(model, logits.softmax(-1))

    def write_sample(self, folder: Path, count: int) -> Path | None:
        """Write labeled sentences, balanced over classes, as sample.parquet."""
        rows = self.data.sentences.split(self.data.sentences.held_out[0])
        chosen = balanced_indices(self.dataset(self.data.sentences.held_out[0]).labels, count)
        rows.select(chosen).to_parquet(str(folder / "sample.parquet"))
        return folder / "sample.parquet"

    def samples(self, split: str | None, limit: int) -> Samples:
        split = split or self.data.sentences.held_out[0]
        return Samples(self.data.sentences.name, split, min(limit, len(self._filled(split))))

    def batches(
        self, model: CratePreTrainedModel, reader: Task | None = None, **reading: Unpack[Reading]
    ) -> SharedBatches[dict[str, Tensor]]:
        del reader  # models are compared only if their tokenizers are equal
        dataset = self._filled(reading.get("split") or self.data.sentences.held_out[0])

        def load(rows: Sequence[int]) -> dict[str, Tensor]:
            batch = self.collate(rows_of(dataset, rows))
            reading.get("progress", no_progress)(len(rows))
            return {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}

        rows = balanced_indices(dataset.labels, reading.get("limit", len(dataset)))
        return ListedBatches(batched(rows, reading), load)


def _check_kind(model: CratePreTrainedModel, sentences: OpenedData) -> None:
    """Refuse numbers for a classifier, and classes for a model that predicts numbers."""
    outputs, kind = model.config.num_labels, "numbers" if sentences.classes is None else "classes"
    if (outputs == 1) != (sentences.classes is None):
        raise CrateError(f"the model has {outputs} outputs, but the labels are {kind}; use data like its training data")
