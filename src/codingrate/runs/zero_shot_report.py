"""Zero-shot loss of a causal language model on the sets of the paper's table (tab:gpt-eval)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from .. import evaluation
from .._report import Report, Table
from ..data import load_text
from ..errors import CrateError, unknown_name
from ..tasks import CausalLM
from .folder import Checkpoint
from .run import Run
from .verbs import ITERATIONS

SETS: dict[str, tuple[str, Literal["document", "line"]]] = {
    "owt": ("openwebtext", "document"),
    "lambada": ("lambada", "line"),
    "wikitext": ("wikitext", "line"),
    "ptb": ("ptb", "line"),
}
"""Sets of the paper's table: the name of their data, and the unit of a text file that ends with an end of text."""


@dataclass(frozen=True)
class ZeroShotReport(Report):
    """Cross-entropy of a model on several texts."""

    sets: dict[str, evaluation.PerplexityReport]
    average: float
    """Mean of the cross-entropies in nats per token."""
    accuracy: float | None
    """Share of LAMBADA's passages whose last word the model predicts; None if LAMBADA was not measured."""

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the loss of each set and their average, and the accuracy on LAMBADA."""
        rows = [
            (name, f"{one.cross_entropy:.4f}", "" if one.error is None else f"± {one.error:.4f}", one.split or "")
            for name, one in self.sets.items()
        ]
        rows.append(("average", f"{self.average:.4f}", "", ""))
        yield Table(title or "zero-shot loss", ("set", "nats per token", "error", "split"), rows)
        if self.accuracy is not None:
            yield f"LAMBADA: last word predicted in {self.accuracy:.2%} of the passages"


def zero_shot(
    run: Run,
    sets: Sequence[str] = tuple(SETS),
    *,
    sampled: bool = True,
    iterations: int = ITERATIONS,
    block: int | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    checkpoint: Checkpoint = "last",
) -> ZeroShotReport:
    """Measure the cross-entropy per token on the test split of each set, their average, and LAMBADA's accuracy.

    Args:
        run: A run, saved model or converted GPT-2, with its tokenizer.
        sets: Names of `SETS`, or `NAME=PATH` to read the set from a file or folder. The hub's OpenWebText has no test
            split; its validation split is measured. A file without splits is measured in full.
        sampled: Whether to use the paper's protocol, `iterations` batches of 4 random windows (appendix C.4), and not
            sliding windows over the whole text, the first `limit` tokens of it.
        iterations: Number of random batches.
        block: Number of tokens in a window. Default: the context length; the paper's is 1024.
        limit: Number of tokens from the start of a text that sliding windows read, and of passages for the accuracy.
        batch_size: Number of sliding windows, or of LAMBADA's passages, per forward pass.
        checkpoint: Model of the run.
    """
    run.expect_task("causal-lm", "the zero-shot loss")
    chosen = dict(_source(entry) for entry in sets)
    if len(chosen) != len(sets) or not chosen:
        raise CrateError(f"the sets are {', '.join(sets) or 'none'}; name each of {', '.join(SETS)} at most once")
    model = run.loaded(checkpoint)
    block = block or model.config.max_tokens
    reports: dict[str, evaluation.PerplexityReport] = {}
    accuracy = None
    for name, data in chosen.items():
        task = cast(CausalLM, run.on_data(data, separate=SETS[name][1]))
        split = "test" if task.data.text.test is not None else task.default_split
        tokens = task.tokens(split)
        options: dict[str, Any] = {"iterations": iterations} if sampled else {"batch_size": batch_size, "limit": limit}
        total = 4 * iterations * block if sampled else min(limit or len(tokens), len(tokens)) - 1
        measure = evaluation.sampled_loss if sampled else evaluation.perplexity
        with run.progress(name, total) as advance:
            report = measure(model, tokens, block=block, progress=advance, **options)
        reports[name] = dataclasses.replace(report, split=split)
        if name == "lambada":
            accuracy = _last_words(run, data, split, limit, batch_size, checkpoint)
    average = sum(report.cross_entropy for report in reports.values()) / len(reports)
    return ZeroShotReport(reports, average, accuracy)


def _source(entry: str) -> tuple[str, str]:
    """Return the name of a set and where its text is."""
    name, separator, path = entry.partition("=")
    if name not in SETS:
        raise unknown_name("set", name, SETS)
    if separator and not Path(path).expanduser().exists():
        raise CrateError(f"{entry}: no such file or folder: {path}")
    return name, path or SETS[name][0]


def _last_words(run: Run, data: str, split: str, limit: int | None, batch_size: int, checkpoint: Checkpoint) -> float:
    """Return the share of LAMBADA's passages whose last word is predicted."""
    text = load_text(data, separate=SETS["lambada"][1], validation_share=1 if split == "all" else None)
    passages = [passage for passage in text.split(split) if passage.strip()][:limit]
    with run.progress("last words", len(passages)) as advance:
        report = evaluation.lambada_accuracy(
            run.loaded(checkpoint), run.processor, passages, batch_size=batch_size, progress=advance
        )
    return report.accuracy
