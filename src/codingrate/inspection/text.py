"""What a report shows of a text model beside its layers: the lens, the units, attention between tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data import Masking, mask_own_tokens
from ..errors import CrateError
from ..models import CrateForCausalLM, CrateForMaskedLM
from ..models.base import CratePreTrainedModel
from .lens import candidates, lens
from .lens_panels import candidates_panel, lens_panel
from .panel import Panel
from .text_passes import TextBatch
from .token_attention import no_token_attention, token_attention, token_attention_panel
from .token_text import spell
from .unit_panels import firing_panel, unit_panel
from .units import no_units, units

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POSITIONS = 20
"""Positions of the text at which candidates are shown: its last ones."""
ATTENTION_TOKENS = 32
"""Tokens of the text between which attention is shown: its first ones."""


def text_panels(
    model: CratePreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterable[TextBatch],
    text: str,
    *,
    layer: int | None = None,
    top: int = 5,
) -> list[Panel]:
    """The lens and the units over batches of ids, and along one text candidates and attention.

    Attention is that of `layer`, the last but one by default. `top` candidates go into the table, and as many windows
    are kept for each unit. Of a masked model tokens are hidden as in training, for the lens only. What a model does
    not have is a panel without a figure that says why.
    """
    batches = list(batches)  # ids only; they are read twice
    ids = encoded(model, tokenizer, text)
    panels = []
    if isinstance(model, (CrateForCausalLM, CrateForMaskedLM)):
        hidden = batches if model.config.causal else hide(batches, tokenizer)
        inner = _inner(ids, tokenizer)[-POSITIONS:]
        found = candidates(model, ids, inner, top, mask_id=tokenizer.mask_token_id)
        panels += [lens_panel(lens(model, hidden)), candidates_panel(found, tokenizer, model.config.causal)]
    else:
        panels += [_nothing("lens", "The model's head on every layer", f"a {type(model).__name__} predicts no tokens")]
    reason = no_units(model)
    if reason is None:
        seen = units(model, batches, top=top)
        panels += [firing_panel(seen), unit_panel(seen, tokenizer)]
    else:
        panels += [_nothing("units", "Units of the sparse code", reason)]
    reason = no_token_attention(model)
    if reason is not None:
        return [*panels, _nothing("token-attention", "Attention between tokens", reason)]
    index = max(model.config.num_hidden_layers - 2, 0) if layer is None else layer
    ids = ids[:ATTENTION_TOKENS]
    weights = token_attention(model, ids, index)
    index %= model.config.num_hidden_layers
    return [*panels, token_attention_panel(weights, spell(tokenizer, ids.tolist()), index, model.config.causal)]


def encoded(model: CratePreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    """The ids (n,) of a text, as many of the first as the model reads."""
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"][: model.config.max_tokens])
    if len(ids) < 2:
        raise CrateError(f"the text {text!r} has fewer than two tokens; give a longer one")
    return ids


def hide(batches: Iterable[TextBatch], tokenizer: PreTrainedTokenizerBase) -> Iterator[TextBatch]:
    """Batches with tokens hidden as in the training of a masked model, the same ones every time, and their labels."""
    masking = Masking.of(tokenizer)
    for batch in batches:
        inputs, labels = mask_own_tokens(batch["input_ids"], masking)
        yield {**batch, "input_ids": inputs, "labels": labels}


def _inner(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Positions that can be asked for: none that a tokenizer put around the text."""
    around = {tokenizer.cls_token_id, tokenizer.sep_token_id}
    return [place for place, number in enumerate(ids.tolist()) if number not in around] or [len(ids) - 1]


def _nothing(name: str, title: str, reason: str) -> Panel:
    return Panel(name, title, "", f"Not shown: {reason}.")
