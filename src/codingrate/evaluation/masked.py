"""Masked language models: the loss on hidden tokens of a text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .._report import Report
from ..data import Masking, Tokens, mask_own_tokens
from ..errors import CrateError
from ..models import CrateForMaskedLM
from ..models.modes import evaluating
from .inputs import check_model_type, check_positive, check_token_ids, context_length, move_to_device, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class MaskedReport(Report):
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


def masked_loss(
    model: nn.Module,
    tokens: Tokens | NDArray[Any],
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
    check_model_type(model, CrateForMaskedLM, "masked_loss")
    ids, block = token_ids(tokens), context_length(model, block)
    check_positive(batch_size=batch_size, limit=limit)
    count = len(ids[:limit]) // block
    if count == 0:
        raise CrateError(f"{len(ids[:limit])} tokens are too few for a block of {block}; take a shorter block")
    spec = masking if isinstance(masking, Masking) else Masking.of(masking)
    place, total, right, hidden, start = move_to_device(model, device), 0.0, 0, 0, time.perf_counter()
    with evaluating(model), torch.inference_mode():
        for first in range(0, count, batch_size):
            some = ids[first * block : min(first + batch_size, count) * block].astype(np.int64)
            true = check_token_ids(model, torch.from_numpy(some).view(-1, block))
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
