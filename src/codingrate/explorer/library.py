"""The models that an explorer shows: opened once, read by all users, and never changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch

from ..errors import CrateError, unknown_name
from ..inspection import ForwardTrace, Intervention, intervene, retrace, trace
from ..inspection.measure.rates import PRECISION, curve_measures, stacked_bases
from ..models import CrateForCausalLM, CrateForImageClassification, CrateForMaskedLM, CrateForSequenceClassification
from ..models.base import CratePreTrainedModel
from ..models.loading import untrained_like
from ..models.pretrained import pretrained_names
from ..runs import Run
from ..runs.curves import kept_steps
from .cache import ValueCache

CACHE_BYTES = 512 * 2**20
"""Memory that all traces together may take; the least recently used ones are dropped."""
CURVES = ("compression_normalized", "reduction_normalized", "nonzero")
"""Measures of `inspection.layerwise` that are drawn over the layers."""
EARLIER_STEPS = 4
"""Largest number of earlier checkpoints of a run that are offered."""

Curves = dict[str, list[float]]
"""Values by layer: the number of each `layer`, from 1, and the measures `CURVES`."""
Modality = Literal["vision", "text"]


class ModelInput(Protocol):
    """One sample as a model reads it, known by its value."""

    @property
    def key(self) -> Hashable:
        """The content, or a digest of it."""

    def arguments(self, entry: Entry) -> dict[str, torch.Tensor]:
        """Return the arguments of the model, with a batch of one, on its device."""


class Entry:
    """A model of the library, with what is computed once for it.

    `before` makes it an earlier state of the run's model: "untrained" for random weights, or a step of its training.
    """

    def __init__(self, name: str, run: Run, before: int | Literal["untrained"] | None = None) -> None:
        self.name, self.run, self.before = name, run, before
        self._lock = threading.RLock()
        self._once: dict[Hashable, Any] = {}
        self.curve_cache: ValueCache[Curves] = ValueCache(8 * 2**20, lambda curves: 128 * len(curves["layer"]))
        """Layer-wise measures by input and intervention."""

    @cached_property
    def modality(self) -> Modality:
        """Whether the model reads images or text."""
        return cast(Modality, self.run.task.modality)

    @property
    def untrained(self) -> bool:
        """Whether the weights are random."""
        return self.before == "untrained" or (self.before is None and self.run.untrained)

    @property
    def ready(self) -> bool:
        """Whether there is a model to look at; a run that has just been started has none yet."""
        if self.run.folder is None or self.run.folder != self.run.run_folder:
            return True
        return (self.run.model_folder("last") / "config.json").is_file()

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return a value that depends on the model alone, computed on first use."""
        with self._lock:
            if key not in self._once:
                self._once[key] = compute()
            return self._once[key]

    @property
    def model(self) -> CratePreTrainedModel:
        """The model, without the parts of it that no prediction needs."""
        whole = self.whole
        if self.modality == "vision" and not isinstance(whole, CrateForImageClassification):
            return cast(CratePreTrainedModel, whole.base_model)  # no classes, but layers to look at
        return whole

    @property
    def whole(self) -> CratePreTrainedModel:
        """The model as it was trained, such as an autoencoder with its decoder."""
        return cast(CratePreTrainedModel, self.once("whole", self._load))

    def _load(self) -> CratePreTrainedModel:
        model = self.run.model(self.before) if isinstance(self.before, int) else self.run.loaded()
        return untrained_like(model) if self.before == "untrained" else model

    def changed(self, intervention: Intervention) -> CratePreTrainedModel:
        """Return the model with an intervention; it shares all weights."""
        return self.model if intervention == Intervention() else intervene(self.model, intervention)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return int(self.model.config.num_hidden_layers)

    @property
    def heads(self) -> int:
        """Number of heads in a layer."""
        return int(self.model.config.num_attention_heads)

    @property
    def white_box(self) -> bool:
        """Whether layers have a dictionary, and with it atoms, λ and η."""
        return self.model.config.sparsifier in ("ista", "ista-soft", "prox")

    @property
    def masked(self) -> bool:
        """Whether the model predicts masked tokens."""
        return isinstance(self.model, CrateForMaskedLM)

    @property
    def classifies_text(self) -> bool:
        """Whether the model gives a whole text a label."""
        return isinstance(self.model, CrateForSequenceClassification)

    @property
    def generates(self) -> bool:
        """Whether the model continues a text."""
        return isinstance(self.model, CrateForCausalLM)

    @property
    def subtitle(self) -> str:
        """Description of the model in a few words."""
        config = self.model.config
        kind = "white box" if config.attention != "mhsa" else "black box"
        weights = "random weights" if self.untrained else f"{self.model.num_parameters() / 1e6:.2f} M parameters"
        step = f", as it was after training step {self.before:,}" if isinstance(self.before, int) else ""
        return f"{kind}, {self.depth} layers of {self.heads} heads, width {config.hidden_size}, {weights}{step}"


class Library:
    """The models of an explorer by name, and the traces of their forward passes.

    `sources` are what `Run` opens: run folders, names of trained models that ship with the package, names of presets.
    Without any, all models that ship are there. Traces are kept by value: model, input and intervention.
    """

    def __init__(self, sources: Sequence[str | Path | Run] = (), *, cache_bytes: int = CACHE_BYTES) -> None:
        names = list(sources) or cast("list[str | Path | Run]", pretrained_names())
        if not names:
            raise CrateError("there is no model to explore; give a run folder or the name of a model")
        self.entries: dict[str, Entry] = {}
        for source in names:
            run = source if isinstance(source, Run) else Run(source)
            if run.intervention is not None:
                raise CrateError(f"{run.source}: explore the run itself; interventions are made in the browser")
            name = run.name if run.name not in self.entries else run.source
            entry = Entry(name, run)
            if entry.ready:
                _ = entry.model  # refuses what cannot be opened before a browser is
            self.entries[name] = entry
        for name, entry in list(self.entries.items()):
            for step in earlier_steps(entry.run):
                self.entries[f"{name}, step {step}"] = Entry(f"{name}, step {step}", entry.run, step)
            if not entry.untrained:
                self.entries[f"{name}, untrained"] = Entry(f"{name}, untrained", entry.run, "untrained")
        self.traces: ValueCache[ForwardTrace] = ValueCache(cache_bytes, trace_bytes)

    def names(self, modality: Modality | None = None, *, before: bool = False) -> list[str]:
        """Return the names of models that can be looked at, on request also those before training or amid it."""
        return [
            name
            for name, entry in self.entries.items()
            if (modality is None or entry.modality == modality) and (before or entry.before is None) and entry.ready
        ]

    def runs(self) -> list[str]:
        """Return the names of run folders, whose training can be watched."""
        return [
            name for name, entry in self.entries.items() if entry.run.run_folder is not None and entry.before is None
        ]

    def entry(self, name: str) -> Entry:
        """Return a model by its name."""
        if not isinstance(name, str) or name not in self.entries:  # a browser may send a list
            raise unknown_name("model", str(name), self.entries)
        return self.entries[name]

    def look(self, name: str, sample: ModelInput, changes: Intervention | None = None) -> ForwardTrace:
        """Return the trace of one forward pass, from the cache if the same question was asked before.

        With an intervention, the layers before the first changed one are those of the model itself.
        """
        entry, changes = self.entry(name), changes or Intervention()

        def compute() -> ForwardTrace:
            arguments = sample.arguments(entry)
            with torch.inference_mode():
                if changes == Intervention():
                    return trace(entry.model, arguments)
                return retrace(entry.model, changes, self.look(name, sample), arguments)

        return self.traces.get((name, sample.key, changes), compute)

    def curves(self, name: str, sample: ModelInput, changes: Intervention | None = None) -> Curves:
        """Return the measures `CURVES` of a sample by layer, from the cache if they were measured before."""
        entry, changes = self.entry(name), changes or Intervention()

        def compute() -> Curves:
            original, passed = self.look(name, sample), self.look(name, sample, changes)
            first = 0 if changes == Intervention() else changes.first_layer(entry.depth) - 1
            known = self.curves(name, sample) if first else {column: [] for column in ("layer", *CURVES)}
            curves = {column: values[:first] for column, values in known.items()}
            if first == passed.encoder_depth:
                return curves
            with torch.inference_mode():
                bases = entry.once("bases", lambda: stacked_bases(original))
                measured = curve_measures(passed, bases, PRECISION["paper"], first)
            curves["layer"] = list(range(1, passed.encoder_depth + 1))
            return {**curves, **{column: curves[column] + measured[column].tolist() for column in CURVES}}

        return entry.curve_cache.get((sample.key, changes), compute)


def earlier_steps(run: Run) -> list[int]:
    """Return steps of training whose checkpoints a run has kept, without the last one, at most `EARLIER_STEPS`."""
    steps = kept_steps(run)[:-1] if run.run_folder is not None else []
    if len(steps) <= EARLIER_STEPS:
        return steps
    return [steps[round(i * (len(steps) - 1) / (EARLIER_STEPS - 1))] for i in range(EARLIER_STEPS)]


@dataclass(frozen=True)
class Prediction:
    """An answer of a model with its probability, and the probability before an intervention."""

    label: str
    probability: float
    before: float


def top_predictions(
    labels: Callable[[int], str], now: torch.Tensor, before: torch.Tensor, top: int
) -> list[Prediction]:
    """Return the most probable answers: those now, and the first one before the intervention, sorted."""
    count = min(top, len(now))
    order = now.topk(count).indices.tolist()
    first = int(before.argmax())
    if first not in order:
        order[-1] = first
    return [Prediction(labels(index), float(now[index]), float(before[index])) for index in order]


def trace_bytes(passed: ForwardTrace) -> int:
    """Return the memory that a trace takes."""
    tensors = [*passed.tokens, *passed.compressed, *([] if passed.logits is None else [passed.logits])]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
