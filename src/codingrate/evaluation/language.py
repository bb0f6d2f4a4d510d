"""Language models: perplexity of a text, LAMBADA's last-word accuracy, and the most likely tokens for a mask."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from .._distributed import share
from .._report import EvaluationReport, Table, counted
from ..data.documents import check_text
from ..data.tokens import TokenFile, check_tokenizer
from ..errors import CrateError, check_positive
from ..models import CrateForCausalLM, CrateForMaskedLM
from ..models.base import CratePreTrainedModel, eval_mode
from .features import move_to_device

MASK = "<mask>"  # placeholder for a mask in a text, accepted for every tokenizer
_STRAIGHT_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})
_NEW_TOKENS = 10  # length of the continuations that LAMBADA's `generate` protocol searches for the word


@dataclass(frozen=True)
class PerplexityReport(EvaluationReport):
    """Prediction of the next token of a text."""

    cross_entropy: float  # H = −1/T Σ_t log P(x_t | x_<t) in nats, over the T predicted tokens
    perplexity: float  # exp H
    bits_per_byte: float | None
    """H · tokens of the text / (ln 2 · its UTF-8 bytes), comparable across tokenizers; None for plain ids."""
    tokens: int  # T
    ends: int  # number of end-of-document tokens among the T; 0 if they are left out
    block: int  # number of tokens in a window
    stride: int | None  # number of tokens between the starts of two windows; None for random windows
    error: float | None  # standard error of `cross_entropy` over random windows; None if the whole text was read
    seconds: float  # time of the evaluation
    split: str | None = None  # split of the text; "all" for a text without splits
    total: int | None = None  # number of tokens in the text

    def describe(self, title: str = "", rivals: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[Table | str]:
        """Yield the metrics, with those of `rivals` by name below them, and what was counted."""
        keys, lines = ("cross_entropy", "perplexity", "bits_per_byte"), {"model": vars(self), **(rivals or {})}
        cells = [
            (name, *("" if row[key] is None else f"{row[key]:.4f}" for key in keys), f"{row['seconds']:.1f} s")
            for name, row in lines.items()
        ]
        columns = ("", "nats per token", "perplexity", "bits per byte", "time")
        yield Table(title or f"{self.part} the text", columns, cells)
        drawn = f"stride {self.stride}" if self.error is None else f"drawn at random, ± {self.error:.4f}"
        ends = f"{self.ends:,} of them ends of documents" if self.ends else "no ends of documents"
        yield f"{counted(self.tokens, self.total, 'tokens')} predicted, {ends}; windows of {self.block}, {drawn}"


def perplexity(
    model: nn.Module,
    tokens: TokenFile | NDArray[Any],
    *,
    block: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    device: torch.device | str | None = None,
    limit: int | None = None,
    end_of_document: bool = True,
    progress: Callable[[int], None] | None = None,
) -> PerplexityReport:
    """Compute the cross-entropy of every token but the first, each predicted once, with sliding windows.

    Windows of `block` tokens (default: the model's context length) move by `stride` (default: half a block). Window
    i reads x_{is} … x_{is+block−1}, for a stride s. The first window predicts the token after each of its own. Every
    later one predicts only the last `stride` of these, each from more than block − stride and at most `block` tokens.
    The last window is shorter if the text ends within it. A stride of 1 gives every token the longest context; a stride
    of `block` is the fastest and gives the shortest. `limit` measures only the first tokens of the text.

    The end-of-document token after each document is predicted and counted like any other. With
    `end_of_document=False`, it is read as context but not counted; it is the `eos_token_id` of the model's config.
    `progress` is called after each batch with the number of tokens it predicted.
    """
    ids = _token_ids(tokens)[:limit]
    block = _context_length(model, CrateForCausalLM, "perplexity", block)
    stride = max(block // 2, 1) if stride is None else stride
    check_positive(batch_size=batch_size, limit=limit)
    if not 1 <= stride <= block:
        raise CrateError(f"stride is {stride}; it must lie between 1 and the block, {block}")
    if len(ids) < 2:
        raise CrateError(f"{len(ids)} tokens are too few to predict one from another; use a longer text")
    start = time.perf_counter()
    windows = _windows(len(ids), block + 1, stride, batch_size)
    sums, counts, ends = _batch_losses(model, ids, windows, device, progress, end_of_document)
    if not any(counts):
        raise CrateError("the text has no tokens to predict but ends of documents; count them or use a longer text")
    facts: dict[str, Any] = {"tokens": sum(counts), "ends": ends, "block": block, "stride": stride, "error": None}
    seconds = time.perf_counter() - start
    return _report(tokens, sum(sums) / sum(counts), end_of_document, **facts, seconds=seconds)


def sampled_loss(
    model: nn.Module,
    tokens: TokenFile | NDArray[Any],
    *,
    block: int = 1024,
    batch_size: int = 4,
    iterations: int = 1000,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> PerplexityReport:
    """Compute the paper's validation loss (4.1.4, after nanoGPT): the mean over `iterations` batches of random windows.

    The start of a window is drawn uniformly from [0, n − block) with replacement; the window predicts the token after
    each of its `block`, ends of documents included. Its first tokens have little context, so this loss is higher than
    `perplexity` of the text.
    """
    ids = _token_ids(tokens)
    block = _context_length(model, CrateForCausalLM, "sampled_loss", block)
    check_positive(batch_size=batch_size, iterations=iterations)
    if seed < 0:
        raise CrateError(f"seed is {seed}; it must not be negative")
    if len(ids) <= block:
        problem = f"{len(ids)} tokens are too few for windows of {block + 1}"
        raise CrateError(f"{problem}; use a shorter block or a longer text")
    starts = np.random.default_rng(seed).integers(len(ids) - block, size=(iterations, batch_size))
    start = time.perf_counter()
    windows = [(batch_starts, block + 1, block) for batch_starts in starts.tolist()]
    sums, counts, ends = _batch_losses(model, ids, windows, device, progress)
    means = np.array(sums) / counts
    error = float(np.std(means, ddof=1) / math.sqrt(iterations)) if iterations > 1 else None
    facts: dict[str, Any] = {"tokens": sum(counts), "ends": ends, "block": block, "stride": None, "error": error}
    return _report(tokens, float(np.mean(means)), **facts, seconds=time.perf_counter() - start)


Windows = tuple[Sequence[int], int, int]
"""A batch of windows of a text: their starts, their length, and how many of their last tokens to predict."""


def _windows(total: int, span: int, stride: int, batch_size: int) -> Iterator[Windows]:
    """Yield batches of windows of equal length, at most `span`, of a text of `total` tokens."""
    yield [0], min(span, total), min(span, total) - 1
    full = max(total - span, 0) // stride
    for first in range(1, full + 1, batch_size):
        yield range(first * stride, min(first + batch_size, full + 1) * stride, stride), span, stride
    rest = total - span - full * stride
    if rest > 0:
        start = (full + 1) * stride
        yield [start], total - start, rest


def _batch_losses(
    model: nn.Module,
    ids: NDArray[Any],
    windows: Iterable[Windows],
    device: torch.device | str | None,
    progress: Callable[[int], None] | None,
    end_of_document: bool = True,
) -> tuple[list[float], list[int], int]:
    """Return the sum of −log P over the counted tokens of each batch of windows, their number, and that of ends."""
    target, sums, counts, ends = move_to_device(model, device), [], [], 0
    end_id: Any = getattr(getattr(model, "config", None), "eos_token_id", None)
    if end_id is None and not end_of_document:
        raise CrateError("the model's config has no eos_token_id, so ends of documents are unknown; count all tokens")
    end_ids = torch.tensor([] if end_id is None else end_id, dtype=torch.long)

    def losses(batch: Windows) -> tuple[float, int, int]:
        starts, length, predicted = batch
        stacked = torch.from_numpy(np.stack([ids[start : start + length] for start in starts]).astype(np.int64))
        values = next_token_losses(model, _check_token_ids(model, stacked).to(target), predicted)
        is_end = torch.isin(stacked[:, -predicted:], end_ids)
        if not end_of_document:
            values = values[~is_end.to(target)]
        return float(values.double().sum()), values.numel(), int(is_end.sum()) if end_of_document else 0

    with eval_mode(model), torch.inference_mode():
        for total, count, count_ends in share(losses, windows):
            sums.append(total)
            counts.append(count)
            ends += count_ends
            if progress is not None:
                progress(count)
    return sums, counts, ends


def next_token_losses(model: nn.Module, windows: Tensor, predicted: int) -> Tensor:
    """Compute −log P (batch, predicted) of the last tokens of windows (batch, n ≥ predicted + 1)."""
    logits: Tensor = model(input_ids=windows[:, :-1], logits_to_keep=predicted, use_cache=False).logits
    logits = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.cross_entropy(logits.flatten(0, 1), windows[:, -predicted:].flatten(), reduction="none")
    if losses.isnan().any():
        raise CrateError("the model's logits are not numbers: its training diverged or its file is damaged")
    return losses.unflatten(0, (len(windows), predicted))


def _report(
    text: TokenFile | NDArray[Any], mean: float, end_of_document: bool = True, **facts: Any
) -> PerplexityReport:
    bits = text.bits_per_byte(mean, end_of_document) if isinstance(text, TokenFile) else None
    return PerplexityReport(mean, math.exp(mean) if mean < 700 else math.inf, bits, **facts, total=len(text))


@dataclass(frozen=True)
class LambadaReport(EvaluationReport):
    """Prediction of the last word of passages (LAMBADA)."""

    accuracy: float  # share of passages in [0, 1]
    texts: int  # number of passages
    protocol: str  # `argmax` or `generate`, see `lambada_accuracy`
    cut: int  # number of passages whose beginning exceeded the context length
    seconds: float  # time of the evaluation

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the accuracy in a sentence."""
        cut = f", {self.cut} of them truncated to the context length" if self.cut else ""
        yield f"last word predicted in {self.accuracy:.2%} of {self.texts:,} passages{cut}"


def lambada_accuracy(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    generate: bool = False,
    batch_size: int = 8,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> LambadaReport:
    """Compute the share of texts whose last word the model predicts by greedy decoding.

    By default the usual protocol (Radford et al., 2019): every token of " word" must have the highest logit given all
    tokens before it. With `generate`, the protocol of the ToST release: curly quotes are straightened, a newline is put
    in front, ten tokens are generated, and the word must occur in them, in any case and also as part of another word.
    Texts longer than the context length lose their beginning.
    """
    length = _context_length(model, CrateForCausalLM, "lambada_accuracy")
    check_positive(batch_size=batch_size)
    if isinstance(model, CrateForCausalLM):
        check_tokenizer(tokenizer, model.config)
    passages = [_split_last_word(number, text, generate) for number, text in enumerate(texts, 1)]
    if not passages:
        raise CrateError("there are no texts; give at least one passage")
    target, correct, cut, start = move_to_device(model, device), 0, 0, time.perf_counter()

    def measure(batch: Sequence[tuple[str, str]]) -> tuple[int, int, int]:
        """Return how many words are correct, how many passages are cut, and the number of passages."""
        contexts = [_encode(tokenizer, context) for context, _ in batch]
        words = [[0] * _NEW_TOKENS if generate else _encode(tokenizer, f" {word}") for _, word in batch]
        available = [length - len(word) for word in words]
        if min(available) < 1:
            longest = length - min(available)
            raise CrateError(f"a word of {longest} tokens exceeds the model's context length of {length}")
        long = sum(len(ids) > most for ids, most in zip(contexts, available, strict=True))
        contexts = [ids[-most:] for ids, most in zip(contexts, available, strict=True)]
        if not generate:
            return _count_argmax(model, contexts, words, target), long, len(batch)
        generated = _continuations(model, tokenizer, contexts, target)
        found = (word.lower() in text.lower() for text, (_, word) in zip(generated, batch, strict=True))
        return sum(found), long, len(batch)

    batches = [passages[first : first + batch_size] for first in range(0, len(passages), batch_size)]
    with eval_mode(model), torch.inference_mode():
        for right, long, count in share(measure, batches):
            correct, cut = correct + right, cut + long
            if progress is not None:
                progress(count)
    protocol = "generate" if generate else "argmax"
    return LambadaReport(correct / len(passages), len(passages), protocol, cut, time.perf_counter() - start)


def _split_last_word(number: int, text: str, generate: bool) -> tuple[str, str]:
    """Split a passage into the context and the last word."""
    parts = text.rstrip().rsplit(maxsplit=1)
    if len(parts) < 2:
        raise CrateError(f"text {number} has fewer than two words ({text!r:.30}); LAMBADA needs a context and a word")
    context, word = parts[0].rstrip(), parts[1]
    if generate:
        return "\n" + context.translate(_STRAIGHT_QUOTES), word.translate(_STRAIGHT_QUOTES)
    return context, word


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"])


def _pad(sequences: list[list[int]], side: str) -> Tensor:
    """Return the sequences as one tensor (batch, longest), filled with zeros on the `side` "left" or "right"."""
    return pad_sequence([torch.tensor(ids, dtype=torch.long) for ids in sequences], batch_first=True, padding_side=side)


def _count_argmax(model: nn.Module, contexts: list[list[int]], words: list[list[int]], device: torch.device) -> int:
    """Count the words whose tokens all have the highest logit; padding on the right is invisible to a causal model."""
    ids = _pad([context + word for context, word in zip(contexts, words, strict=True)], "right").to(device)
    longest = ids.shape[1]
    keep = longest + 1 - min(map(len, contexts))  # from the first position that predicts a token of a word
    best = model(input_ids=ids, logits_to_keep=keep, use_cache=False).logits.argmax(-1)
    correct = 0
    for row, context, word in zip(best, contexts, words, strict=True):
        start = len(context) - 1 - (longest - keep)
        correct += row[start : start + len(word)].tolist() == word
    return correct


def _continuations(
    model: Any, tokenizer: PreTrainedTokenizerBase, contexts: list[list[int]], device: torch.device
) -> list[str]:
    ids = _pad(contexts, "left").to(device)
    mask = _pad([[1] * len(context) for context in contexts], "left").to(device)
    eos: Any = tokenizer.eos_token_id
    output = model.generate(
        ids, attention_mask=mask, max_new_tokens=_NEW_TOKENS, do_sample=False, pad_token_id=eos or 0
    )
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in output[:, ids.shape[1] :]]


@dataclass(frozen=True)
class Candidate:
    """A token that a masked language model proposes for a mask."""

    token: str  # text of the token; bytes that are no complete character appear as the tokenizer writes them
    id: int  # id of the token
    probability: float  # probability of the token, with all other masks left unfilled


def fill_masks(model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, top: int = 5) -> list[list[Candidate]]:
    """Return the `top` most likely tokens for each mask of a text, written `<mask>` or as the tokenizer's own mask."""
    length = _context_length(model, CrateForMaskedLM, "fill_masks")
    check_positive(top=top)
    check_text(text)
    if tokenizer.mask_token is None:
        raise CrateError("the tokenizer has no mask token; use the tokenizer of a masked language model")
    own = str(tokenizer.mask_token)
    if own not in text and MASK not in text:
        raise CrateError(f"there is no mask in the text; write {own} where a token is to be filled in")
    ids = torch.tensor(tokenizer(text.replace(MASK, own), verbose=False)["input_ids"])[None]
    if ids.shape[1] > length:
        raise CrateError(f"the text has {ids.shape[1]} tokens, but the model's context length is {length}; shorten it")
    device = move_to_device(model, None)
    with eval_mode(model), torch.inference_mode():
        logits: Tensor = model(input_ids=_check_token_ids(model, ids).to(device)).logits[0].cpu()
    best = logits[ids[0] == tokenizer.mask_token_id].float().softmax(-1).topk(min(top, logits.shape[-1]))
    return [
        [Candidate(_token_text(tokenizer, token), token, value) for token, value in zip(tokens, values, strict=True)]
        for tokens, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    text = str(tokenizer.decode([token]))
    return str(tokenizer.convert_ids_to_tokens(token)) if "\ufffd" in text else text


# checks of the input


def _token_ids(tokens: TokenFile | NDArray[Any]) -> NDArray[Any]:
    """Return the ids (n,); those of a token file are memory-mapped."""
    ids = tokens.array() if isinstance(tokens, TokenFile) else np.asarray(tokens)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise CrateError(f"tokens must be integer ids of shape (n,), not {ids.dtype} of shape {ids.shape}")
    return ids


def _check_token_ids(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the ids unchanged; raise an error if one of them is outside the model's vocabulary."""
    vocab_size = getattr(getattr(model, "config", None), "vocab_size", None)
    if vocab_size is not None and int(ids.max()) >= vocab_size:
        problem = f"token id {int(ids.max())} is outside the model's vocabulary of {vocab_size}"
        raise CrateError(f"{problem}; use the tokenizer the model was trained with")
    return ids


def _context_length(
    model: nn.Module, expected: type[CratePreTrainedModel], function: str, block: int | None = None
) -> int:
    """Return how many tokens to feed the model at a time: `block`, or by default the model's maximum.

    A model of this package must be an `expected` for the `function`; other models only need a context length.
    """
    if isinstance(model, CratePreTrainedModel) and not isinstance(model, expected):
        raise CrateError(f"{function} needs a {expected.__name__}, not a {type(model).__name__}")
    config: Any = getattr(model, "config", None)
    maximum: Any = getattr(config, "max_tokens", None) or getattr(config, "max_position_embeddings", None)
    if block is None and maximum is None:
        raise CrateError("the model's config does not state a maximum context length; give block")
    if block is not None and (block < 2 or (maximum is not None and block > maximum)):
        limit = "" if maximum is None else f" and at most {maximum}, the model's context length"
        raise CrateError(f"block is {block}; it must be at least 2{limit}")
    return int(maximum if block is None else block)
