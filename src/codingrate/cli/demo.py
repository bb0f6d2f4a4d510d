"""`crate demo`: a white-box transformer and its black-box twin learn handwritten digits; then the inside is shown."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import Json, print_json, print_table

TWIN = ["model.config.attention=mhsa", "model.config.sparsifier=mlp", "model.config.skip=residual"]


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the two runs and the picture.")] = Path("runs/demo"),
    epochs: Annotated[float | None, typer.Option(help="Passes over the digits, if not the recipe's.")] = None,
    as_json: Json = False,
) -> None:
    """Train CRATE and a ViT of the same width on digits, and show what each layer does, before and after."""
    output.mkdir(parents=True, exist_ok=True)
    overrides = [] if epochs is None else [f"schedule.epochs={epochs}", f"run.layerwise_epochs={epochs}"]
    with tempfile.TemporaryDirectory(dir=output, prefix=".demo-") as folder:  # a demo starts afresh every time
        from ..training import load_recipe, train

        runs = {
            name: train(load_recipe("digits", [*changes, *overrides]), Path(folder) / name, quiet=as_json)
            for name, changes in (("crate", []), ("vit", TWIN))
        }
        from ..inspection import across_training, save_history_figure

        layers = {name: across_training(Path(folder) / name / "metrics.jsonl") for name in runs}
        save_history_figure(layers["crate"], output / "layers.png")
    result: dict[str, Any] = {
        "models": {
            name: {"accuracy": run.metrics["top1"], "parameters": run.parameters, "seconds": run.seconds}
            for name, run in runs.items()
        },
        "layers": {name: table.to_dict("records") for name, table in layers.items()},
        "picture": str(output / "layers.png"),
    }
    if as_json:
        print_json(result)
        return
    show(result)


def show(result: dict[str, Any]) -> None:
    """Two tables, what to look at in them, and what to type next."""
    labels = {"crate": "CRATE (white box)", "vit": "ViT (black box)"}
    print_table(
        "scikit-learn's digits, 1,438 to learn from, 359 to test on, seed 0",
        ("", "test accuracy", "parameters", "training"),
        [
            (labels[name], f"{m['accuracy']:.1%}", f"{m['parameters']:,}", f"{m['seconds']:.0f} s")
            for name, m in result["models"].items()
        ],
    )
    rows = result["layers"]["crate"]
    first, last = min(r["epoch"] for r in rows), max(r["epoch"] for r in rows)
    before = [r for r in rows if r["epoch"] == first]
    after = [r for r in rows if r["epoch"] == last]
    print_table(
        "Inside CRATE, layer by layer, on 32 test images",
        ("layer", "R^c untrained", "R^c trained", "non-zero untrained", "non-zero trained"),
        [
            (
                str(int(b["layer"])),
                f"{b['compression']:.1f}",
                f"{a['compression']:.1f}",
                f"{b['nonzero']:.1%}",
                f"{a['nonzero']:.1%}",
            )
            for b, a in zip(before, after, strict=True)
        ],
    )
    print(
        "R^c is what the tokens cost to code against a layer's own subspaces, after its attention; attention is built\n"
        "to lower it. Non-zero is what ISTA leaves of each token; it is built to leave little. The paper expects both\n"
        "to fall from layer to layer."
    )
    from ..inspection import describe_training

    print("Measured here: " + describe_training(before, after))
    print(f"Picture: {result['picture']}")
    print("Next: crate train digits, crate evaluate runs/digits, crate inspect runs/digits, crate bench, crate recipes")
