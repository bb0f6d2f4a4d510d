"""The run: a trained model with its recipe, data and metrics, and the verbs as its methods."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from typing_extensions import Self

from .. import inspection
from ..models.base import CratePreTrainedModel
from . import verbs
from .folder import UNTRAINED, Checkpoint, RunFolder


class Run(RunFolder):
    """A trained model with its recipe, data and metrics, and everything one can do with it.

    `source` is a run folder, a folder written by `save_pretrained`, a released checkpoint file, a hub id, or the name
    of a model, which then has random weights. `checkpoint` is "last" (default), "best" or a training step everywhere.
    """

    intervention: inspection.Intervention | None = None
    """Changes of the model that all verbs see; set by `intervene`."""

    def intervene(self, **changes: Any) -> Self:
        """Return this run with a changed model: heads or atoms switched off, λ or η scaled, or fewer layers.

        `changes` are the fields of `codingrate.inspection.Intervention`. Every verb of the returned run, such as
        `predict`, `attention` or `generate`, uses the changed model.
        """
        other = copy.copy(self)
        other.intervention, other._kept = inspection.Intervention.from_dict(changes), None
        other.loaded()  # refuses what the model does not have
        return other

    def without_training(self) -> Self:
        """Return this run with random weights, drawn with seed 0, in place of the trained ones."""
        _ = self.task  # the copy has the same one, which is opened by the present `source`
        other = copy.copy(self)
        other.before_training, other._kept, other.source = True, None, f"{self.source}, {UNTRAINED}"
        return other

    def model(self, checkpoint: Checkpoint = "last") -> CratePreTrainedModel:
        """Load the model: the last one (default), the best one, or that of a training step."""
        model = super().model(checkpoint)
        return model if self.intervention is None else inspection.intervene(model, self.intervention)

    evaluate = verbs.evaluate
    evaluate_real = verbs.evaluate_real
    baseline = verbs.baseline
    predict = verbs.predict
    export = verbs.export
    reconstruct = verbs.reconstruct
    generate = verbs.generate
    fill = verbs.fill
    perplexity = verbs.perplexity
    ngram = verbs.ngram
    lambada = verbs.lambada
    probe = verbs.probe
    finetune = verbs.finetune
    inspect = verbs.inspect
    explore = verbs.explore
    attention = verbs.attention
    segment = verbs.segment
    detect = verbs.detect


def load(source: str | Path, checkpoint: Checkpoint = "last") -> CratePreTrainedModel:
    """Load the model of a run, of a folder or file of weights, or of a hub id, in eval mode: `Run(source).model()`."""
    return Run(source).model(checkpoint)
