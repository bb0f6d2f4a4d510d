"""Language modeling (paper 4.1.4): the next token (CRATE-GPT) or masked tokens (CRATE-BERT)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from .._distributed import ListedBatches, SharedBatches, main_process_first
from .._files import write_text
from .._report import Report
from ..data import Blocks, Masking, OpenedData, RandomBlocks, load_text, mask_own_tokens, mask_tokens, pack_text
from ..data.tokens import TokenFile, check_tokenizer, id_count
from ..errors import CrateError, unknown_name
from ..evaluation import Candidate, NGram, fill_masks, next_token_losses, perplexity, unigram_cross_entropy
from ..models.base import CratePreTrainedModel
from ..models.language import CrateForCausalLM, CrateForMaskedLM
from ..recipes.schema import Separator
from .base import Progress, Reading, Samples, Step, Task, Values, expect_model, generator, no_progress, weighted_means
from .reports import MaskedReport
from .text import TextTask, rows_of, spread

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

    from ..inspection import Outcome, Sample

COUNTED = 20_000_000
"""Largest number of training tokens that a baseline counts, about a minute."""
READ, WRITTEN = 24, 60
"""Number of tokens of the prompt in a summary, and of its continuation."""
UNLEARNED = 0.01
"""Nats below the loss of the token frequencies from which a model counts as having learned more."""


@dataclass(frozen=True)
class TokenizedText:
    """A text, and the tokenizer that splits it into tokens."""

    text: OpenedData
    tokenizer: PreTrainedTokenizerBase


class LanguageTask(TextTask):
    """Both objectives: text is tokenized once, into files of ids."""

    evaluation_batch_size: ClassVar[int] = 1  # logits are as wide as the vocabulary
    kind: ClassVar[Literal["masked", "causal"]]
    special_tokens: ClassVar[Literal["eos", "bos_eos"]]
    predicted: ClassVar[str]
    """Name of what is predicted."""

    @property
    def default_split(self) -> str:  # type: ignore[override]
        """The validation split, or all of a text without splits from which nothing was held out."""
        return "all" if self.data.text.whole else "validation"

    def with_data(
        self,
        name: str,
        path: str | None = None,
        *,
        held_out: bool = True,
        text_column: str | None = None,
        separate: Separator | None = None,
    ) -> Task:
        """Return the same task on another text, read by column and document separator."""
        if separate not in (None, *get_args(Separator)):
            raise unknown_name("`separate`", separate, get_args(Separator))
        other = super().with_data(name, path, held_out=held_out)
        text = replace(other.recipe.text, text_column=text_column, separate=separate or "document")
        return type(self)(replace(other.recipe, text=text), self.paths)

    @cached_property
    def data(self) -> TokenizedText:
        section = self.recipe.text
        with main_process_first():
            text = load_text(
                **self.data_source(),
                text_column=section.text_column,
                separate=section.separate,
                validation_share=self.recipe.data.test_share,
            )
            tokenizer = self.build_tokenizer(text.train, self.kind)
        name = "mask_token" if self.kind == "masked" else "eos_token"
        if getattr(tokenizer, f"{name}_id") is None:
            raise CrateError(
                f"text.tokenizer: task {self.recipe.task} needs a tokenizer with {name}; use bytes, bpe or another"
            )
        return TokenizedText(text, tokenizer)

    @cached_property
    def _tokens(self) -> dict[str, TokenFile]:
        """Splits that were tokenized before."""
        return {}

    def tokens(self, split: str, progress: Progress | None = None) -> TokenFile:
        """Return a split as token ids; text is tokenized on first use and kept in the run's token folder."""
        if split not in self._tokens:
            self._tokens[split] = self._pack(split, progress)
        return self._tokens[split]

    def _pack(self, split: str, progress: Progress | None) -> TokenFile:
        text = self.data.text
        with main_process_first():
            return pack_text(
                text.split(split),
                self.tokenizer,
                name=f"{text.name}-{split}",
                folder=self.recipe.text.cache or self.paths.tokens,
                special_tokens=self.special_tokens,
                progress=progress,
            )

    def collate(self, samples: Any) -> dict[str, Any]:
        return {"input_ids": torch.stack([sample["input_ids"] for sample in samples])}

    @cached_property
    def references(self) -> dict[str, float]:
        """Loss on the validation text of models that know only how often tokens, or pairs of tokens, occur."""
        raise NotImplementedError  # abstract

    def compare(self, loss: float) -> str:
        """Return the loss of the simple models in brackets, and a warning if the loss is no better.

        Of a published model, whose text is elsewhere, nothing is returned.
        """
        if self.paths.published:
            return ""
        references = self.references
        shown = ", ".join(f"{name} {value:.4f}" for name, value in references.items())
        learned = loss < references["unigram"] - UNLEARNED
        return f" ({shown})" if learned else f" ({shown}: it has not learned more than token frequencies yet)"

    def outcome(
        self, model: CratePreTrainedModel, images: Sequence[Image], own_data: bool, **reading: Unpack[Reading]
    ) -> Outcome:
        from ..inspection import Outcome, Score

        batches = self.batches(model, **reading).then(lambda batch: self.prepare(batch, None, model))
        loss = self.summarize(self.measure_batches(model, batches))["loss"]
        unigram = self.unigram(reading.get("split")) if own_data else None
        name = f"Loss in nats per {self.predicted}"
        score = Score(name, loss, baseline=unigram, baseline_name="unigram, token frequencies only")
        ids = next(iter(self.batches(model, split=reading.get("split"), limit=1)))["input_ids"][0]
        ids = ids[: max(2, min(READ, len(ids) // 2))]  # leaves space for special tokens
        return Outcome([score], *self.answered(model, ids))

    def unigram(self, split: str | None) -> float:
        """Return the loss of the token frequencies of the training text on a split."""
        raise NotImplementedError  # abstract

    def answered(self, model: CratePreTrainedModel, ids: Tensor) -> tuple[list[Sample], str]:
        """Return what the model makes of the beginning of a text, and a title for it."""
        raise NotImplementedError  # abstract

    def write_sample(self, folder: Path, count: int) -> Path | None:
        """Write the beginning of the validation text, `count` blocks long, as sample.txt."""
        ids = self.tokens("validation").array()[: count * self.recipe.text.block].tolist()
        return write_text(folder / "sample.txt", str(self.tokenizer.decode(ids, skip_special_tokens=True)))

    def samples(self, split: str | None, limit: int) -> Samples:
        split = split or self.default_split
        blocks = self._inspected_blocks(split)
        note = f"Samples are blocks of {blocks.block} tokens."
        return Samples(self.data.text.name, split, min(limit, len(blocks)), (note,))

    def batches(
        self, model: CratePreTrainedModel, reader: Task | None = None, **reading: Unpack[Reading]
    ) -> SharedBatches[dict[str, Tensor]]:
        del reader  # models are compared only if their tokenizers are equal
        blocks = self._inspected_blocks(reading.get("split") or self.default_split)

        def load(rows: Sequence[int]) -> dict[str, Tensor]:
            reading.get("progress", no_progress)(len(rows))
            return {"input_ids": self.collate(rows_of(blocks, rows))["input_ids"].to(model.device)}

        return ListedBatches(spread(len(blocks), reading), load)

    def _inspected_blocks(self, split: str) -> Blocks:
        tokens = self.tokens(split)
        if len(tokens) < 2:
            raise CrateError(
                f"the {split} split of {self.data.text.name} has {len(tokens)} tokens; use more text or another split"
            )
        return Blocks(tokens, min(self.recipe.text.block, len(tokens)))


class CausalLM(LanguageTask):
    """Cross-entropy of the next token.

    Windows of block + 1 tokens give `block` predictions each: drawn at random in training, as in nanoGPT, and
    consecutive in evaluations during training.
    """

    kind, special_tokens, predicted = "causal", "eos", "token"

    def create_model(self) -> CratePreTrainedModel:
        return self.build_language_model(CrateForCausalLM, "crate-gpt-base")

    def datasets(self, rank: int = 0, world_size: int = 1) -> tuple[Any, Any]:
        block, train = self.recipe.text.block, self.tokens("train")
        length = max(1, len(train) // block)
        random = RandomBlocks(train, block + 1, seed=self.recipe.run.seed, length=length)
        return random, Blocks(self.tokens("validation"), block + 1)

    @cached_property
    def _bits_per_nat(self) -> float:
        """Bits per byte for each nat per token of the validation text."""
        return self.tokens("validation").bits_per_byte(1.0)

    def loss(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        ids: Tensor = batch["input_ids"]
        output = model(input_ids=ids[:, :-1])
        logits: Tensor = output.logits
        smoothing = self.recipe.optimizer.label_smoothing
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=smoothing)
        return Step(inner.regularized(loss, objective=output.objective), len(ids))

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        ids: Tensor = batch["input_ids"]
        return {"loss": next_token_losses(model, ids, ids.shape[1] - 1).mean(dim=1)}

    def summarize(self, values: Values) -> dict[str, float]:
        loss = weighted_means(values)["loss"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "bits_per_byte": loss * self._bits_per_nat}

    @cached_property
    def references(self) -> dict[str, float]:
        orders = {"unigram": 1, "bigram": 2}
        return {name: self.baseline(order=n)[f"{n}-gram"]["cross_entropy"] for name, n in orders.items()}

    def headline(self, metrics: dict[str, float]) -> str:
        loss = metrics["loss"]
        return (
            f"validation loss {loss:.4f} nats per token{self.compare(loss)}, perplexity {metrics['perplexity']:.2f}, "
            f"{metrics['bits_per_byte']:.4f} bits per byte"
        )

    def layerwise_batch(self, samples: list[Any]) -> list[Tensor]:
        return [torch.stack([sample["input_ids"][:-1] for sample in samples])]

    def evaluate(self, model: CratePreTrainedModel, **reading: Unpack[Reading]) -> Report:
        """Measure the perplexity by sliding windows of the recipe's context length."""
        split = reading.get("split") or self.default_split
        report = perplexity(
            model,
            self.tokens(split),
            block=self.recipe.text.block,
            batch_size=reading.get("batch_size", 64),
            progress=reading.get("progress"),
        )
        return replace(report, split=split)

    def baseline(
        self,
        split: str | None = None,
        progress: Progress | None = None,
        *,
        order: int = 3,
        limit: int | None = None,
        tokens: TokenFile | None = None,
        end_of_document: bool = True,
    ) -> dict[str, dict[str, float]]:
        """Measure an n-gram model of the training text on a split, or on `tokens`."""
        train, measured = self.tokens("train"), tokens or self.tokens(split or self.default_split)
        start = time.perf_counter()
        model = NGram(train.array()[:COUNTED], order=order, vocab_size=id_count(self.tokenizer))
        left_out: Any = () if end_of_document else (self.tokenizer.eos_token_id,)
        loss = model.cross_entropy(measured.array()[:limit], left_out)
        return {
            f"{order}-gram": {
                "order": order,
                "cross_entropy": loss,
                "perplexity": math.exp(loss),
                "bits_per_byte": measured.bits_per_byte(loss, end_of_document),
                "tokens_counted": min(len(train), COUNTED),
                "seconds": time.perf_counter() - start,
            }
        }

    def unigram(self, split: str | None) -> float:
        return self.baseline(split, order=1)["1-gram"]["cross_entropy"]

    def answered(self, model: CratePreTrainedModel, ids: Tensor) -> tuple[list[Sample], str]:
        from ..inspection import Sample
        from .generation import generate

        prompt = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        written = generate(model, self.tokenizer, prompt, tokens=WRITTEN).text if prompt.strip() else ""
        sample = Sample("The prompt is from the data; the model continues it (seed 0).", text=prompt, answer=written)
        return [sample] if written else [], "A sample of generated text"

    def predict(self, model: CratePreTrainedModel, inputs: Sequence[Any]) -> list[str]:
        """Return the greedy continuation of every prompt."""
        from .generation import generate

        return [generate(model, self.tokenizer, str(text), do_sample=False).text for text in inputs]


class MaskedLM(LanguageTask):
    """Cross-entropy of masked tokens: a new mask in every training step, each block's own mask in evaluation."""

    kind, special_tokens, predicted = "masked", "bos_eos", "masked token"

    @cached_property
    def masking(self) -> Masking:
        """The ids that masking needs."""
        return Masking.of(self.tokenizer)

    def create_model(self) -> CratePreTrainedModel:
        return self.build_language_model(CrateForMaskedLM, "crate-bert-base")

    def datasets(self, rank: int = 0, world_size: int = 1) -> tuple[Any, Any]:
        block = self.recipe.text.block
        return Blocks(self.tokens("train"), block), Blocks(self.tokens("validation"), block)

    def prepare(self, batch: dict[str, Any], seed: int | None, model: CratePreTrainedModel) -> dict[str, Any]:
        ids, share = batch["input_ids"], self.recipe.text.mask_probability
        if seed is None:
            masked, labels = mask_own_tokens(ids, self.masking, share)
        else:
            masked, labels = mask_tokens(ids, self.masking, share, generator(seed))
        return {**batch, "input_ids": masked, "labels": labels}

    def loss(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        masked = batch["labels"] >= 0
        output = model(input_ids=batch["input_ids"], logits_at=masked)
        logits, labels = output.logits, batch["labels"][masked]
        count = max(len(labels), 1)  # a small batch may have no masked token
        smoothing = self.recipe.optimizer.label_smoothing
        total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        correct = (logits.detach().argmax(-1) == labels).sum() / count
        return Step(inner.regularized(total / count, objective=output.objective), len(masked), {"accuracy": correct})

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        masked = batch["labels"] >= 0
        logits, labels = model(input_ids=batch["input_ids"], logits_at=masked).logits, batch["labels"][masked]
        zeros = torch.zeros(masked.shape, dtype=torch.float64, device=masked.device)
        losses = zeros.masked_scatter(masked, F.cross_entropy(logits, labels, reduction="none").double())
        correct = zeros.masked_scatter(masked, (logits.argmax(-1) == labels).double())
        count = masked.sum(dim=1)
        divisor = count.clamp(min=1)
        return {"loss": losses.sum(dim=1) / divisor, "accuracy": correct.sum(dim=1) / divisor, "weight": count}

    @cached_property
    def references(self) -> dict[str, float]:
        return {name: values["cross_entropy"] for name, values in self.baseline().items()}

    def headline(self, metrics: dict[str, float]) -> str:
        loss, accuracy = metrics["loss"], metrics["accuracy"]
        return f"validation loss {loss:.4f} nats per masked token{self.compare(loss)}, accuracy {accuracy:.2%}"

    def layerwise_batch(self, samples: list[Any]) -> list[Tensor]:
        return [self.collate(samples)["input_ids"]]

    def evaluate(self, model: CratePreTrainedModel, **reading: Unpack[Reading]) -> MaskedReport:
        expect_model(model, CrateForMaskedLM, self.recipe.task)
        check_tokenizer(self.tokenizer, model.config)
        start, split = time.perf_counter(), reading.get("split") or self.default_split
        tokens = self.tokens(split)
        blocks = Blocks(tokens, self.recipe.text.block)
        values = self.measure_batches(model, self.loaded(model, blocks, reading))
        masked = int(values["weight"].sum())
        if not masked:
            raise CrateError("no token was masked; use more text")
        metrics = weighted_means(values)
        return MaskedReport(
            cross_entropy=metrics["loss"],
            perplexity=math.exp(min(metrics["loss"], 700.0)),
            accuracy=metrics["accuracy"],
            tokens=masked,
            block=self.recipe.text.block,
            seconds=time.perf_counter() - start,
            split=split,
            total=len(tokens),
        )

    def baseline(self, split: str | None = None, progress: Progress | None = None) -> dict[str, dict[str, float]]:
        """Measure the token frequencies of the training text on a split."""
        loss = unigram_cross_entropy(
            self.tokens("train").array()[:COUNTED],
            self.tokens(split or self.default_split).array(),
            vocab_size=self.masking.vocab_size,
            special_ids=self.masking.special_ids,
        )
        return {"unigram": {"cross_entropy": loss}}

    def unigram(self, split: str | None) -> float:
        return self.baseline(split)["unigram"]["cross_entropy"]

    def answered(self, model: CratePreTrainedModel, ids: Tensor) -> tuple[list[Sample], str]:
        from ..inspection import Sample

        middle, mask, tokenizer = len(ids) // 2, self.masking.mask_id, self.tokenizer
        masked = [*ids[:middle].tolist(), mask, *ids[middle + 1 :].tolist()]
        special = {*tokenizer.all_special_ids} - {mask}
        text = str(tokenizer.decode([number for number in masked if number not in special]))
        guesses = fill_masks(model, tokenizer, text, 3)
        answer = ", ".join(f"{guess.token!r} {guess.probability:.0%}" for guess in guesses[0]) if guesses else ""
        truth = str(tokenizer.decode([int(ids[middle])]))
        sample = Sample(f"The masked token is {truth!r}.", text=text, answer=f" → {answer}")
        return [sample], "A masked token and the model's candidates"

    def predict(self, model: CratePreTrainedModel, inputs: Sequence[Any]) -> list[list[list[Candidate]]]:
        """Return for every text the most probable tokens of each of its masks."""
        return [fill_masks(model, self.tokenizer, str(text)) for text in inputs]
