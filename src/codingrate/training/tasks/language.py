"""Learning to predict tokens (paper 4.1.4): the next one (CRATE-GPT), or those that are hidden (CRATE-BERT)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ...data import Blocks, Masking, RandomBlocks, TokenFile, load_text, mask_own_tokens, mask_tokens, pack_text
from ...errors import CrateError
from ...models.base import CratePreTrainedModel
from ...models.language import CrateForCausalLM, CrateForMaskedLM
from ..processes import main_process_first
from ..start_text import build_language_model, run_tokenizer
from .base import Step, generator, weighted_means
from .text import TextTask, text_source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PackedText:
    """A text as token ids, and the tokenizer that made them."""

    train: TokenFile
    validation: TokenFile
    tokenizer: PreTrainedTokenizerBase
    streaming: ClassVar[bool] = False


class LanguageTask(TextTask):
    """What both objectives share: text packed into files of ids, in the run's folder unless the recipe names one."""

    evaluation_batch: ClassVar[int] = 1  # logits are as wide as the vocabulary
    kind: ClassVar[Literal["masked", "causal"]]
    special_tokens: ClassVar[Literal["eos", "bos_eos"]]

    def load_data(self, folder: Path | None = None) -> PackedText:
        section, text = self.recipe.data, self.recipe.text
        reading: dict[str, Any] = {"text_column": text.text_column, "separate": text.separate}
        with main_process_first():
            data = load_text(**text_source(self.recipe), **reading, validation_share=section.test_share)
            tokenizer = run_tokenizer(self.recipe, folder, data.train, self.kind)
            self._check(tokenizer)
            where = text.cache or (None if folder is None else folder / "tokens")
            parts = {"train": data.train, "validation": data.validation}
            packed = {
                split: pack_text(
                    part, tokenizer, name=f"{data.name}-{split}", folder=where, special_tokens=self.special_tokens
                )
                for split, part in parts.items()
            }
        return PackedText(**packed, tokenizer=tokenizer)

    def _check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        name = "mask_token" if self.kind == "masked" else "eos_token"
        if getattr(tokenizer, f"{name}_id") is None:
            raise CrateError(
                f"text.tokenizer: has no {name}, which task: {self.recipe.task} needs; take bytes, bpe or another"
            )

    def collate(self, rows: Any) -> dict[str, Any]:
        return {"input_ids": torch.stack([row["input_ids"] for row in rows])}


class CausalLM(LanguageTask):
    """The next token, cross-entropy. Windows of block + 1 tokens give `block` predictions each: drawn at random in
    training, as in nanoGPT, one after the other in evaluation."""

    kind, special_tokens = "causal", "eos"

    def build_model(self, data: PackedText) -> CratePreTrainedModel:
        return build_language_model(self.recipe, data.tokenizer, CrateForCausalLM, "crate-gpt-base")

    def datasets(self, data: PackedText, rank: int, world: int) -> tuple[Any, Any]:
        self.tokenizer, block = data.tokenizer, self.recipe.text.block
        self.bits = len(data.validation) / data.validation.bytes / math.log(2)  # of a byte, per nat of a token
        length = max(1, len(data.train) // block)
        train = RandomBlocks(data.train, block + 1, seed=self.recipe.run.seed, length=length)
        return train, Blocks(data.validation, block + 1)

    def step(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        ids: Tensor = batch["input_ids"]
        loss = F.cross_entropy(*self._predicted(model, ids), label_smoothing=self.recipe.optimise.label_smoothing)
        return Step(inner.regularized(loss), len(ids))

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        losses = F.cross_entropy(*self._predicted(model, batch["input_ids"]), reduction="none")
        return {"loss": losses.view(len(batch["input_ids"]), -1).mean(dim=1)}

    def _predicted(self, model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = model(input_ids=ids[:, :-1]).logits
        return logits.flatten(0, 1), ids[:, 1:].flatten()

    def summarize(self, figures: dict[str, NDArray[np.float64]]) -> dict[str, float]:
        loss = weighted_means(figures)["loss"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "bits_per_byte": loss * self.bits}

    def measured_batch(self, rows: list[Any]) -> Tensor:
        return torch.stack([row["input_ids"][:-1] for row in rows])

    def headline(self, figures: dict[str, float]) -> str:
        return (
            f"validation loss {figures['loss']:.4f} nats per token, perplexity {figures['perplexity']:.2f}, "
            f"{figures['bits_per_byte']:.4f} bits per byte"
        )


class MaskedLM(LanguageTask):
    """Hidden tokens, cross-entropy over them: in training others every time, in evaluation each block's own."""

    kind, special_tokens = "masked", "bos_eos"

    def build_model(self, data: PackedText) -> CratePreTrainedModel:
        return build_language_model(self.recipe, data.tokenizer, CrateForMaskedLM, "crate-bert-base")

    def datasets(self, data: PackedText, rank: int, world: int) -> tuple[Any, Any]:
        self.tokenizer, self.masking = data.tokenizer, Masking.of(data.tokenizer)
        block = self.recipe.text.block
        return Blocks(data.train, block), Blocks(data.validation, block)

    def prepare(self, batch: dict[str, Any], seed: int | None) -> dict[str, Any]:
        ids, share = batch["input_ids"], self.recipe.text.mask_probability
        if seed is None:
            hidden, labels = mask_own_tokens(ids, self.masking, share)
        else:
            hidden, labels = mask_tokens(ids, self.masking, share, generator(seed))
        return {**batch, "input_ids": hidden, "labels": labels}

    def step(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        logits, labels = model(input_ids=batch["input_ids"]).logits, batch["labels"]
        asked = (labels >= 0).sum().clamp(min=1)  # a small batch may hide nothing
        smoothing = self.recipe.optimise.label_smoothing
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing)
        right = (logits.detach().argmax(-1) == labels).sum() / asked
        return Step(inner.regularized(total / asked), len(labels), {"accuracy": right})

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        logits, labels = model(input_ids=batch["input_ids"]).logits, batch["labels"]
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
        asked = (labels >= 0).sum(dim=1)
        each = asked.clamp(min=1)
        right = (logits.argmax(-1) == labels).sum(dim=1)
        return {"loss": losses.sum(dim=1) / each, "accuracy": right / each, "weight": asked}

    def measured_batch(self, rows: list[Any]) -> Tensor:
        return torch.stack([row["input_ids"] for row in rows])

    def headline(self, figures: dict[str, float]) -> str:
        return f"validation loss {figures['loss']:.4f} nats per hidden token, accuracy {figures['accuracy']:.2%}"
