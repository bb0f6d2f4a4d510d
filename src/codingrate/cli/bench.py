"""`crate bench`: measure speed and memory against other implementations, in one run on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any

import typer

from .output import Json, print_json, print_table, progress

Table = tuple[str, Mapping[str, str], Mapping[str, tuple[Mapping[str, float], float, str]]]
"""Title, labels of the rows by key, and columns: values by row (none is left blank), their unit, their format."""


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
    batch: Annotated[int, typer.Option(min=1, max=2**16, help="Batch size of the image suite, in images.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, max=10**6, help="Number of timed rounds; results are medians.")] = 7,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of CPU threads. Default: PyTorch's choice.")
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
    for part in _describe(result):
        if isinstance(part, str):
            print(part)
        else:
            title, labels, columns = part
            cells = [
                [form.format(values[key] / unit) if key in values else "" for key in labels]
                for values, unit, form in columns.values()
            ]
            rows = list(zip(labels.values(), *cells, strict=True))
            print_table(f"{title}, {result['machine']['threads']} threads", ("", *columns), rows)


def _describe(result: dict[str, Any]) -> Iterator[Table | str]:
    """Yield the tables of each suite, and a sentence below them."""
    if image := result.get("image"):
        peak = result["machine"]["peak_gflops"]
        for mode in ("inference", "training"):
            speed = image[mode]["gflops_per_second"]
            columns = {
                "parameters": (image["parameters"], 1e6, "{:.1f} M"),
                "ms": (image[mode]["seconds"], 1e-3, "{:.0f}"),
                "speedup of ours": (image[mode]["speedup"], 1, "{:.2f}×"),
                "GFLOP/s": (speed, 1, "{:.0f}"),
                "of peak": (speed, peak, "{:.0%}"),
                "MiB": (image[mode]["peak_mib"], 1, "{:.0f}"),
            }
            labels = {"ours": "codingrate", "naive": "pseudocode", "vit": "transformers ViT"}
            yield f"{image['model']}, {mode}, batch size {image['batch']}", labels, columns
        yield f"The logits of codingrate and pseudocode differ by {image['logits_difference']:.1e} (relative)."
        yield f"The peak is the speed of one large matrix product, {peak:.0f} GFLOP/s."
    if rate := result.get("coding_rate"):
        columns = {"ms": (rate["seconds"], 1e-3, "{:.1f}"), "speedup of ours": (rate["speedup"], 1, "{:.1f}×")}
        labels = {"ours": "codingrate", "naive": "n × n logdet"}
        yield f"coding rate of projections {tuple(rate['shape'])}", labels, columns
        yield f"The rates differ by {rate['difference']:.1e} (relative)."
    if probe := result.get("probe"):
        by_metric = {key: {name: metrics[key] for name, metrics in probe.items()} for key in probe["knn"]}
        columns = {
            "training": (by_metric["train"], 1, "{:,.0f}"),
            "test": (by_metric["test"], 1, "{:,.0f}"),
            "width": (by_metric["width"], 1, "{:,.0f}"),
            "seconds": (by_metric["seconds"], 1, "{:.1f}"),
            "MiB": (by_metric["peak_mib"], 1, "{:.0f}"),
            "top-1": (by_metric["top1"], 1, "{:.2%}"),
        }
        yield "probes of features of 10 Gaussian classes", {name: name for name in probe}, columns
        yield "The time includes the choice of k or of the regularization strength on the training features."
    if gpt := result.get("gpt"):
        decoding = ("decoding", "ms/token", gpt["new_tokens"], f"decoding {gpt['new_tokens']} tokens")
        training = ("training", "ms/step", 1, f"training on {gpt['batch']} × {gpt['length']} tokens")
        for mode, name, count, title in (decoding, training):
            columns = {
                "parameters": (gpt["parameters"], 1e6, "{:.1f} M"),
                name: (gpt[mode]["seconds"], count * 1e-3, "{:.1f}"),
                "speedup of ours": ({"gpt2": gpt[mode]["speedup"]}, 1, "{:.2f}×"),
                "cache per token": (gpt["cache_bytes_per_token"], 1024, "{:.0f} KiB"),
            }
            yield f"{gpt['model']}, {title}", {"ours": "codingrate", "gpt2": "transformers GPT-2"}, columns
        yield f"The logits with and without a cache differ by {gpt['cache_difference']:.1e} (relative)."
    if cut := result.get("maskcut"):
        columns = {
            "ms": (cut["seconds"], 1e-3, "{:.0f}"),
            "speedup of ours": ({"dense": cut["speedup"]}, 1, "{:.1f}×"),
        }
        labels = {"ours": "codingrate (Lanczos)", "dense": "scipy.linalg.eigh", "affinity": "affinity, for both"}
        yield f"normalized cut of {cut['tokens']:,} patches", labels, columns
        yield f"The eigenvectors differ by {cut['difference']:.1e} (relative)."
    if loader := result.get("loader"):
        labels = {"loader": "loader", "training": f"training of {loader['model']}"}
        columns = {"images/s": (loader["images_per_second"], 1, "{:.0f}")}
        yield f"loader with {loader['workers']} worker(s), photographs at 224 pixels", labels, columns
        yield f"The loader delivers {loader['ratio']:.1f} times as many images as training needs."
