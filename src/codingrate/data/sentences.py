"""Labeled sentences and pairs of sentences: GLUE tasks and files of the same kind, tokenized when they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ..errors import CrateError
from .catalog import GLUE
from .columns import (
    check_texts,
    common_names,
    encode_classes,
    encode_numbers,
    find_column,
    find_sentence_columns,
    has_labels,
    hold_out,
)
from .opened import OpenedData
from .rows import LabeledRows
from .sources import Seed, check_arguments, check_share, choose_splits, open_splits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@check_arguments
def load_sentences(
    name: str,
    *,
    path: str | Path | None = None,
    columns: Sequence[str] | None = None,
    label_column: str | None = None,
    regression: bool | None = None,
    validation_share: float = 0.1,
    split_seed: Seed = 0,
) -> OpenedData:
    """Open a GLUE task (a key of `GLUE`), a local file or folder, or a hub id, looked up in this order.

    `path` is where the files of a GLUE task are: a folder with train and validation (for MNLI validation_matched and
    validation_mismatched) as .parquet, .jsonl, .csv or .tsv. `columns` names one or two text columns. Labels that are
    floats make a `regression` unless it is set. A single split is split class by class by `split_seed`. A
    `validation_share` of 1 opens data to evaluate a trained model: a single split is all validation, one class is
    enough, and the columns need not be those that are given.
    """
    task, whole = GLUE.get(name), validation_share == 1
    check_share("validation_share", validation_share)
    if task is not None and regression not in (None, task.classes is None):
        raise CrateError(f"`regression` cannot be {regression} for {name}; leave it out")
    splits = open_splits(name, kind="sentences", path=path)
    validation = {split: part for split, part in splits.items() if split.startswith("validation")}
    if validation and ("train" in splits or whole):
        others = ("train",) if task else ("train", "test")  # GLUE's test splits have no labels
        parts = {**{split: splits[split] for split in others if split in splits}, **validation}
    else:
        parts = choose_splits(name, splits, whole)
    first = next(iter(parts.values()))
    wanted, hint = tuple(columns) if columns else None, task.columns if task else None
    if whole:  # other columns than those of the training data are fine
        hint, wanted = wanted if wanted and {*wanted} <= {*first.features} else hint, None
    texts = find_sentence_columns(name, first, wanted, hint)
    rest = {column: feature for column, feature in first.features.items() if column not in texts}
    label = find_column("label", name, rest, None if whole else label_column, label_column)
    if "test" in parts and len(parts) > 1 and not has_labels(parts["test"], label):
        del parts["test"]
    for split, part in parts.items():
        check_texts(f"the {split} split of {name}", part, texts, label)
        parts[split] = part.select_columns([*texts, label])
    if regression is None:
        is_float = str(getattr(first.features[label], "dtype", "")).startswith("float")
        regression = is_float if task is None else task.classes is None
    if regression:
        parts, classes = encode_numbers(name, parts, label), None
    else:
        known = task.classes if task else common_names(parts, label, whole)
        parts, classes = encode_classes(name, parts, label, known, whole=whole)
    if "train" not in parts:
        parts["train"] = next(iter(parts.values())).select([])
    elif len(parts) == 1:
        parts["train"], parts["validation"] = hold_out(name, parts["train"], label, validation_share, split_seed)
    order = ("train", *(split for split in parts if split.startswith("validation")), "test")
    parts = {split: parts[split] for split in order if split in parts}
    return OpenedData(name, parts, texts, label, classes)


class SentenceExample(TypedDict):
    """One sentence or pair with its special tokens."""

    input_ids: list[int]
    label: int | float


@dataclass(eq=False)
class SentenceDataset(LabeledRows[SentenceExample]):
    """Sentences or pairs, tokenized when they are read; a pair that is too long is shortened at its longer sentence."""

    dataset: Any
    columns: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    max_length: int = 512
    label_column: str = "label"

    def __post_init__(self) -> None:
        least = self.tokenizer.num_special_tokens_to_add(pair=len(self.columns) == 2) + len(self.columns)
        if self.max_length < least:
            raise CrateError(
                f"text.max_length is {self.max_length}; special tokens and one token of each sentence need {least}"
            )

    def __getitems__(self, indices: list[int]) -> list[SentenceExample]:
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
