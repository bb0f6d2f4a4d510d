"""`crate generate`, `fill`, `perplexity`, `lambada`, `zero-shot`, `glue`: language models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from .._report import Table
from ..errors import CrateError
from .output import (
    CheckpointOption,
    Json,
    RunArgument,
    emit,
    open_run,
)


def generate(
    run: RunArgument,
    prompt: Annotated[str, Argument(help="Text to continue.")],
    tokens: Annotated[int, Option(min=1, help="Largest number of new tokens.")] = 200,
    samples: Annotated[int, Option(min=1, help="Number of continuations, with seeds from --seed on.")] = 1,
    stop: Annotated[
        list[str] | None, Option(help="Text that ends the continuation, such as '\\n\\n'; can be repeated.")
    ] = None,
    temperature: Annotated[float | None, Option(help="Temperature of sampling. Default: 0.8.")] = None,
    top_k: Annotated[
        int | None, Option(min=0, help="Sample from the k most probable tokens; 0: all. Default: 50.")
    ] = None,
    top_p: Annotated[
        float | None, Option(help="Sample from the most probable tokens with this total probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, Option(help="Factor above 1 that makes tokens of the text so far less probable.")
    ] = None,
    greedy: Annotated[bool, Option("--greedy", help="Always take the most probable token.")] = False,
    beams: Annotated[int | None, Option(min=2, max=1000, help="Number of beams for beam search.")] = None,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Seed of the sampling.")] = 0,
    checkpoint: CheckpointOption = "last",
    as_json: Json = False,
) -> None:
    """Continue a prompt with a causal language model: by sampling, greedily, or by beam search.

    Text longer than the context of the model slides through it.
    """
    from ..tasks import sampling_settings

    settings = sampling_settings(temperature, top_k, top_p, greedy, beams, repetition_penalty)
    if samples > 1 and (greedy or beams):
        raise CrateError("--samples needs sampling: every greedy continuation is the same; leave out one of them")
    opened = open_run(run)
    ends = [text.replace("\\n", "\n").replace("\\t", "\t") for text in stop or ()]
    streamer = None if as_json or beams or ends else _prompt_streamer(opened.processor, prompt)
    options: dict[str, Any] = {"tokens": tokens, "stop": ends, "streamer": streamer, "checkpoint": checkpoint}
    results = []
    for number in range(samples):
        if number and not as_json:
            print("\n---")
        results.append(opened.generate(prompt, seed=seed + number, **options, **settings))
        if not as_json and streamer is None:
            print(prompt + results[-1].text)
    if as_json:
        entries = [
            {"text": result.text, "tokens": result.tokens, "seed": seed + number, "seconds": result.seconds}
            for number, result in enumerate(results)
        ]
        about = {"run": run, "checkpoint": checkpoint, "prompt": prompt, **entries[0], **results[0].settings}
        emit(True, {**about, "stop": ends, "samples": entries})
        return
    count, seconds = sum(result.tokens for result in results), sum(result.seconds for result in results)
    print(f"{count} tokens, {count / seconds:.0f} per second", file=sys.stderr)


def _prompt_streamer(tokenizer: Any, prompt: str) -> Any:
    """Return a streamer that prints the prompt when generation starts, so that a refused call prints nothing."""
    from transformers import TextStreamer

    class Stream(TextStreamer):
        def put(self, value: Any) -> None:
            if self.next_tokens_are_prompt:
                print(prompt, end="", flush=True)
            super().put(value)

    return Stream(tokenizer, skip_prompt=True, skip_special_tokens=True)


def fill(
    run: RunArgument,
    text: Annotated[str, Argument(help="Text with <mask>, or the tokenizer's own mask, once or more.")],
    top: Annotated[int, Option(min=1, help="Number of candidates for each mask.")] = 5,
    checkpoint: CheckpointOption = "last",
    as_json: Json = False,
) -> None:
    """Show the most probable tokens for each mask of a text."""
    masks = open_run(run).fill(text, top, checkpoint=checkpoint)
    columns = [f"mask {number}" if len(masks) > 1 else "token" for number in range(1, len(masks) + 1)]
    rows = [
        [cell for candidate in line for cell in (repr(candidate.token), f"{candidate.probability:.2%}")]
        for line in zip(*masks, strict=True)
    ]
    table = Table(text, [cell for column in columns for cell in (column, "probability")], rows)
    emit(as_json, {"run": run, "checkpoint": checkpoint, "text": text, "masks": masks}, [table])


def perplexity(
    run: RunArgument,
    data: Annotated[str | None, Option(help="Text: a built-in name, a path or a hub id. Default: the run's.")] = None,
    text_column: Annotated[str | None, Option(help="Column of the text in a table given by --data.")] = None,
    separate: Annotated[
        str | None, Option(help="Documents of --data: document, line or paragraph. Default: document.")
    ] = None,
    split: Annotated[
        str | None,
        Option(help="Split: train, validation, test or all. Default: validation; all of other data without splits."),
    ] = None,
    stride: Annotated[
        int | None, Option(min=1, help="Tokens between the starts of two windows. Default: half a block.")
    ] = None,
    block: Annotated[int | None, Option(min=2, help="Tokens per window. Default: the context length.")] = None,
    sampled: Annotated[
        bool, Option("--sampled", help="Use the paper's protocol: 4 random windows, 1000 times.")
    ] = False,
    baseline: Annotated[
        bool, Option("--baseline", help="Also measure an n-gram model of the run's training text.")
    ] = False,
    order: Annotated[int, Option(min=1, help="Order n of the baseline.")] = 3,
    limit: Annotated[int | None, Option(min=2, help="Number of tokens from the start. Default: all.")] = None,
    end_of_document: Annotated[
        bool, Option(help="Count the end-of-document token after each document. Default: it is counted.")
    ] = True,
    batch_size: Annotated[int, Option("--batch-size", min=1, max=2**20, help="Windows per forward pass.")] = 8,
    checkpoint: CheckpointOption = "last",
    as_json: Json = False,
) -> None:
    """Measure the cross-entropy per token in nats, the perplexity and the bits per byte of a text.

    The first token of a text is not predicted. The end-of-document token after each document is.
    """
    opened = open_run(run)
    reading: dict[str, Any] = {"split": split, "text_column": text_column, "separate": separate, "limit": limit}
    reading["end_of_document"] = end_of_document
    windows: dict[str, Any] = {"block": block, "stride": stride, "sampled": sampled, "batch_size": batch_size}
    report = opened.perplexity(data, **reading, **windows, checkpoint=checkpoint)
    name = opened.data_name(data)
    rivals = {f"{order}-gram": opened.ngram(data, order=order, **reading)} if baseline else {}
    values = {"run": run, "checkpoint": checkpoint, "data": name, **report.to_dict()}
    parts = [*report.describe(f"{run}, checkpoint {checkpoint}, {report.part} {name}", rivals)]
    if report.ends and not sampled:
        parts.append("--no-end-of-document leaves out the ends of documents")
    emit(as_json, values | ({"baseline": rivals[f"{order}-gram"]} if baseline else {}), parts)


def lambada(
    run: RunArgument,
    passages: Annotated[Path, Argument(help="File of passages, one per line or in a table.")],
    text_column: Annotated[str | None, Option(help="Column of the passages in a table.")] = None,
    generated: Annotated[
        bool, Option("--generated", help="Count a word as found if it is among ten generated tokens (ToST).")
    ] = False,
    batch_size: Annotated[int, Option("--batch-size", min=1, max=2**20, help="Passages per forward pass.")] = 8,
    checkpoint: CheckpointOption = "last",
    as_json: Json = False,
) -> None:
    """Measure how often the last word of a passage is predicted (LAMBADA)."""
    report = open_run(run).lambada(
        passages,
        text_column=text_column,
        generated=generated,
        batch_size=batch_size,
        checkpoint=checkpoint,
    )
    values = {"run": run, "checkpoint": checkpoint, "data": str(passages), **report.to_dict()}
    emit(as_json, values, report.describe())


def zero_shot(
    run: RunArgument,
    sets: Annotated[
        list[str] | None,
        Argument(metavar="[SET[=PATH]]...", help="owt, lambada, wikitext, ptb, or with a file. Default: all, by hub."),
    ] = None,
    sampled: Annotated[
        bool, Option("--sampled/--whole", help="The paper's random windows, or sliding windows over the whole text.")
    ] = True,
    iterations: Annotated[int, Option(min=1, help="Batches of four random windows.")] = 1000,
    block: Annotated[int | None, Option(min=2, help="Tokens per window. Default: the context length.")] = None,
    limit: Annotated[
        int | None, Option(min=2, help="Tokens and passages from the start, with --whole. Default: all.")
    ] = None,
    batch_size: Annotated[int, Option("--batch-size", min=1, max=2**20, help="Windows per forward pass.")] = 8,
    checkpoint: CheckpointOption = "last",
    as_json: Json = False,
) -> None:
    """Measure the zero-shot cross-entropy on the four sets of the paper's table, and their average.

    The test split is measured, or all of a file. LAMBADA's last-word accuracy is printed as well.
    """
    from ..runs import zero_shot as measure

    options: dict[str, Any] = {"sampled": sampled, "iterations": iterations, "block": block, "limit": limit}
    report = measure(open_run(run), *([sets] if sets else []), **options, batch_size=batch_size, checkpoint=checkpoint)
    values = {"run": run, "checkpoint": checkpoint, **report.to_dict()}
    emit(as_json, values, report.describe(f"{run}, checkpoint {checkpoint}"))


def glue(
    run: RunArgument,
    overrides: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides for every task: schedule.epochs=1.")
    ] = None,
    data: Annotated[
        Path | None, Option(help="Folder with one folder per task, such as sst2. Default: the hub.")
    ] = None,
    tasks: Annotated[str | None, Option(help="Tasks such as sst2,mrpc. Default: all that --data has.")] = None,
    after_mnli: Annotated[bool, Option("--after-mnli", help="Start MRPC, STS-B and RTE from the MNLI model.")] = False,
    output: Annotated[Path | None, Option(help="Folder for one run per task. Default: RUN/glue.")] = None,
    checkpoint: CheckpointOption = "last",
    checkpoints: Annotated[
        str | None, Option(help="all: every checkpoint that the run has kept (run.milestones), as a curve.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fine-tune on each GLUE task and print the paper's metrics. A second call continues where the first stopped."""
    from ..runs import fine_tune_glue, glue_curve

    if checkpoints not in (None, "all"):
        raise CrateError(f"--checkpoints is {checkpoints!r}; it can only be all; --checkpoint STEP takes one")
    options: dict[str, Any] = {
        "data": data, "after_mnli": after_mnli, "output": output, "quiet": as_json,
        "tasks": None if tasks is None else [task.strip().lower() for task in tasks.split(",") if task.strip()],
    }  # fmt: skip
    if checkpoints == "all":
        results = glue_curve(open_run(run), overrides, **options)
        curve = [{"step": step, **result.average, "folder": str(result.folder)} for step, result in results]
        scores = [(str(step), f"{100 * result.score:.1f}") for step, result in results]
        table = Table(f"{run}, fine-tuned after each checkpoint", ("step", "score"), scores)
        picture = results[0][1].folder.parent / "curve.png"
        emit(as_json, {"run": run, "curve": curve}, [table, f"curve in {picture}"])
        return
    result = fine_tune_glue(open_run(run), overrides, **options, checkpoint=checkpoint)
    title = f"{run}, checkpoint {checkpoint}, fine-tuned{' (after MNLI)' if after_mnli else ''}"
    values = {"run": run, "after_mnli": after_mnli, **result.to_dict()}
    emit(as_json, values, [*result.describe(title), f"runs in {result.folder}"])
