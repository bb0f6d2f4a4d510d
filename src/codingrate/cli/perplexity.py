"""`crate perplexity`: how well a causal language model predicts a text, beside a model that only counts."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table, progress
from .text import COUNTED, Opened, open_text, open_text_model, open_tokens

if TYPE_CHECKING:
    from ..data import TokenFile

ITERATIONS = 1000  # batches of 4 windows, the paper's


def perplexity(
    run: Annotated[Path, typer.Argument(help="A run folder, or that of a saved model.")],
    data: Annotated[str | None, typer.Option(help="Another text: a name, a file, a folder or a hub id.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    text_column: Annotated[
        str | None, typer.Option(help="Column of --data, or of --lambada, that holds the text.")
    ] = None,
    separate: Annotated[str | None, typer.Option(help="Documents of --data: document, line or paragraph.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Tokens predicted per window; half a block.")] = None,
    block: Annotated[int | None, typer.Option(min=2, help="Tokens of a window; as many as the model reads.")] = None,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="The paper's figure: 4 random windows, 1000 times.")
    ] = False,
    lambada: Annotated[Path | None, typer.Option(help="Instead, how often the last word of passages is found.")] = None,
    generated: Annotated[
        bool, typer.Option("--generated", help="With --lambada: found if among ten generated tokens (ToST).")
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also an n-gram model of the run's training text.")
    ] = False,
    order: Annotated[int, typer.Option(min=1, help="The n of --baseline.")] = 3,
    limit: Annotated[int | None, typer.Option(min=2, help="So many tokens from the start of the text.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows, or passages, at a time.")] = 8,
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    as_json: Json = False,
) -> None:
    """Cross-entropy per token in nats, perplexity and bits per byte of a text, by sliding windows over all of it."""
    other = {"--data": data, "--separate": separate, "--block": block, "--baseline": baseline}
    windows = {"--stride": stride, "--limit": limit}
    if lambada is not None:
        _refuse("--lambada", {**other, **windows, "--sampled": sampled})
    elif generated:
        raise CrateError("--generated goes with --lambada; give a file of passages, or leave it out")
    if sampled:
        _refuse("--sampled", windows)
    opened = open_text_model(run, which, "CrateForCausalLM", "perplexity")
    about: dict[str, Any] = {"run": str(run), "which": which}
    if lambada is not None:
        _lambada(opened, lambada, text_column, generated, batch, about, as_json)
        return
    text = open_text(opened, data, text_column, separate)
    tokens = open_tokens(opened, text, split)
    report = _measured(opened, tokens, sampled, block, stride, limit, batch)
    about |= {"data": text.name, "split": split}
    rows: dict[str, dict[str, Any]] = {"model": report.to_json()}
    if baseline:
        rows[f"{order}-gram"] = _counted(opened, tokens, order, limit)
    if as_json:
        counted = {"baseline": rows[f"{order}-gram"]} if baseline else {}
        print_json({**about, **rows["model"], **counted})
        return
    keys = ("cross_entropy", "perplexity", "bits_per_byte")
    shown = [(name, *(f"{row[key]:.4f}" for key in keys), f"{row['seconds']:.1f} s") for name, row in rows.items()]
    columns = ("", "nats per token", "perplexity", "bits per byte", "time")
    print_table(f"{run}, {which} model, {split} split of {text.name}", columns, shown)
    way = f"stride {report.stride}" if report.error is None else f"drawn at random, ± {report.error:.4f}"
    print(f"{report.tokens:,} tokens predicted, windows of {report.block}, {way}")


def _refuse(mode: str, given: dict[str, Any]) -> None:
    """Flags that would have no effect."""
    for flag, value in given.items():
        if value:
            raise CrateError(f"{flag} does not go with {mode}; leave one out")


def _measured(
    opened: Opened,
    tokens: TokenFile,
    sampled: bool,
    block: int | None,
    stride: int | None,
    limit: int | None,
    batch: int,
) -> Any:
    from ..evaluation import perplexity as measure
    from ..evaluation import sampled_loss

    if sampled:
        size = block or opened.model.config.max_tokens
        with progress("perplexity", ITERATIONS * 4 * size) as advance:
            return sampled_loss(opened.model, tokens, block=size, iterations=ITERATIONS, progress=advance)
    with progress("perplexity", min(limit or len(tokens), len(tokens)) - 1) as advance:
        return measure(
            opened.model, tokens, block=block, stride=stride, batch_size=batch, limit=limit, progress=advance
        )


def _counted(opened: Opened, tokens: TokenFile, order: int, limit: int | None) -> dict[str, Any]:
    """The n-gram model of the run's training text, on the same tokens."""
    if opened.recipe is None:
        raise CrateError(f"{opened.run}: --baseline counts the training text of a run, and this is a saved model only")
    from ..data import id_count
    from ..evaluation import NGram

    train = open_tokens(opened, open_text(opened, None, None, None), "train")
    start = time.perf_counter()
    model = NGram(train.array()[:COUNTED], order=order, vocab_size=id_count(opened.tokenizer))
    found = model.cross_entropy(tokens.array()[:limit])
    return {
        "order": order,
        "cross_entropy": found,
        "perplexity": math.exp(found),
        "bits_per_byte": found * len(tokens) / (math.log(2) * tokens.bytes),
        "tokens_counted": min(len(train), COUNTED),
        "seconds": time.perf_counter() - start,
    }


def _lambada(
    opened: Opened, file: Path, column: str | None, generated: bool, batch: int, about: dict[str, Any], as_json: bool
) -> None:
    from ..data import load_text
    from ..evaluation import lambada_accuracy

    documents = load_text(str(file), text_column=column, separate="line", validation_share=1).validation
    texts = [text for text in documents if text.strip()]
    with progress("lambada", len(texts)) as advance:
        report = lambada_accuracy(
            opened.model, opened.tokenizer, texts, generate=generated, batch_size=batch, progress=advance
        )
    if as_json:
        print_json({**about, "data": str(file), **report.to_json()})
        return
    cut = f", {report.cut} of them without their beginning, which did not fit" if report.cut else ""
    print(f"last word found in {report.accuracy:.2%} of {report.texts:,} passages{cut}")
