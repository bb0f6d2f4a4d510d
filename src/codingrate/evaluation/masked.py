"""Masked language models: the loss on hidden tokens of a text, and what they would put in the place of a mask."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .._files import atomic_write
from ..data import Masking, TokenFile, mask_own_tokens
from ..errors import CrateError
from ..models import CrateForMaskedLM
from ..models.modes import evaluating
from ._images import placed
from ._text import check_ids, check_sizes, expect, room, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MASK = "<mask>"
"""What a text may say for a mask, whatever the tokenizer calls it."""


@dataclass(frozen=True)
class MaskedReport:
    """How well hidden tokens were predicted."""

    cross_entropy: float
    """Mean of −log P(true token) over the hidden tokens, in nats."""
    perplexity: float
    """exp of it; not that of a causal model, which sees one side only."""
    accuracy: float
    """Share of the hidden tokens whose true id has the highest logit."""
    tokens: int
    """Hidden tokens."""
    block: int
    """Tokens that are read at a time."""
    seconds: float
    """Time of the pass."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {key: None if value == math.inf else value for key, value in asdict(self).items()}

    def save(self, folder: Path) -> None:
        """Write metrics.json, whole or not at all."""
        with atomic_write(folder / "metrics.json") as draft:
            draft.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


def masked_loss(
    model: nn.Module,
    tokens: TokenFile | NDArray[Any],
    masking: Masking | PreTrainedTokenizerBase,
    *,
    block: int | None = None,
    probability: float = 0.15,
    seed: int = 0,
    batch_size: int = 8,
    device: torch.device | str | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> MaskedReport:
    """Cross-entropy of hidden tokens in consecutive blocks, what is left at the end dropped.

    Tokens are hidden as in training; which ones depends on the block's own ids and on `seed` (`data.mask_own_tokens`),
    so that two models or two calls are asked the same. `limit` takes so many tokens from the start.
    """
    expect(model, CrateForMaskedLM, "masked_loss")
    ids, block = token_ids(tokens), room(model, block)
    check_sizes(batch_size=batch_size, limit=limit)
    count = len(ids[:limit]) // block
    if count == 0:
        raise CrateError(f"{len(ids[:limit])} tokens are too few for a block of {block}; take a shorter block")
    spec = masking if isinstance(masking, Masking) else Masking.of(masking)
    place, total, right, hidden, start = placed(model, device), 0.0, 0, 0, time.perf_counter()
    with evaluating(model), torch.inference_mode():
        for first in range(0, count, batch_size):
            some = ids[first * block : min(first + batch_size, count) * block].astype(np.int64)
            true = check_ids(model, torch.from_numpy(some).view(-1, block))
            inputs, labels = mask_own_tokens(true, spec, probability, seed)
            logits: Tensor = model(input_ids=inputs.to(place)).logits
            chosen, labels = (labels >= 0).to(place), labels.to(place)
            found, truth = logits[chosen], labels[chosen]
            found = found if found.dtype == torch.float64 else found.float()
            total += float(F.cross_entropy(found, truth, reduction="none").double().sum())
            right, hidden = right + int((found.argmax(-1) == truth).sum()), hidden + len(truth)
            if progress is not None:
                progress(inputs.numel())
    if hidden == 0 or not math.isfinite(total):
        raise CrateError("no token was hidden; give more text" if hidden == 0 else "the model's loss is not a number")
    mean = total / hidden
    return MaskedReport(
        cross_entropy=mean,
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        accuracy=right / hidden,
        tokens=hidden,
        block=block,
        seconds=time.perf_counter() - start,
    )


@dataclass(frozen=True)
class Candidate:
    """A token that could stand in the place of a mask."""

    token: str
    """Its text; bytes that are no character by themselves as the tokenizer writes them."""
    id: int
    """Its id."""
    probability: float
    """What the model gives it, the other masks unknown."""


def fill_masks(model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, top: int = 5) -> list[list[Candidate]]:
    """For each mask of a text its `top` likeliest tokens. A mask is `<mask>` or the tokenizer's own."""
    expect(model, CrateForMaskedLM, "fill_masks")
    check_sizes(top=top)
    if tokenizer.mask_token is None:
        raise CrateError("the tokenizer has no mask token; take that of a masked language model")
    own = str(tokenizer.mask_token)
    if own not in text and MASK not in text:
        raise CrateError(f"there is no mask in the text; write {own} where a token is to be filled in")
    ids = torch.tensor(tokenizer(text.replace(MASK, own), verbose=False)["input_ids"])[None]
    most = room(model, None)
    if ids.shape[1] > most:
        raise CrateError(f"the text is {ids.shape[1]} tokens long, the model reads {most}; shorten it")
    place = placed(model, None)
    with evaluating(model), torch.inference_mode():
        logits: Tensor = model(input_ids=check_ids(model, ids).to(place)).logits[0].cpu()
    found = logits[ids[0] == tokenizer.mask_token_id].float().softmax(-1).topk(min(top, logits.shape[-1]))
    return [
        [Candidate(_spelt(tokenizer, number), number, value) for number, value in zip(numbers, values, strict=True)]
        for numbers, values in zip(found.indices.tolist(), found.values.tolist(), strict=True)
    ]


def _spelt(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    text = str(tokenizer.decode([number]))
    return str(tokenizer.convert_ids_to_tokens(number)) if "\ufffd" in text else text
