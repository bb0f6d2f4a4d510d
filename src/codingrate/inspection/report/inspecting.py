"""Inspect models: measure their layers on the same samples, and build the report."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...data import Augment
from ...errors import CrateError
from ...models import CrateForMaskedAutoencoding
from ...models.base import CratePreTrainedModel, eval_mode
from ..measure.rates import layerwise
from ..measure.tracing import TextBatch, trace
from .document import InspectionReport
from .images import attention_panel, head_panel, pca_panel, token_panel
from .layers import layer_panels, subspace_panels, training_panel
from .panel import Panel
from .text import text_panels

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

Batch = Tensor | TextBatch
Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]
"""Progress bar: given a description and a total (0 if unknown), a context whose value advances it by a number."""

PICTURES = 32  # number of images among which each head finds those on which it is most focused
SHOWN = 6  # number of images that are shown in full


@dataclass(frozen=True)
class Subject:
    """A model to inspect, with the samples it reads."""

    name: str
    """Name of the model in the report."""
    model: CratePreTrainedModel
    """Model on its device. Only the encoder of an autoencoder is inspected, and it reads whole images."""
    batches: Callable[[], Iterable[Batch]]
    """Function that returns the samples as the model reads them, from the start on every call.

    Images are pixel values (batch, channels, height, width), texts are mappings with `input_ids` (batch, n).
    """
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the report, such as the source; class, number of parameters and config are added."""
    recipe_text: str | None = None
    """Recipe of the run, as a YAML text."""
    augment: Augment | None = None
    """Normalization of the images, for a vision model."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """Tokenizer of a text model."""
    history: Path | None = None
    """The run's metrics.jsonl, for the panel on training."""

    @property
    def body(self) -> CratePreTrainedModel:
        """The part of the model that is inspected."""
        autoencoder = isinstance(self.model, CrateForMaskedAutoencoding)
        return cast(CratePreTrainedModel, self.model.base_model) if autoencoder else self.model


def inspect_models(
    subjects: Sequence[Subject],
    *,
    data: Mapping[str, Any],
    layers: Sequence[int] | None = None,
    eps: float | None = None,
    measure: str = "paper",
    notes: Iterable[str] = (),
    command: str | None = None,
    progress: Progress | None = None,
) -> InspectionReport:
    """Measure the layers of all models and look closely at the first; see `layerwise` for `layers`, `eps`, `measure`.

    `data` describes the samples in the report (name and split); an entry `samples` is their expected number, which is
    replaced by the number of samples read. `notes` are read after the samples, so a generator can report what was
    left out. `command` is the command that reproduces the report.
    """
    start = time.perf_counter()
    if not subjects:
        raise CrateError("inspect_models got no models; give at least one")
    show = _no_progress if progress is None else progress
    tables: dict[str, pd.DataFrame] = {}
    readers = [_Reader(subject) for subject in subjects]
    for subject, reader in zip(subjects, readers, strict=True):
        with show(f"measure {subject.name}", data.get("samples", 0)) as advance:
            batches = reader.read(advance)
            tables[subject.name] = layerwise(subject.body, batches, eps, layers=layers, measure=measure)
    with show("look inside", 0):
        panels, missing = subject_panels(subjects[0], tables, readers[0].images, layers)
    facts: dict[str, Any] = {f"Model {subject.name}": _model_facts(subject) for subject in subjects}
    facts["Data"] = {**data, "samples": readers[0].count}
    if command is not None:
        facts["Command"] = command
    facts["Environment"] = {
        "codingrate": version("codingrate"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads",
        "seconds": round(time.perf_counter() - start, 1),
    }
    facts |= {f"Recipe of {one.name}": one.recipe_text for one in subjects if one.recipe_text is not None}
    encoders = [
        f"{subject.name} is an autoencoder. Its encoder was inspected, on whole images."
        for subject in subjects
        if subject.body is not subject.model
    ]
    title = f"Inspection of {' and '.join(tables)}"
    return InspectionReport(title, panels, facts, [*notes, *missing, *encoders], tables)


def subject_panels(
    subject: Subject, tables: Mapping[str, pd.DataFrame], pixels: Sequence[Tensor], layers: Sequence[int] | None
) -> tuple[list[Panel], list[str]]:
    """Build the panels of a vision or a text model, and notes on those that do not apply to it.

    `tables` come from `layerwise` by the name of the model; `pixels` are batches of a few images.
    """
    history = None if subject.history is None else training_panel(subject.history)
    panels = layer_panels(tables) + ([] if history is None else [history])
    notes = []
    parts: dict[str, Callable[[], list[Panel]]] = {"subspaces": lambda: subspace_panels(subject.body)}
    vision = subject.model.config.modality == "vision"
    parts |= _vision_parts(subject, torch.cat(list(pixels)), layers) if vision else _text_parts(subject, layers)
    for name, build in parts.items():
        try:
            panels += build()
        except CrateError as error:
            notes.append(f"No {name}: {error}.")
    return panels, notes


def _vision_parts(
    subject: Subject, pixels: Tensor, layers: Sequence[int] | None
) -> dict[str, Callable[[], list[Panel]]]:
    model, augment = subject.body, subject.augment
    if augment is None:
        raise CrateError(f"{subject.name}: a vision model needs `augment`, the normalization of its images")
    images, layer = unnormalize(pixels, augment), layers[-1] if layers else None
    with eval_mode(model):
        passed = trace(model, pixels[:SHOWN], layers)
    rows, columns = (side // model.config.patch_size for side in pixels.shape[-2:])
    return {
        "tokens": lambda: [token_panel(passed)],
        "colors of patches": lambda: [pca_panel(passed, images[:SHOWN], (rows, columns))],
        "attention maps": lambda: [
            attention_panel(model, images[:SHOWN], augment, layer=layer),
            head_panel(model, pixels, images, layer),
        ],
    }


def _text_parts(subject: Subject, layers: Sequence[int] | None) -> dict[str, Callable[[], list[Panel]]]:
    model, tokenizer = subject.body, subject.tokenizer
    if tokenizer is None:
        raise CrateError(f"{subject.name}: a text model needs its `tokenizer`")
    batches = cast(list[TextBatch], list(subject.batches()))
    ids, mask = batches[0]["input_ids"][0], batches[0].get("attention_mask")
    text = str(tokenizer.decode(ids if mask is None else ids[mask[0].bool()], skip_special_tokens=True))
    with eval_mode(model):
        passed = trace(model, {name: value[:1] for name, value in batches[0].items()}, layers)
    layer = layers[-1] if layers else None
    return {
        "tokens": lambda: [token_panel(passed)],
        "text": lambda: text_panels(model, tokenizer, batches, text, layer=layer),
    }


def unnormalize(pixels: Tensor, augment: Augment) -> list[Image]:
    """Return normalized pixels (batch, channels, height, width) as images."""
    from PIL import Image

    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in augment.normalization)
    values = ((pixels.detach().float().cpu() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    arrays = (np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in values)
    return [Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array) for array in arrays]


class _Reader:
    """Reads the samples of a subject once, counts them and keeps the first images."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.count = 0
        self.images: list[Tensor] = []

    def read(self, advance: Callable[..., None]) -> Iterator[Batch]:
        for batch in self.subject.batches():
            if isinstance(batch, Tensor) and self.count < PICTURES:
                self.images.append(batch[: PICTURES - self.count])
            size = len(batch if isinstance(batch, Tensor) else batch["input_ids"])
            self.count += size
            yield batch
            advance(size)


def _no_progress(description: str, total: int) -> AbstractContextManager[Callable[..., None]]:
    return nullcontext(lambda amount=1: None)


def _model_facts(subject: Subject) -> dict[str, Any]:
    model = subject.model
    named = set(type(model.config).field_names()) - {"id2label", "label2id"}  # long lists of class names
    return {
        **subject.facts,
        "class": type(model).__name__,
        "parameters": model.num_parameters(),
        "config": {key: value for key, value in model.config.to_dict().items() if key in named},
    }
