"""What a report shows of a model, put together: layers, subspaces, tokens, heads, attention; of text its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..data import Augment
from ..errors import CrateError
from ..models import eval_mode
from ..models.base import CratePreTrainedModel
from .attention_panel import attention_panel, attention_study
from .heads import head_panel
from .layer_panels import layer_panels, training_panel
from .panel import Panel
from .subspace_panels import subspace_panels
from .text import text_panels
from .text_passes import TextBatch
from .tokens import pca_panel, token_panels
from .trace import trace

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

PICTURES = 32
"""Images among which each head finds those it looks at most sharply."""
SHOWN = 6
"""Of these, the images that are shown whole."""


def vision_panels(
    model: CratePreTrainedModel,
    tables: Mapping[str, pd.DataFrame],
    pixels: Tensor,
    augment: Augment,
    *,
    layers: Sequence[int] | None = None,
    metrics: Path | None = None,
) -> tuple[list[Panel], list[str]]:
    """The panels of a vision model, and notes on those that do not apply to it.

    `tables` come from `layerwise` by the model's name; `pixels` (batch, channels, side, side) are a few images as the
    model reads them, normalised as `augment` says; `metrics` is the metrics.jsonl of the model's run.
    """
    notes: list[str] = []
    found = _of_layers(tables, metrics)
    images, layer = pictures(pixels, augment), layers[-1] if layers else None
    with eval_mode(model):
        passed = trace(model, pixels[:SHOWN], layers)
    rows, columns = (side // model.config.patch_size for side in pixels.shape[-2:])
    found += _tried(notes, "subspaces", lambda: subspace_panels(model))
    found += token_panels(passed)
    found += _tried(notes, "colours of patches", lambda: [pca_panel(passed, images[:SHOWN], (rows, columns))])
    found += _tried(
        notes,
        "attention maps",
        lambda: [
            attention_panel(attention_study(model, images[:SHOWN], augment, layer=layer)),
            head_panel(model, pixels, images, layer),
        ],
    )
    return found, notes


def language_panels(
    model: CratePreTrainedModel,
    tables: Mapping[str, pd.DataFrame],
    batches: Iterable[TextBatch],
    tokenizer: PreTrainedTokenizerBase,
    *,
    layers: Sequence[int] | None = None,
    metrics: Path | None = None,
) -> tuple[list[Panel], list[str]]:
    """The panels of a text model over `batches`, the first text of which is shown, and notes as for a vision model."""
    notes: list[str] = []
    read = list(batches)
    ids, mask = read[0]["input_ids"][0], read[0].get("attention_mask")
    text = str(tokenizer.decode(ids if mask is None else ids[mask[0].bool()], skip_special_tokens=True))
    found = _of_layers(tables, metrics)
    found += _tried(notes, "subspaces", lambda: subspace_panels(model))
    with eval_mode(model):
        passed = trace(model, {name: value[:1] for name, value in read[0].items()}, layers)
    found += token_panels(passed)
    layer = layers[-1] if layers else None
    found += _tried(notes, "text", lambda: text_panels(model, tokenizer, read, text, layer=layer))
    return found, notes


def pictures(pixels: Tensor, augment: Augment) -> list[Image]:
    """Normalised pixels (batch, channels, height, width) as the images they came from."""
    from PIL import Image

    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in augment.normalization)
    values = ((pixels.detach().float().cpu() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    arrays = (np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in values)
    return [Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array) for array in arrays]


def _of_layers(tables: Mapping[str, pd.DataFrame], metrics: Path | None) -> list[Panel]:
    trained = None if metrics is None else training_panel(metrics)
    return layer_panels(tables) + ([] if trained is None else [trained])


def _tried(notes: list[str], what: str, build: Callable[[], Iterable[Panel]]) -> list[Panel]:
    """The panels, or a note why the model has none of them."""
    try:
        return list(build())
    except CrateError as error:
        notes.append(f"No {what}: {error}.")
        return []
