"""The summary at the top of a report: how good the model is beside a baseline, samples, and four key panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image

from .panel import Panel

KEY_PANELS = ("attention-step", "compression", "rates", "ista-step", "sparsity", "coherence")
"""Panels whose figures are shown in the summary, the most important first."""
KEYS = 4  # number of key panels


@dataclass(frozen=True)
class Score:
    """A metric of the model, with that of a simple baseline on the same data."""

    name: str  # such as "top-1 accuracy"
    value: float
    percent: bool = False  # whether the value is a share, shown in percent
    baseline: float | None = None
    baseline_name: str = ""  # such as "most frequent class"
    higher_is_better: bool = False
    model: str = ""  # name of the model, where a report has several

    @property
    def text(self) -> str:
        """The metric and the baseline in a sentence."""
        unit = ".2%" if self.percent else ".4f"
        value = f"{self.model}{self.model and ': '}{self.name}: {self.value:{unit}}"
        if self.baseline is None:
            return f"{value}."
        gain = self.value - self.baseline
        better = "better" if (gain > 0) == self.higher_is_better and gain else "no better"
        return f"{value}, {better} than the baseline ({self.baseline_name}: {self.baseline:{unit}})."


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample with the prediction of the model."""

    caption: str  # what it predicts, and what is true
    correct: bool | None = None  # whether the prediction is right, if it can be
    images: Sequence[Image] = ()
    text: str = ""  # the text that the model read
    answer: str = ""  # the text that the model wrote


@dataclass(frozen=True, eq=False)
class Outcome:
    """The metrics of a model at its task, with samples."""

    scores: Sequence[Score] = ()
    samples: Sequence[Sample] = ()
    sample_title: str = ""  # what the samples are, in a few words

    def to_dict(self) -> dict[str, Any]:
        """Return scores and samples as plain values, without images."""
        scores, samples = (
            ("model", "name", "value", "baseline", "baseline_name"),
            ("caption", "correct", "text", "answer"),
        )
        return {
            "scores": [{name: getattr(score, name) for name in scores} for score in self.scores],
            "samples": [{name: getattr(sample, name) for name in samples} for sample in self.samples],
        }


def key_panels(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels whose figures the summary shows, at most four."""
    shown = [panel for panel in panels if panel.draw is not None and panel.name in KEY_PANELS]
    return sorted(shown, key=lambda panel: KEY_PANELS.index(panel.name))[:KEYS]
