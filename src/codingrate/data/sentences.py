"""Labeled sentences and pairs of sentences: GLUE tasks and files of the same kind, tokenized when they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from torch.utils.data import Dataset

from ..errors import CrateError
from .catalog import GLUE
from .columns import check_texts, encode_classes, encode_numbers, find_column, find_sentence_columns, hold_out
from .sources import check_share, choose_splits, open_splits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SentenceData:
    """Labeled sentences or pairs, split, with every label checked."""

    name: str
    train: Any
    """Training split, a `datasets.Dataset`."""
    validation: dict[str, Any]
    """Validation sets by name: MNLI has `validation_matched` and `validation_mismatched`."""
    columns: tuple[str, ...]
    """Column of the sentence, or of both sentences."""
    label_column: str
    """Column with the class index (integer) or the number (float)."""
    classes: tuple[str, ...] | None
    """Class names; None for regression."""


def load_sentences(
    name: str,
    *,
    path: str | Path | None = None,
    columns: Sequence[str] | None = None,
    label_column: str | None = None,
    regression: bool | None = None,
    validation_share: float = 0.1,
    split_seed: int = 0,
) -> SentenceData:
    """Open a GLUE task (a key of `GLUE`), a local file or folder, or a hub id, looked up in this order.

    `path` is where the files of a GLUE task are: a folder with train and validation (for MNLI validation_matched and
    validation_mismatched) as .parquet, .jsonl, .csv or .tsv. `columns` names one or two text columns. Labels that are
    floats make a `regression` unless it is set. A single split is split class by class by `split_seed`; a
    `validation_share` of 1 makes all of it validation.
    """
    task = GLUE.get(name)
    check_share("validation_share", validation_share)
    if task is not None and regression not in (None, task.classes is None):
        raise CrateError(f"`regression` cannot be {regression} for {name}; leave it out")
    splits = open_splits(name, kind="sentences", path=path)
    if "train" not in splits and len(splits) > 1:
        raise CrateError(f"{name} has no training split, only {', '.join(splits)}")
    validation = {split: part for split, part in splits.items() if split.startswith("validation")}
    parts = {"train": splits["train"], **validation} if "train" in splits and validation else choose_splits(splits)
    train = parts["train"]
    texts = find_sentence_columns(name, train, tuple(columns) if columns else None, task.columns if task else None)
    others = {column: feature for column, feature in train.features.items() if column not in texts}
    label = find_column("label", name, others, label_column)
    for split, part in parts.items():
        check_texts(f"the {split} split of {name}", part, texts, label)
        parts[split] = part.select_columns([*texts, label])
    if regression is None:
        is_float = str(getattr(train.features[label], "dtype", "")).startswith("float")
        regression = is_float if task is None else task.classes is None
    if regression:
        parts, classes = encode_numbers(name, parts, label), None
    else:
        parts, classes = encode_classes(name, parts, label, task.classes if task else None)
    train = parts.pop("train")
    if not parts:
        train, parts["validation"] = hold_out(name, train, label, validation_share, split_seed)
    return SentenceData(name, train, parts, texts, label, classes)


class SentenceExample(TypedDict):
    """One sentence or pair with its special tokens."""

    input_ids: list[int]
    label: int | float


@dataclass(eq=False)
class SentenceDataset(Dataset[SentenceExample]):
    """Sentences or pairs, tokenized when they are read; a pair that is too long is shortened at its longer sentence."""

    dataset: Any
    columns: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    max_length: int = 512
    label_column: str = "label"

    def __post_init__(self) -> None:
        least = self.tokenizer.num_special_tokens_to_add(pair=len(self.columns) == 2) + len(self.columns)
        if self.max_length < least:
            needs = f"special tokens and one token of each sentence need {least}"
            raise CrateError(f"`max_length` is {self.max_length}; {needs}")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> SentenceExample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[SentenceExample]:
        """Return a batch of examples with a single look-up; the DataLoader calls this where it exists."""
        rows = self.dataset[[range(len(self.dataset))[index] for index in indices]]
        texts = [list(rows[name]) for name in self.columns]
        encoded = self.tokenizer(
            *texts, truncation="longest_first", max_length=self.max_length, return_attention_mask=False
        )["input_ids"]
        labels = rows[self.label_column]
        return [{"input_ids": ids, "label": label} for ids, label in zip(encoded, labels, strict=True)]


def sentence_collator(tokenizer: PreTrainedTokenizerBase) -> Callable[[Any], dict[str, Any]]:
    """Return transformers' collator for examples: `input_ids` and `attention_mask` (batch, n), `labels` (batch,).

    Padding goes to the end of a sentence. A tokenizer without a padding token pads with id 0, which has no effect
    because the attention mask is 0 there.
    """
    from transformers import DataCollatorWithPadding

    tokenizer = copy.deepcopy(tokenizer)  # the caller's tokenizer keeps its settings
    tokenizer.padding_side = "right"
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    return DataCollatorWithPadding(tokenizer)
