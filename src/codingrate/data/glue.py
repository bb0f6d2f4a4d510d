"""The GLUE tasks: their columns and labels, and how the paper fine-tunes and measures them."""

from __future__ import annotations

from dataclasses import dataclass

GLUE_HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueTask:
    """One task; the settings of its fine-tuning are in the recipe `glue`."""

    columns: tuple[str, ...]
    """Column of the sentence, or of both sentences."""
    classes: tuple[str, ...] | None
    """Names of the labels in order; None for a number to be predicted."""
    metrics: tuple[str, ...] = ("accuracy",)
    """What is measured on the development set, the one the paper reports first."""
    validation: tuple[str, ...] = ("validation",)
    """Development sets."""
    in_average: bool = True
    """Whether it counts in the paper's average, to which each development set of MNLI gives a number of its own."""


_PAIR = ("sentence1", "sentence2")

GLUE = {
    "sst2": GlueTask(("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(_PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy")),
    "stsb": GlueTask(_PAIR, None, ("spearman", "pearson")),
    "qqp": GlueTask(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")),
    "mnli": GlueTask(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        validation=("validation_matched", "validation_mismatched"),
    ),
    "qnli": GlueTask(("question", "sentence"), ("entailment", "not_entailment")),
    "rte": GlueTask(_PAIR, ("entailment", "not_entailment")),
    "wnli": GlueTask(_PAIR, ("not_entailment", "entailment")),
    "cola": GlueTask(("sentence",), ("unacceptable", "acceptable"), ("matthews",), in_average=False),
}
"""Tasks by their name on the hub, in the order of the paper's table; CoLA is not in it."""
