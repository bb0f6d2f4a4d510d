"""`crate bench`: measure speed and memory against other implementations, in one run on this machine."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from .output import Json, print_json, print_table, progress


class Suite(str, Enum):
    """A suite of measurements."""

    image = "image"
    rate = "rate"
    loader = "loader"
    probe = "probe"
    gpt = "gpt"
    maskcut = "maskcut"


def bench(
    suites: Annotated[
        list[Suite] | None, typer.Argument(help="Suites to run. Default: image, rate and loader.", show_default=False)
    ] = None,
    model: Annotated[str, typer.Option(help="CRATE classifier of the image suite.")] = "crate-base-patch16-224",
    batch: Annotated[int, typer.Option(min=1, help="Batch size of the image suite, in images.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Number of timed rounds; results are medians.")] = 7,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU threads. Default: PyTorch's choice.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure speed and memory side by side; results are valid for this machine and this run.

    image: a CRATE classifier, the paper's pseudocode and transformers' ViT of the same width.
    rate: the coding rate and its definition. loader: loading images and training on them.
    probe: k nearest neighbors and logistic regression. gpt: CRATE-GPT and transformers' GPT-2.
    maskcut: the cut of MaskCut and a dense solver. The last three take minutes.
    """
    names = [suite.value for suite in suites or (Suite.image, Suite.rate, Suite.loader)]
    import torch

    from ..bench import count_rounds, run_suites

    if threads is not None:
        torch.set_num_threads(threads)
    with progress("bench", count_rounds(names, repeats)) as advance:
        result = run_suites(names, model=model, batch=batch, repeats=repeats, progress=advance)
    if as_json:
        print_json(result)
    else:
        print_result(result)


def print_result(result: dict[str, Any]) -> None:
    """Print the tables of all suites that were run."""
    for suite, print_suite in _PRINTERS.items():
        if suite in result:
            print_suite(result[suite], result["machine"])


def _print_image(image: dict[str, Any], machine: dict[str, Any]) -> None:
    peak = machine["peak_gflops"]
    labels = {"ours": "codingrate", "naive": "pseudocode", "vit": "transformers ViT"}
    for mode in ("inference", "training"):
        metrics = image[mode]
        print_table(
            f"{image['model']}, {mode}, batch size {image['batch']}, {machine['threads']} threads",
            ("", "parameters", "ms", "speedup of ours", "GFLOP/s", "of peak", "MiB"),
            [
                (
                    label,
                    f"{image['parameters'][key] / 1e6:.1f} M",
                    f"{metrics['seconds'][key] * 1e3:.0f}",
                    f"{metrics['speedup'][key]:.2f}×" if key in metrics["speedup"] else "",
                    f"{metrics['gflops_per_second'][key]:.0f}",
                    f"{metrics['gflops_per_second'][key] / peak:.0%}",
                    f"{metrics['peak_mib'][key]:.0f}",
                )
                for key, label in labels.items()
            ],
        )
    print(f"The logits of codingrate and pseudocode differ by {image['logits_difference']:.1e} (relative).")
    print(f"The peak is the speed of one large matrix product, {peak:.0f} GFLOP/s.")


def _print_rate(rate: dict[str, Any], machine: dict[str, Any]) -> None:
    print_table(
        f"coding rate of projections {tuple(rate['shape'])}, {machine['threads']} threads",
        ("", "ms", "speedup of ours"),
        [
            ("codingrate", f"{rate['seconds']['ours'] * 1e3:.1f}", ""),
            ("n × n logdet", f"{rate['seconds']['naive'] * 1e3:.1f}", f"{rate['speedup']['naive']:.1f}×"),
        ],
    )
    print(f"The rates differ by {rate['difference']:.1e} (relative).")


def _print_loader(loader: dict[str, Any], machine: dict[str, Any]) -> None:
    speed, model = loader["images_per_second"], loader["model"]
    print_table(
        f"loader with {loader['workers']} worker(s), photographs at 224 pixels, {machine['threads']} threads",
        ("", "images/s"),
        [("loader", f"{speed['loader']:.0f}"), (f"training of {model}", f"{speed['training']:.0f}")],
    )
    print(f"The loader delivers {loader['ratio']:.1f} times as many images as training needs.")


def _print_probe(probe: dict[str, Any], machine: dict[str, Any]) -> None:
    print_table(
        f"probes of features of 10 Gaussian classes, {machine['threads']} threads",
        ("", "training", "test", "width", "seconds", "MiB", "top-1"),
        [
            (
                name,
                *(f"{metrics[key]:,}" for key in ("train", "test", "width")),
                f"{metrics['seconds']:.1f}",
                f"{metrics['peak_mib']:.0f}",
                f"{metrics['top1']:.2%}",
            )
            for name, metrics in probe.items()
        ],
    )
    print("The time includes the choice of k or of the regularization strength on the training features.")


def _print_gpt(gpt: dict[str, Any], machine: dict[str, Any]) -> None:
    labels = {"ours": "codingrate", "gpt2": "transformers GPT-2"}
    for mode, unit, count, title in (
        ("decoding", "ms/token", gpt["new_tokens"], f"decoding {gpt['new_tokens']} tokens"),
        ("training", "ms/step", 1, f"training on {gpt['batch']} × {gpt['length']} tokens"),
    ):
        print_table(
            f"{gpt['model']}, {title}, {machine['threads']} threads",
            ("", "parameters", unit, "speedup of ours", "cache per token"),
            [
                (
                    label,
                    f"{gpt['parameters'][key] / 1e6:.1f} M",
                    f"{gpt[mode]['seconds'][key] / count * 1e3:.1f}",
                    "" if key == "ours" else f"{gpt[mode]['speedup']:.2f}×",
                    f"{gpt['cache_bytes_per_token'][key] / 1024:.0f} KiB",
                )
                for key, label in labels.items()
            ],
        )
    print(f"The logits with and without a cache differ by {gpt['cache_difference']:.1e} (relative).")


def _print_maskcut(cut: dict[str, Any], machine: dict[str, Any]) -> None:
    seconds = cut["seconds"]
    print_table(
        f"normalized cut of {cut['tokens']:,} patches, {machine['threads']} threads",
        ("", "ms", "speedup of ours"),
        [
            ("codingrate (Lanczos)", f"{seconds['ours'] * 1e3:.0f}", ""),
            ("scipy.linalg.eigh", f"{seconds['dense'] * 1e3:.0f}", f"{cut['speedup']:.1f}×"),
            ("affinity, for both", f"{seconds['affinity'] * 1e3:.0f}", ""),
        ],
    )
    print(f"The eigenvectors differ by {cut['difference']:.1e} (relative).")


_PRINTERS = {
    "image": _print_image,
    "coding_rate": _print_rate,
    "probe": _print_probe,
    "gpt": _print_gpt,
    "maskcut": _print_maskcut,
    "loader": _print_loader,
}
