"""The logit lens: predictions of every layer of a language model, read through the model's own head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from ...errors import CrateError
from ...models import CrateForCausalLM, CrateForMaskedLM
from ...models.base import eval_mode
from .tracing import TextBatch, TextPass, text_passes

LanguageModel = CrateForCausalLM | CrateForMaskedLM

_CHUNK = 1024  # tokens whose logits are held at a time
_MEASURES = ("cross_entropy", "probability", "top1", "rank", "entropy")


def head_logits(model: LanguageModel, z: Tensor) -> Tensor:
    """Compute W^head LN(z) of tokens (..., d) of any layer, (..., vocabulary), as the model does for its last layer."""
    z = model.crate.norm(z)
    if isinstance(model, CrateForMaskedLM):
        z = model.transform(z)
    logits: Tensor = model.head(z)
    return logits if logits.dtype == torch.float64 else logits.float()


def lens(model: LanguageModel, batches: Iterable[TextBatch]) -> pd.DataFrame:
    """Measure how well each layer's tokens Z^{ℓ+1} predict under the model's own head, with a row per layer.

    Means over tokens: `cross_entropy` is −log p of the true token in nats and `probability` is p. `rank` is the rank of
    the true token in the vocabulary, where 1 is the most likely and ties go to the lower id, and `top1` is the share
    of tokens with rank 1. `entropy` is that of the whole distribution, in nats. The true token is the next token for
    a causal model. For a masked model it is given in `labels`, with −100 where no token is masked. Padding is ignored.
    Logits are held for 1024 tokens at a time.
    """
    sums: list[Tensor] = []
    count = 0
    with eval_mode(model):
        for batch in text_passes(model, batches):
            targets = _targets(model, batch)
            predicted = targets >= 0
            count += int(predicted.sum())
            values = [_sums(model, z[predicted], targets[predicted]) for z in batch.trace.tokens[1:]]
            sums = [a + b for a, b in zip(sums, values, strict=True)] if sums else values
    if count == 0:
        raise CrateError("the texts have no token to predict; give longer texts, or labels for a masked model")
    rows = [(layer, *(total / count).tolist(), count) for layer, total in enumerate(sums, 1)]
    return pd.DataFrame(rows, columns=["layer", *_MEASURES, "tokens"])


def _targets(model: LanguageModel, batch: TextPass) -> Tensor:
    """Return the id that each position has to predict, (batch, n), negative where there is none."""
    if not model.config.causal:
        if batch.labels is None:
            raise CrateError("batches for a masked model need labels, the ids of masked tokens; see mask_own_tokens")
        return batch.labels.masked_fill(~batch.real, -100)
    ids = batch.ids if batch.labels is None else batch.labels
    following = torch.full_like(ids, -100)
    following[:, :-1] = ids[:, 1:].masked_fill(~(batch.real[:, 1:] & batch.real[:, :-1]), -100)
    return following


@torch.no_grad()
def _sums(model: LanguageModel, z: Tensor, targets: Tensor) -> Tensor:
    """Sum the measures over tokens (R, d) with their true ids (R,)."""
    total = torch.zeros(len(_MEASURES), dtype=torch.float64)
    for tokens, ids in zip(z.split(_CHUNK), targets.split(_CHUNK), strict=True):
        measures = _measures(head_logits(model, tokens).log_softmax(-1), ids)
        total += torch.stack([measure.double().sum() for measure in measures]).cpu()
    return total


def _measures(logs: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    """Measure log-probabilities (..., V) against the true ids (...), in the order of `_MEASURES`."""
    own = logs.gather(-1, ids[..., None])
    before = torch.arange(logs.shape[-1], device=logs.device) < ids[..., None]
    rank = 1 + ((logs > own) | ((logs == own) & before)).sum(-1)
    entropy = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(-1)  # p log p → 0 as p → 0
    return -own[..., 0], own[..., 0].exp(), rank == 1, rank, entropy


@dataclass(frozen=True)
class Candidates:
    """The most likely tokens after each of L layers at P positions of one text."""

    positions: tuple[int, ...]  # the P positions, counted from 0
    read: tuple[int, ...]  # id of the token at each position
    truth: tuple[int | None, ...]  # id to predict at each position; None if it is not known
    ids: Tensor  # ids of the candidates, (L, P, top), the most likely first
    probabilities: Tensor  # probabilities of the candidates, (L, P, top)
    entropy: Tensor  # entropy of the whole distribution in nats, (L, P)
    truth_probability: Tensor  # probability of the true id, (L, P); NaN if it is not known
    truth_rank: Tensor  # rank of the true id, 1 being the most likely, (L, P); 0 if it is not known


@torch.no_grad()
def candidates(
    model: LanguageModel, ids: Tensor, positions: Sequence[int], top: int = 5, mask_id: int | None = None
) -> Candidates:
    """Find the most likely tokens after every layer at positions of one text (n,); negative ones count from the end.

    A causal model predicts the token after each position. A masked model predicts the token at each position, which is
    replaced by `mask_id` in its own copy of the text; if the text has the mask already, the truth is not known.
    """
    n = len(ids)
    for position in positions:
        if not -n <= position < n:
            raise CrateError(f"position {position} is out of range; the text has {n} tokens")
    if not positions or top < 1:
        raise CrateError(f"{len(positions)} positions and top={top}: both must be at least 1")
    where = torch.tensor([position % n for position in positions])
    rows = torch.zeros_like(where)
    if model.config.causal:
        inputs, truth = ids[None], [int(ids[t + 1]) if t + 1 < n else None for t in where.tolist()]
    else:
        if mask_id is None:
            raise CrateError("a masked model needs mask_id; give the tokenizer's mask_token_id")
        rows = torch.arange(len(where))
        inputs = ids.repeat(len(where), 1)
        inputs[rows, where] = mask_id
        truth = [None if int(ids[t]) == mask_id else int(ids[t]) for t in where.tolist()]
    with eval_mode(model):
        (batch,) = text_passes(model, [{"input_ids": inputs}])
    z = torch.stack([tokens[rows, where] for tokens in batch.trace.tokens[1:]])  # (L, P, d)
    logs = head_logits(model, z).log_softmax(-1).cpu()
    best = logs.topk(min(top, logs.shape[-1]))
    targets = torch.tensor([0 if number is None else number for number in truth]).expand(len(logs), -1)
    unknown = torch.tensor([number is None for number in truth])
    _, probability, _, rank, entropy = _measures(logs, targets)
    return Candidates(
        positions=tuple(where.tolist()),
        read=tuple(ids[where.to(ids.device)].tolist()),
        truth=tuple(truth),
        ids=best.indices,
        probabilities=best.values.exp(),
        entropy=entropy,
        truth_probability=probability.masked_fill(unknown, torch.nan),
        truth_rank=rank.masked_fill(unknown, 0),
    )
