"""`crate demo`: train a white-box transformer and its black-box twin on digits, then open a shipped model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from .._report import Table
from .output import Json, emit

SHIPPED = "crate-cifar10"
TWIN = ["model.config.attention=mhsa", "model.config.sparsifier=mlp", "model.config.skip=residual"]


def demo(
    output: Annotated[Path, Option(help="Folder for pictures and the report.")] = Path("runs/demo"),
    epochs: Annotated[float | None, Option(help="Epochs of training. Default: the recipe's.")] = None,
    as_json: Json = False,
) -> None:
    """Train CRATE and a ViT of the same width on digits, show what each layer does, and open a shipped model."""
    output.mkdir(parents=True, exist_ok=True)
    overrides = [] if epochs is None else [f"schedule.epochs={epochs}", f"run.layerwise_epochs={epochs}"]
    with tempfile.TemporaryDirectory(dir=output, prefix=".demo-") as folder:  # every demo starts anew
        from ..inspection import across_training, save_history_figure
        from ..runs import train

        runs = {
            name: train("digits", Path(folder) / name, overrides=[*changes, *overrides], quiet=as_json)
            for name, changes in (("crate", []), ("vit", TWIN))
        }
        layers = {name: across_training(run.metrics_file) for name, run in runs.items()}
        save_history_figure(layers["crate"], output / "layers.png")
        models = {
            name: {"accuracy": run.metrics["top1"], "parameters": run.parameters(), "seconds": run.seconds}
            for name, run in runs.items()
        }
    result: dict[str, Any] = {
        "models": models,
        "layers": {name: table.to_dict("records") for name, table in layers.items()},
        "picture": str(output / "layers.png"),
        "shipped": inspect_shipped(output),
    }
    emit(as_json, result, describe(result))


def inspect_shipped(output: Path) -> dict[str, Any]:
    """Inspect the shipped CIFAR-10 model on its stored sample, write the report, and return what the demo shows."""
    from ..runs import Run

    run = Run(SHIPPED)
    report = run.inspect(command=f"crate inspect {SHIPPED}")
    folder = report.save(output / SHIPPED)
    values = report.to_dict()
    return {
        "name": SHIPPED,
        "headline": run.headline,
        "parameters": run.parameters(),
        "samples": values["summary"]["samples"],
        "layers": report.tables[run.name][["layer", "compression_normalized", "nonzero"]].to_dict("records"),
        "findings": {name: values["panels"][name]["measured"] for name in ("compression", "sparsity")},
        "report": str(folder / "report.html"),
        "attention": str(folder / "figures" / "attention.png"),
    }


def describe(result: dict[str, Any]) -> Iterator[Table | str]:
    """Yield what was measured, what to look at, and what to type next."""
    import pandas as pd

    from ..inspection import Verdict, judge_training

    labels = {"crate": "CRATE (white box)", "vit": "ViT (black box)"}
    yield Table(
        "scikit-learn's digits: 1,438 training images, 359 test images, seed 0",
        ("", "test accuracy", "parameters", "training"),
        [
            (labels[name], f"{m['accuracy']:.1%}", f"{m['parameters']:,}", f"{m['seconds']:.0f} s")
            for name, m in result["models"].items()
        ],
    )
    rows = result["layers"]["crate"]
    first, last = min(r["epoch"] for r in rows), max(r["epoch"] for r in rows)
    before, after = ([row for row in rows if row["epoch"] == epoch] for epoch in (first, last))
    yield Table(
        "The layers of CRATE on 32 test images",
        ("layer", "R^c untrained", "R^c trained", "non-zero untrained", "non-zero trained"),
        [
            (
                str(int(b["layer"])),
                *(f"{row['compression_normalized']:.1f}" for row in (b, a)),
                *(f"{row['nonzero']:.1%}" for row in (b, a)),
            )
            for b, a in zip(before, after, strict=True)
        ],
    )
    yield (
        "R^c is the cost of coding the tokens, scaled to length one, against a layer's own subspaces, measured after\n"
        "its attention, which is built to lower it. Non-zero is the share of entries that ISTA leaves; it is built to\n"
        "leave few. The paper predicts that both fall from layer to layer in most cases, the share except in the last\n"
        "layer, and by more than before training."
    )
    findings = judge_training(pd.DataFrame(before), pd.DataFrame(after))
    verdict = Verdict.combine(finding.verdict for finding in findings)
    yield (f"Measured here: {'; '.join(finding.measured for finding in findings)}.")
    yield (f"Verdict: {'none, no change exceeds its error' if verdict is None else verdict.value}.")
    yield f"Picture: {result['picture']}"
    yield from _describe_shipped(result["shipped"])


def _describe_shipped(shipped: dict[str, Any]) -> Iterator[Table | str]:
    name = shipped["name"]
    yield (f"\nA trained model that ships with the package: {name}, {shipped['parameters']:,} parameters.")
    yield (f"On photographs of ten kinds of objects (CIFAR-10) that it has not seen: {shipped['headline']}.")
    answers = "; ".join(sample["caption"] for sample in shipped["samples"])
    yield (f"Its answers to a few of them: {answers}.")
    yield Table(
        f"The layers of {name} on its stored sample of test images",
        ("layer", "R^c", "non-zero"),
        [
            (str(int(r["layer"])), f"{r['compression_normalized']:.1f}", f"{r['nonzero']:.1%}")
            for r in shipped["layers"]
        ],
    )
    yield (f"Compression: {shipped['findings']['compression']}")
    yield (f"Sparsity: {shipped['findings']['sparsity']}")
    yield (f"Attention: {shipped['attention']} shows where the class token looks in a few pictures, head by head.")
    yield (f"Report with all measures and figures: {shipped['report']}")
    yield (
        f"Next: crate predict {name} PHOTO, crate attention {name} PHOTO, crate generate crate-shakespeare-gpt ROMEO:,"
    )
    yield ("crate models --pretrained, crate train digits, crate recipes")
