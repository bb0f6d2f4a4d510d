"""`crate demo`: the inside of an untrained CRATE on an image, layer by layer, and the bench."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table, progress


def demo(
    model: Annotated[str, typer.Option(help="A CRATE classifier, by name.")] = "crate-tiny-patch16-224",
    bench: Annotated[bool, typer.Option(help="Also time the model against its rivals.")] = True,
    as_json: Json = False,
) -> None:
    """Measure every layer of an untrained model on a photograph, and time the model against its rivals."""
    repeats = 3
    with progress("demo", 1 + 3 * (repeats + 2) * bench) as advance:
        import torch

        from ..inspection import layerwise
        from ..models.presets import create_model
        from ..models.processing import image_processor

        torch.manual_seed(0)
        crate = create_model(model)
        if crate.config.modality != "vision":
            raise CrateError(
                f"--model {model}: the demo looks at an image; take a vision model such as crate-tiny-patch16-224"
            )
        pixels = image_processor(crate.config)(photograph(), return_tensors="pt")["pixel_values"]
        rows = layerwise(crate, [pixels]).to_dict("records")
        advance()
        result: dict[str, Any] = {"model": model, "layers": rows}
        if bench:
            from .. import bench as suites

            result["image"] = suites.bench_image(model, 8, repeats, advance)
            result["coding_rate"] = suites.bench_rate((32, 12, 197, 64), repeats, advance)
            result["machine"] = suites.machine()
    if as_json:
        print_json(result)
        return
    show(result)


def photograph() -> Any:
    """A photograph every installation has: scikit-learn's flower, as an RGB image."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image("flower.jpg"))


def show(result: dict[str, Any]) -> None:
    """The layers as a table, what to look for in it, and the bench."""
    print_table(
        f"{result['model']}, random weights, scikit-learn's photograph of a flower",
        ("layer", "R^c after attention", "R after ISTA", "non-zero after ISTA"),
        [
            (str(int(r["layer"])), f"{r['compression']:.1f}", f"{r['rate']:.1f}", f"{r['nonzero']:.1%}")
            for r in result["layers"]
        ],
    )
    print(
        "R^c is what it costs to code the tokens against the layer's own subspaces; attention is built to lower it,\n"
        "ISTA to leave few entries other than zero. These weights are random: nothing has been learned yet."
    )
    if "image" in result:
        from .bench import show as show_bench

        show_bench(result)
    print("Next: crate models, crate bench, crate convert FILE DIR")
