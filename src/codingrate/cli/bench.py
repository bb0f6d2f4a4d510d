"""`crate bench`: measure speed and memory against other implementations, in one run on this machine."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from .output import Json, emit, progress


class Suite(str, Enum):
    """A suite of measurements."""

    image = "image"
    rate = "rate"
    gpt = "gpt"


def bench(
    suites: Annotated[
        list[Suite] | None,
        typer.Argument(help="Suites to run. Default: image and rate.", show_default=False),
    ] = None,
    model: Annotated[str, typer.Option(help="CRATE classifier of the image suite.")] = "crate-base-patch16-224",
    batch: Annotated[int, typer.Option(min=1, max=2**16, help="Batch size of the image suite, in images.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, max=10**6, help="Number of timed rounds; results are medians.")] = 7,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of CPU threads. Default: PyTorch's choice.")
    ] = None,
    compile_models: Annotated[
        bool, typer.Option("--compile", help="Time compiled models too, in the suites image and gpt.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure speed and memory side by side; results are valid for this machine and this run.

    image: a CRATE classifier, the paper's pseudocode and transformers' ViT of the same width.
    rate: the coding rate and its definition, and its gradient beside attention.
    gpt: CRATE-GPT and transformers' GPT-2; it takes minutes.
    """
    names = [suite.value for suite in suites or (Suite.image, Suite.rate)]
    if compile_models and not {"image", "gpt"} & set(names):
        raise typer.BadParameter("--compile is for the suites image and gpt; add one of them")
    import torch

    from ..bench import count_rounds, describe, run_suites

    if threads is not None:
        torch.set_num_threads(threads)
    with progress("bench", count_rounds(names, repeats)) as advance:
        result = run_suites(
            names,
            model=model,
            batch=batch,
            repeats=repeats,
            compiler="inductor" if compile_models else None,
            progress=advance,
        )
    emit(as_json, result, describe(result))
