"""`crate bench`: speed and memory side by side, in one run on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .output import Json, print_json, print_table, progress


def bench(
    model: Annotated[str, typer.Option(help="A CRATE classifier, by name.")] = "crate-base-patch16-224",
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds the median is taken over.")] = 7,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; PyTorch's choice by default.")] = None,
    as_json: Json = False,
) -> None:
    """Time a CRATE against the paper's pseudocode as written and transformers' ViT of the same width.

    Ours, the naive transcription and the ViT take turns; figures are medians. Ratios hold for this machine and
    this run.
    """
    with progress("bench", 3 * (repeats + 2)) as advance:
        import torch

        from .. import bench as suites

        if threads is not None:
            torch.set_num_threads(threads)
        image = suites.bench_image(model, batch, repeats, advance)
        rate = suites.bench_rate((32, 12, 197, 64), repeats, advance)
        result = {"machine": suites.machine(), "image": image, "coding_rate": rate}
    if as_json:
        print_json(result)
    else:
        show(result)


def show(result: dict[str, Any]) -> None:
    """The figures as two tables."""
    image, rate, peak = result["image"], result["coding_rate"], result["machine"]["peak_gflops"]
    labels = {"ours": "codingrate", "naive": "pseudocode", "vit": "transformers ViT"}
    for mode in ("inference", "training"):
        figures = image[mode]
        print_table(
            f"{image['model']}, {mode}, batch {image['batch']}, {result['machine']['threads']} threads",
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
    print(f"logits of ours and of the pseudocode differ by {image['logits_difference']:.1e} (relative)")
    print_table(
        f"coding rate of projections {tuple(rate['shape'])}",
        ("", "ms", "ours is"),
        [
            ("codingrate", f"{rate['seconds']['ours'] * 1e3:.1f}", ""),
            (
                "n × n logdet",
                f"{rate['seconds']['naive'] * 1e3:.1f}",
                f"{rate['speedup']['naive']:.1f}× faster",
            ),
        ],
    )
    print(f"relative difference {rate['difference']:.1e}; peak is one large product, {peak:.0f} GFLOP/s")
