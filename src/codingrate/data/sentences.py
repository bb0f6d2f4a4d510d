"""Labeled sentences and pairs of sentences: GLUE tasks and files of the same kind, tokenized when they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ..errors import CrateError, unknown_name
from .catalog import GLUE
from .classes import ClassMap, match_classes
from .columns import (
    check_texts,
    column_array,
    common_names,
    encode_classes,
    encode_numbers,
    find_column,
    find_sentence_columns,
    has_labels,
    hold_out,
    label_indices,
    map_classes,
)
from .fingerprint import Fingerprint, fingerprint, table_fingerprint
from .sources import Seed, check_arguments, check_share, choose_splits, open_splits

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
    test: Any = None
    """Labeled test split, if there is one besides the validation sets."""

    @property
    def splits(self) -> dict[str, Any]:
        """The splits by name: the training split, the validation sets and the test split."""
        return {"train": self.train, **self.validation, **({} if self.test is None else {"test": self.test})}

    @property
    def total(self) -> int:
        """Number of sentences or pairs in all splits."""
        return sum(map(len, self.splits.values()))

    @property
    def fingerprint(self) -> Fingerprint:
        """Plain values that change with the classes, the number of sentences, their order, labels or words.

        Store it with a run and compare it with `describe_change` when the run is resumed.
        """
        splits = {
            name: table_fingerprint(part, self.columns, column_array(part, self.label_column))
            for name, part in self.splits.items()
        }
        return fingerprint(self.classes, splits)

    def split(self, name: str) -> Any:
        """Return a split by name; `all` stands for all of them, one after the other."""
        import datasets

        if name == "all":
            return datasets.concatenate_datasets([part for part in self.splits.values() if len(part)])
        if name not in self.splits:
            raise unknown_name("split", name, (*self.splits, "all"))
        return self.splits[name]

    def with_classes(self, split: str, model: Sequence[str], labels: ClassMap = None) -> SentenceData:
        """Return the sentences with the classes of a model in place of their own, matched by name.

        Only the classes that occur in the `split` must have a match; see `match_classes`.
        """
        if self.classes is None:
            return self
        present = np.unique(label_indices(self.split(split), self.label_column))
        indices = match_classes(self.name, self.classes, model, labels, present)
        if indices == list(range(len(self.classes))):
            return replace(self, classes=tuple(model))
        mapped = {name: map_classes(part, self.label_column, indices) for name, part in self.splits.items()}
        validation = {name: mapped[name] for name in self.validation}
        changes = {"train": mapped["train"], "validation": validation, "test": mapped.get("test")}
        return replace(self, classes=tuple(model), **changes)


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
) -> SentenceData:
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
    train = parts.pop("train", None)
    if train is None:
        train = next(iter(parts.values())).select([])
    elif not parts:
        train, parts["validation"] = hold_out(name, train, label, validation_share, split_seed)
    test = parts.pop("test") if "test" in parts and len(parts) > 1 else None
    return SentenceData(name, train, parts, texts, label, classes, test)


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
            raise CrateError(f"text.max_length is {self.max_length}; {needs}")

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class index of each sentence; zeros for numbers."""
        return label_indices(self.dataset, self.label_column)

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
