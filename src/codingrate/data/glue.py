"""The GLUE tasks: their columns and labels, and how the paper fine-tunes and measures them."""

from __future__ import annotations

from dataclasses import dataclass

GLUE_HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueTask:
    """One task. Settings are the paper's: learning rate 2e-5 and batches of 32 for all, no search."""

    columns: tuple[str, ...]
    """Column of the sentence, or of both sentences."""
    classes: tuple[str, ...] | None
    """Names of the labels in order; None for a number to be predicted."""
    metrics: tuple[str, ...] = ("accuracy",)
    """What is measured on the development set, the one the paper reports first."""
    validation: tuple[str, ...] = ("validation",)
    """Development sets."""
    epochs: int = 3
    """Passes over the training set."""
    max_length: int = 512
    """Tokens a sentence or pair is cut to."""
    learning_rate: float = 2e-5
    """Peak learning rate."""
    batch: int = 32
    """Sentences or pairs per step."""
    in_average: bool = True
    """Whether it counts in the paper's average, to which each development set of MNLI gives a number of its own."""


_PAIR = ("sentence1", "sentence2")

GLUE = {
    "sst2": GlueTask(("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(_PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy"), epochs=5),
    "stsb": GlueTask(_PAIR, None, ("spearman", "pearson")),
    "qqp": GlueTask(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")),
    "mnli": GlueTask(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        validation=("validation_matched", "validation_mismatched"),
        epochs=8,
    ),
    "qnli": GlueTask(("question", "sentence"), ("entailment", "not_entailment")),
    "rte": GlueTask(_PAIR, ("entailment", "not_entailment")),
    "wnli": GlueTask(_PAIR, ("not_entailment", "entailment"), epochs=5, max_length=128),
    "cola": GlueTask(("sentence",), ("unacceptable", "acceptable"), ("matthews",), in_average=False),
}
"""Tasks by their name on the hub, in the order of the paper's table; CoLA is not in it."""
