"""`crate bench`: speed and memory side by side, in one run on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import unknown_name
from .output import Json, print_json, print_table, progress

SUITES = ("image", "rate", "loader")


def bench(
    suites: Annotated[list[str] | None, typer.Argument(help="image, rate or loader; all by default.")] = None,
    model: Annotated[str, typer.Option(help="A CRATE classifier, by name.")] = "crate-base-patch16-224",
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds the median is taken over.")] = 7,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; PyTorch's choice by default.")] = None,
    as_json: Json = False,
) -> None:
    """Time a CRATE against the paper's pseudocode as written and transformers' ViT of the same width.

    Also the coding rate against its definition, and the loader against training. What is compared takes turns;
    figures are medians, and hold for this machine and this run.
    """
    chosen = suites or list(SUITES)
    for suite in chosen:
        if suite not in SUITES:
            raise unknown_name("suite", suite, SUITES)
    with progress("bench", (2 * (repeats + 2)) * ("image" in chosen) + (repeats + 2) * ("rate" in chosen)) as advance:
        import torch

        from .. import bench as room

        if threads is not None:
            torch.set_num_threads(threads)
        result: dict[str, Any] = {}
        if "image" in chosen:
            result["image"] = room.bench_image(model, batch, repeats, advance)
        if "rate" in chosen:
            result["coding_rate"] = room.bench_rate((32, 12, 197, 64), repeats, advance)
        if "loader" in chosen:
            result["loader"] = room.bench_loader()
        result["machine"] = room.machine()
    if as_json:
        print_json(result)
    else:
        show(result)


def show(result: dict[str, Any]) -> None:
    """The figures as tables."""
    if "image" in result:
        _show_image(result["image"], result["machine"])
    if "coding_rate" in result:
        _show_rate(result["coding_rate"])
    if "loader" in result:
        loader = result["loader"]
        speed = loader["images_per_second"]
        print(
            f"loader with {loader['workers']} worker: {speed['loader']:.0f} photographs/s at 224 px; "
            f"{loader['model']} trains on {speed['training']:.0f}/s: {loader['ratio']:.1f}× as many"
        )


def _show_image(image: dict[str, Any], machine: dict[str, Any]) -> None:
    peak = machine["peak_gflops"]
    labels = {"ours": "codingrate", "naive": "pseudocode", "vit": "transformers ViT"}
    for mode in ("inference", "training"):
        figures = image[mode]
        print_table(
            f"{image['model']}, {mode}, batch {image['batch']}, {machine['threads']} threads",
            ("", "params", "ms", "ours is", "GFLOP/s", "of peak", "MiB"),
            [
                (
                    label,
                    f"{image['parameters'][key] / 1e6:.1f} M",
                    f"{figures['seconds'][key] * 1e3:.0f}",
                    f"{figures['speedup'][key]:.2f}× faster" if key in figures["speedup"] else "",
                    f"{figures['gflops_per_second'][key]:.0f}",
                    f"{figures['gflops_per_second'][key] / peak:.0%}",
                    f"{figures['peak_mib'][key]:.0f}",
                )
                for key, label in labels.items()
            ],
        )
    print(f"logits of ours and of the pseudocode differ by {image['logits_difference']:.1e} (relative);")
    print(f"peak is one large product, {peak:.0f} GFLOP/s")


def _show_rate(rate: dict[str, Any]) -> None:
    print_table(
        f"coding rate of projections {tuple(rate['shape'])}",
        ("", "ms", "ours is"),
        [
            ("codingrate", f"{rate['seconds']['ours'] * 1e3:.1f}", ""),
            ("n × n logdet", f"{rate['seconds']['naive'] * 1e3:.1f}", f"{rate['speedup']['naive']:.1f}× faster"),
        ],
    )
    print(f"relative difference {rate['difference']:.1e}")
