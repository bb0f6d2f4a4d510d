"""What tasks on text share: a tokenizer that is saved with the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ...models.base import CratePreTrainedModel
from ..recipe import Recipe
from ..start import given_data
from .base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextTask(Task):
    """Learning from text."""

    samples: ClassVar[str] = "seq"

    tokenizer: PreTrainedTokenizerBase
    """Set by `datasets`."""

    def prepare(self, batch: dict[str, Any], seed: int | None) -> dict[str, Any]:
        return batch

    def save(self, model: CratePreTrainedModel, weights: dict[str, Tensor] | None, folder: Path) -> None:
        super().save(model, weights, folder)
        self.tokenizer.save_pretrained(folder)


def text_source(recipe: Recipe) -> dict[str, Any]:
    """Where the text lies, as arguments of `load_text` and `load_sentences`."""
    return {"name": given_data(recipe), "path": recipe.data.path, "split_seed": recipe.data.split_seed}
