"""Perplexity, n-gram baselines and LAMBADA for the language model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ..data import load_text
from ..errors import CrateError
from ..evaluation import LambadaReport, PerplexityReport, lambada_accuracy, perplexity, sampled_loss
from ..tasks import CausalLM
from .run import Checkpoint, Run

ITERATIONS = 1000
"""Number of random batches in the paper's protocol."""


def run_perplexity(
    run: Run,
    data: str | None = None,
    *,
    split: str = "validation",
    text_column: str | None = None,
    separate: str | None = None,
    block: int | None = None,
    stride: int | None = None,
    sampled: bool = False,
    limit: int | None = None,
    batch_size: int = 8,
    checkpoint: Checkpoint = "last",
) -> PerplexityReport:
    """Measure the perplexity of a run's model; see `Run.perplexity`."""
    if sampled and (stride is not None or limit is not None):
        option = "--stride" if stride is not None else "--limit"
        raise CrateError(f"{option} has no effect with --sampled; leave one of them out")
    task = _causal_task(run, data, text_column, separate)
    model, tokens = run.model(checkpoint), task.tokens(split)
    if sampled:
        block = block or model.config.max_tokens
        with run.progress("perplexity", ITERATIONS * 4 * block) as advance:
            return sampled_loss(model, tokens, block=block, iterations=ITERATIONS, progress=advance)
    with run.progress("perplexity", min(limit or len(tokens), len(tokens)) - 1) as advance:
        return perplexity(
            model, tokens, block=block, stride=stride, batch_size=batch_size, limit=limit, progress=advance
        )


def ngram_baseline(
    run: Run,
    data: str | None = None,
    *,
    split: str = "validation",
    order: int = 3,
    limit: int | None = None,
    text_column: str | None = None,
    separate: str | None = None,
) -> dict[str, Any]:
    """Measure an n-gram model of the run's training text on the tokens that `run_perplexity` measures."""
    if run.recipe is None:
        raise CrateError(f"{run.source}: --baseline counts the training text of a run, and this is only a saved model")
    tokens = _causal_task(run, data, text_column, separate).tokens(split)
    return cast(CausalLM, run.task).baseline(order=order, limit=limit, tokens=tokens)[f"{order}-gram"]


def run_lambada(
    run: Run,
    passages: str | Path,
    *,
    text_column: str | None = None,
    generated: bool = False,
    batch_size: int = 8,
    checkpoint: Checkpoint = "last",
) -> LambadaReport:
    """Measure how often the last word of a passage is predicted; see `Run.lambada`."""
    tokenizer = _causal_task(run, None, None, None).processor
    documents = load_text(str(passages), text_column=text_column, separate="line", validation_share=1).validation
    texts = [text for text in documents if text.strip()]
    with run.progress("lambada", len(texts)) as advance:
        return lambada_accuracy(
            run.model(checkpoint), tokenizer, texts, generate=generated, batch_size=batch_size, progress=advance
        )


def _causal_task(run: Run, data: str | None, text_column: str | None, separate: str | None) -> CausalLM:
    run.expect_task("causal-lm", "this measure")
    if data is None and (text_column is not None or separate is not None):
        raise CrateError("--text-column and --separate say how --data is read; give --data or leave them out")
    options = {} if data is None else {"text_column": text_column, "separate": separate}
    return cast(CausalLM, run.on_data(data, **options))
