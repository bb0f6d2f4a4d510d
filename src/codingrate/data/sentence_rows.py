"""Labelled sentences to token ids, and rows of different length to a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from torch.utils.data import Dataset

from ..errors import CrateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SentenceExample(TypedDict):
    """One sentence or pair, its special tokens in place."""

    input_ids: list[int]
    label: int | float


class SentenceDataset(Dataset[SentenceExample]):
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

    def __getitem__(self, index: int) -> SentenceExample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[SentenceExample]:
        """A batch of rows in one look-up, which the DataLoader asks for when it can."""
        found = self.rows[[range(len(self.rows))[index] for index in indices]]
        texts = [list(found[name]) for name in self.columns]
        encoded = self.tokenizer(
            *texts, truncation="longest_first", max_length=self.max_length, return_attention_mask=False
        )["input_ids"]
        labels = found[self.label_column]
        return [{"input_ids": ids, "label": label} for ids, label in zip(encoded, labels, strict=True)]


def sentence_collator(tokenizer: PreTrainedTokenizerBase) -> Callable[[Any], dict[str, Any]]:
    """Return transformers' collator for sentences: `input_ids` and `attention_mask` (batch, n), `labels` (batch,).

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
