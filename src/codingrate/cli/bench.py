"""`crate bench`: speed and memory side by side, in one run on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import unknown_name
from .output import Json, print_json, print_table, progress

SUITES = ("image", "rate", "loader")
ON_REQUEST = ("probe", "gpt", "maskcut")  # minutes long, so only when named


def bench(
    suites: Annotated[
        list[str] | None, typer.Argument(help="image, rate, loader, the default; or probe, gpt, maskcut.")
    ] = None,
    model: Annotated[str, typer.Option(help="A CRATE classifier, by name.")] = "crate-base-patch16-224",
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds the median is taken over.")] = 7,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; PyTorch's choice by default.")] = None,
    as_json: Json = False,
) -> None:
    """Time a CRATE against the paper's pseudocode as written and transformers' ViT of the same width.

    Also the coding rate against its definition, the loader against training, CRATE-GPT against GPT-2, and the cut of
    MaskCut against a dense solver. What is compared takes turns; figures are medians, and hold for this machine and
    this run.
    """
    chosen = suites or list(SUITES)
    for suite in chosen:
        if suite not in SUITES + ON_REQUEST:
            raise unknown_name("suite", suite, SUITES + ON_REQUEST)
    rounds = (2 * (repeats + 2)) * ("image" in chosen) + (repeats + 2) * ("rate" in chosen)
    rounds += (2 * (repeats + 1)) * ("gpt" in chosen) + repeats * ("maskcut" in chosen)
    with progress("bench", rounds) as advance:
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
        if "probe" in chosen:
            result["probe"] = room.bench_probe()
        if "gpt" in chosen:
            result["gpt"] = room.bench_gpt(repeats=repeats, progress=advance)
        if "maskcut" in chosen:
            result["maskcut"] = room.bench_maskcut(repeats=repeats, progress=advance)
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
    if "probe" in result:
        _show_probe(result["probe"])
    if "gpt" in result:
        _show_gpt(result["gpt"], result["machine"])
    if "maskcut" in result:
        _show_maskcut(result["maskcut"], result["machine"])
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


def _show_probe(probe: dict[str, Any]) -> None:
    print_table(
        "probes of features of 10 Gaussian classes, parameter chosen on the training features",
        ("", "training", "test", "width", "seconds", "MiB", "top-1"),
        [
            (
                name,
                *(f"{row[key]:,}" for key in ("train", "test", "width")),
                f"{row['seconds']:.1f}",
                f"{row['peak_mib']:.0f}",
                f"{row['top1']:.2%}",
            )
            for name, row in probe.items()
        ],
    )


def _show_gpt(gpt: dict[str, Any], machine: dict[str, Any]) -> None:
    labels = {"ours": "codingrate", "gpt2": "transformers GPT-2"}
    for mode, unit, count, title in (
        ("decoding", "ms/token", gpt["new_tokens"], f"decoding {gpt['new_tokens']} tokens"),
        ("training", "ms/step", 1, f"training on {gpt['batch']} × {gpt['length']} tokens"),
    ):
        print_table(
            f"{gpt['model']}, {title}, {machine['threads']} threads",
            ("", "params", unit, "ours is", "cache per token"),
            [
                (
                    label,
                    f"{gpt['parameters'][key] / 1e6:.1f} M",
                    f"{gpt[mode]['seconds'][key] / count * 1e3:.1f}",
                    "" if key == "ours" else f"{gpt[mode]['speedup']:.2f}× faster",
                    f"{gpt['cache_bytes_per_token'][key] / 1024:.0f} KiB",
                )
                for key, label in labels.items()
            ],
        )
    print(f"logits with a cache and without one differ by {gpt['cache_difference']:.1e} (relative)")


def _show_maskcut(cut: dict[str, Any], machine: dict[str, Any]) -> None:
    seconds = cut["seconds"]
    print_table(
        f"normalised cut of {cut['tokens']:,} patches, {machine['threads']} threads",
        ("", "ms", "ours is"),
        [
            ("codingrate (Lanczos)", f"{seconds['ours'] * 1e3:.0f}", ""),
            ("scipy.linalg.eigh", f"{seconds['dense'] * 1e3:.0f}", f"{cut['speedup']:.1f}× faster"),
            ("affinity, for both", f"{seconds['affinity'] * 1e3:.0f}", ""),
        ],
    )
    print(f"eigenvectors differ by {cut['difference']:.1e} (relative)")


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
