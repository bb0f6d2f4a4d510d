"""Labelled sentences to token ids, and rows of different length to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import CrateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SentenceRow(TypedDict):
    """One sentence or pair, its special tokens in place."""

    input_ids: list[int]
    label: int | float


class SentenceRows(Dataset[SentenceRow]):
    """Sentences or pairs, tokenised when they are asked for; pairs that are too long lose tokens where they have most.

    A float label makes a regression, an integer is a class.
    """

    def __init__(
        self,
        rows: Any,
        columns: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int = 512,
        label_column: str = "label",
    ) -> None:
        least = tokenizer.num_special_tokens_to_add(pair=len(columns) == 2) + len(columns)
        if max_length < least:
            raise CrateError(f"max_length is {max_length}; special tokens and a word of each sentence take {least}")
        self.rows, self.columns, self.label_column = rows, tuple(columns), label_column
        self.tokenizer, self.max_length = tokenizer, max_length

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> SentenceRow:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[SentenceRow]:
        """A batch of rows in one look-up, which the DataLoader asks for when it can."""
        found = self.rows[[range(len(self.rows))[index] for index in indices]]
        texts = [list(found[name]) for name in self.columns]
        encoded = self.tokenizer(
            *texts, truncation="longest_first", max_length=self.max_length, return_attention_mask=False
        )["input_ids"]
        labels = found[self.label_column]
        return [{"input_ids": ids, "label": label} for ids, label in zip(encoded, labels, strict=True)]


def pad_batch(rows: Sequence[SentenceRow], pad_id: int | None = None) -> dict[str, Tensor]:
    """Rows padded at the end to the longest: `input_ids` and `attention_mask` (batch, n), `labels` (batch,), long for
    classes and float for regression. What the padding holds has no effect, so a tokenizer without one may do.
    """
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.full((len(rows), longest), pad_id or 0, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[place, :length] = torch.tensor(row["input_ids"], dtype=torch.long)
        mask[place, :length] = 1
    numbers = isinstance(rows[0]["label"], float)
    labels = torch.tensor([row["label"] for row in rows], dtype=torch.float if numbers else torch.long)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
