"""How well a causal language model predicts a text: by sliding windows over all of it, or by the paper's sampling."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .._files import atomic_write
from ..data import TokenFile
from ..errors import CrateError
from ..models.modes import evaluating
from ._images import placed
from ._text import check_ids, check_sizes, expect_causal, token_ids


@dataclass(frozen=True)
class PerplexityReport:
    """How well the next token was predicted."""

    cross_entropy: float
    """H = −1/T Σ_t log P(x_t | those before it) in nats, over the T tokens that were predicted."""
    perplexity: float
    """exp H."""
    bits_per_byte: float | None
    """H · tokens of the text / (ln 2 · its bytes in UTF-8), which other tokenizers compare by; None for bare ids."""
    tokens: int
    """T."""
    block: int
    """Tokens of a window."""
    stride: int | None
    """Tokens from one window to the next; None where windows were drawn at random."""
    error: float | None
    """Standard error of `cross_entropy` over random windows; None where all of the text was read."""
    seconds: float
    """Time of the pass."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        values = asdict(self)
        return {key: None if value == math.inf else value for key, value in values.items()}  # JSON has no infinity

    def save(self, folder: Path) -> None:
        """Write metrics.json, whole or not at all."""
        with atomic_write(folder / "metrics.json") as draft:
            draft.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


def perplexity(
    model: nn.Module,
    tokens: TokenFile | NDArray[Any],
    *,
    block: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    device: torch.device | str | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> PerplexityReport:
    """Cross-entropy of every token but the first, each predicted once.

    Windows of `block` tokens (as many as the model reads) move by `stride` (half a block). The first predicts the
    token after each of its own, every later one only the last `stride` of these, each of which sees more than
    block − stride and at most `block` tokens. A stride of 1 gives every token all the context the model has room for,
    one of `block` is the fastest and gives the least. `limit` measures on so many tokens from the start; `progress`
    hears after each batch how many tokens it predicted.
    """
    ids = token_ids(tokens)[:limit]
    block = expect_causal(model, block)
    stride = max(block // 2, 1) if stride is None else stride
    check_sizes(batch_size=batch_size, limit=limit)
    if not 1 <= stride <= block:
        raise CrateError(f"stride is {stride}; it must lie between 1 and the block, {block}")
    if len(ids) < 2:
        raise CrateError(f"{len(ids)} tokens are too few to predict one from another; give more text")
    place, total, count, start = placed(model, device), 0.0, 0, time.perf_counter()
    with evaluating(model), torch.inference_mode():
        for windows, new in _windows(ids, block + 1, stride, batch_size):
            losses = _losses(model, check_ids(model, windows).to(place), new)
            total, count = total + float(losses.double().sum()), count + losses.numel()
            if progress is not None:
                progress(losses.numel())
    return _report(tokens, total / count, count, block, stride, None, start)


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
    """The paper's figure (4.1.4, after nanoGPT): the mean over `iterations` batches of random windows.

    A window starts anywhere in [0, n − block), drawn evenly and with replacement, and predicts the token after each of
    its `block`. Those at its start have little context, so that this is higher than `perplexity` of the same text.
    """
    ids, block = token_ids(tokens), expect_causal(model, block)
    check_sizes(batch_size=batch_size, iterations=iterations)
    if seed < 0:
        raise CrateError(f"seed must not be negative, not {seed}")
    if len(ids) <= block:
        raise CrateError(
            f"{len(ids)} tokens are too few to draw windows of {block + 1} from; take a shorter block or more text"
        )
    starts = np.random.default_rng(seed).integers(len(ids) - block, size=(iterations, batch_size))
    place, means, begun = placed(model, device), [], time.perf_counter()
    with evaluating(model), torch.inference_mode():
        for some in starts:
            losses = _losses(model, check_ids(model, _stacked(ids, some, block + 1)).to(place), block)
            means.append(float(losses.double().mean()))
            if progress is not None:
                progress(losses.numel())
    error = float(np.std(means, ddof=1) / math.sqrt(iterations)) if iterations > 1 else None
    return _report(tokens, float(np.mean(means)), starts.size * block, block, None, error, begun)


def _windows(ids: NDArray[Any], span: int, stride: int, batch: int) -> Iterator[tuple[Tensor, int]]:
    """Batches of windows (batch, ≤ span), all of one length, and how many of their last tokens are to be predicted."""
    yield _stacked(ids, [0], min(span, len(ids))), min(span, len(ids)) - 1
    whole = max(len(ids) - span, 0) // stride
    for first in range(1, whole + 1, batch):
        starts = [number * stride for number in range(first, min(first + batch, whole + 1))]
        yield _stacked(ids, starts, span), stride
    rest = len(ids) - span - whole * stride
    if rest > 0:
        start = (whole + 1) * stride
        yield _stacked(ids, [start], len(ids) - start), rest


def _stacked(ids: NDArray[Any], starts: Iterable[int], length: int) -> Tensor:
    return torch.from_numpy(np.stack([ids[start : start + length] for start in starts]).astype(np.int64))


def _losses(model: nn.Module, windows: Tensor, new: int) -> Tensor:
    """−log P (batch, new) of the last `new` tokens of windows (batch, n ≥ new + 1); the last one is only predicted."""
    logits: Tensor = model(input_ids=windows[:, :-1], logits_to_keep=new, use_cache=False).logits
    logits = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.cross_entropy(logits.flatten(0, 1), windows[:, -new:].flatten(), reduction="none")
    if losses.isnan().any():
        raise CrateError("the model gives logits that are not numbers: its training diverged or its file is damaged")
    return losses.unflatten(0, (len(windows), new))


def _report(
    tokens: TokenFile | NDArray[Any],
    mean: float,
    count: int,
    block: int,
    stride: int | None,
    error: float | None,
    start: float,
) -> PerplexityReport:
    bits = mean * len(tokens) / (math.log(2) * tokens.bytes) if isinstance(tokens, TokenFile) else None
    return PerplexityReport(
        cross_entropy=mean,
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        bits_per_byte=bits,
        tokens=count,
        block=block,
        stride=stride,
        error=error,
        seconds=time.perf_counter() - start,
    )
