"""`crate bench`: measure speed and memory against other implementations, in one run on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import Json, print_json, print_table, progress

PRECISIONS = ("float32", "bfloat16", "int8")
Table = tuple[str, Mapping[str, str], Mapping[str, tuple[Mapping[str, float | str], float, str]]]
"""Title, labels of the rows by key, and columns: values by row (none is left blank), their unit, their format. A value
that is a text stands for one that was not measured and is printed as it is."""
GROWTH_LAYERS = {"mssa": "MSSA", "tssa": "TSSA", "vit": "ViT"}


class Suite(str, Enum):
    """A suite of measurements."""

    image = "image"
    rate = "rate"
    loader = "loader"
    probe = "probe"
    gpt = "gpt"
    maskcut = "maskcut"
    explorer = "explorer"
    precision = "precision"
    growth = "growth"
    inspect = "inspect"
    scaling = "scaling"


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
    compile_models: Annotated[
        bool, typer.Option("--compile", help="Time compiled models too, in the suites image and gpt.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="Picture of the growth suite to write, PNG or SVG.")] = None,
    as_json: Json = False,
) -> None:
    """Measure speed and memory side by side; results are valid for this machine and this run.

    image: a CRATE classifier, the paper's pseudocode and transformers' ViT of the same width.
    rate: the coding rate and its definition. loader: loading images and training on them.
    probe: k nearest neighbors and logistic regression. gpt: CRATE-GPT and transformers' GPT-2.
    maskcut: the cut of MaskCut and a dense solver. These three take minutes.
    explorer: clicks in crate explore, in units of one forward pass.
    precision: decoding and training in float32, bfloat16 and int8, and the loss of shipped models in each.
    growth: time and memory of MSSA, TSSA and a ViT's layer against tokens and width. inspect: layer-wise measures,
    features, probes and MaskCut, in units of the forward passes that they need.
    scaling: training on 1, 8 and 64 GPUs, computed from counted operations and bytes; GPUs are not measured.
    """
    names = [suite.value for suite in suites or (Suite.image, Suite.rate, Suite.loader)]
    if figure is not None and "growth" not in names:
        raise typer.BadParameter("--figure is a picture of the growth suite; add growth to the suites")
    if compile_models and not {"image", "gpt"} & set(names):
        raise typer.BadParameter("--compile is for the suites image and gpt; add one of them")
    import torch

    from ..bench import count_rounds, run_suites

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
    if figure is not None and "growth" in result:
        from ..bench import save_growth

        save_growth(result["growth"], figure)
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
                [_cell(values[key], unit, form) if key in values else "" for key in labels]
                for values, unit, form in columns.values()
            ]
            rows = list(zip(labels.values(), *cells, strict=True))
            print_table(f"{title}, {result['machine']['threads']} threads", ("", *columns), rows)


def _cell(value: float | str, unit: float, form: str) -> str:
    return value if isinstance(value, str) else form.format(value / unit)


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
            labels |= {"products": "our products and attention alone"}
            labels |= _compiled_labels(labels, image[mode]["seconds"])
            yield f"{image['model']}, {mode}, batch size {image['batch']}", labels, columns
            yield f"Products and attention alone take {image[mode]['efficiency']:.0%} of our time."
            yield from _describe_compiled(image[mode], "the ViT")
        yield f"The logits of codingrate and pseudocode differ by {image['logits_difference']:.1e} (relative)."
        yield f"The peak is the speed of one large matrix product, {peak:.0f} GFLOP/s."
    if rate := result.get("coding_rate"):
        columns = {"ms": (rate["seconds"], 1e-3, "{:.1f}"), "speedup of ours": (rate["speedup"], 1, "{:.1f}×")}
        labels = {"ours": "codingrate", "naive": "n × n logdet"}
        yield f"coding rate of projections {tuple(rate['shape'])}", labels, columns
        yield f"The rates differ by {rate['difference']:.1e} (relative)."
        gradient = rate["gradient"]
        columns = {"ms": (gradient["seconds"], 1e-3, "{:.1f}"), "speedup of ours": (gradient["speedup"], 1, "{:.2f}×")}
        labels = {"exact": "exact, p × p inverse", "attention": "softmax(WWᵀ)W", "inverse": "exact, n × n inverse"}
        yield "gradient of these rates, and attention in its place", labels, columns
        yield f"The exact gradients differ by {gradient['difference']:.1e} (relative)."
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
            labels = {"ours": "codingrate", "gpt2": "transformers GPT-2"}
            if mode == "training":
                labels["products"] = "our products and attention alone"
                labels |= _compiled_labels(labels, gpt[mode]["seconds"])
            yield f"{gpt['model']}, {title}", labels, columns
            yield from _describe_compiled(gpt[mode], "GPT-2")
            yield {
                "decoding": "Reading {mib:.0f} MiB of weights per token, at {speed:.1f} GB/s, "
                "takes {share:.0%} of our time.",
                "training": "Products and attention alone take {share:.0%} of our time.",
            }[mode].format(share=gpt[mode]["efficiency"], mib=gpt["weight_bytes"] / 2**20, speed=gpt["bandwidth"] / 1e9)
        yield f"The logits with and without a cache differ by {gpt['cache_difference']:.1e} (relative)."
    if cut := result.get("maskcut"):
        columns = {
            "ms": (cut["seconds"], 1e-3, "{:.0f}"),
            "speedup of ours": ({"dense": cut["speedup"]}, 1, "{:.1f}×"),
        }
        labels = {"ours": "codingrate (Lanczos)", "dense": "scipy.linalg.eigh", "affinity": "affinity, for both"}
        yield f"normalized cut of {cut['tokens']:,} patches", labels, columns
        yield f"The eigenvectors differ by {cut['difference']:.1e} (relative)."
    for name, clicks in result.get("explorer", {}).items():
        labels = {
            "forward": "one forward pass",
            "patch": "click on a patch",
            "layer": "move of the layer slider",
            "head": "head switched off",
            "atom": "atom removed",
            "sparsity": "λ scaled",
            "step size": "η scaled",
            "early exit": "early exit",
        }
        columns = {"ms": (clicks["seconds"], 1e-3, "{:.0f}"), "forward passes": (clicks["ratio"], 1, "{:.2f}")}
        yield f"{name}, one image", labels, columns
        yield f"A click should take at most {clicks['limit']:.0f} forward passes."
    if precision := result.get("precision"):
        decoding = ("decoding", "ms/token", precision["new_tokens"], f"{precision['model']}, decoding")
        training = ("training", "ms/step", 1, f"classifier of cifar10, training on {precision['batch']} images")
        for mode, name, count, title in (decoding, training):
            columns = {
                name: (precision[mode]["seconds"], count * 1e-3, "{:.1f}"),
                "speedup": (precision[mode]["speedup"], 1, "{:.2f}×"),
            }
            yield title, {key: key for key in precision[mode]["seconds"]}, columns
        losses = precision["loss"]
        columns = {key: ({name: row[key] for name, row in losses.items()}, 1, "{:.4f}") for key in PRECISIONS}
        yield "loss of shipped models on their stored samples", {name: name for name in losses}, columns
    if growth := result.get("growth"):
        yield from _describe_growth(growth)
    if scaling := result.get("scaling"):
        yield from _describe_scaling(scaling)
    if cost := result.get("inspect"):
        train, test = cost["probed"]
        labels = {
            "forward": "forward pass",
            "trace": "forward pass that hands out all tokens",
            "layerwise": "layer-wise measures, with their forward pass",
            "controls": "layer-wise measures with controls",
            "features": "features of JPEG files, with their forward pass",
            "knn": f"k nearest neighbors, {train} + {test} features",
            "logistic": f"logistic regression, {train} + {test} features",
            "maskcut": "MaskCut, 3 masks",
        }
        columns = {
            "images": (cost["images"], 1, "{:,.0f}"),
            "ms": (cost["seconds"], 1e-3, "{:.1f}"),
            "forward passes": (cost["ratio"], 1, "{:.2f}"),
        }
        yield f"{cost['model']}, batch size {cost['batch']}", labels, columns
        columns = {"forward passes": (cost["measures"], 1, "{:.2f}")}
        yield "single layer-wise measures over all layers", {key: key for key in cost["measures"]}, columns
        without, controlled = cost["limits"]
        yield f"Layer-wise measures should take at most {without:.0f} forward passes, with controls {controlled:.0f}."
    if loader := result.get("loader"):
        labels = {"loader": "loader", "training": f"training of {loader['model']}"}
        columns = {"images/s": (loader["images_per_second"], 1, "{:.0f}")}
        yield f"loader with {loader['workers']} worker(s), photographs at 224 pixels", labels, columns
        yield f"The loader delivers {loader['ratio']:.1f} times as many images as training needs."


def _compiled_labels(labels: Mapping[str, str], seconds: Mapping[str, float]) -> dict[str, str]:
    return {f"{key} compiled": f"{label}, compiled" for key, label in labels.items() if f"{key} compiled" in seconds}


def _describe_compiled(metrics: Mapping[str, Any], rival: str) -> Iterator[str]:
    if gain := metrics.get("compiled"):
        ours, theirs, speedup = gain.values()
        yield f"Compiling makes ours {ours:.2f}× and {rival} {theirs:.2f}× as fast as before."
        yield f"Compiled, ours is {speedup:.2f}× as fast as {rival}."


def _describe_growth(growth: dict[str, Any]) -> Iterator[Table | str]:
    for axis, modes in growth["axes"].items():
        other = next(name for name in growth["fixed"] if name != axis)
        for mode, layers in modes.items():
            columns: dict[str, Any] = {}
            for key, unit, scale in (("seconds", "ms", 1e-3), ("mib", "MiB", 1.0)):
                for name, one in layers.items():
                    values = dict(zip(map(str, one["sizes"]), one[key], strict=True))
                    skipped = {str(one["sizes"][int(index)]): reason for index, reason in one["skipped"].items()}
                    columns[f"{GROWTH_LAYERS[name]} {unit}"] = (values | skipped, scale, "{:.1f}")
            sizes = {str(size): f"{size:,}" for size in next(iter(layers.values()))["sizes"]}
            yield f"one layer, {mode}, {other} {growth['fixed'][other]}, {axis}", sizes, columns
            for key, what in (("seconds", "Time"), ("mib", "Memory")):
                exponents = {name: one["exponents"][key] for name, one in layers.items()}
                fitted = ", ".join(f"{GROWTH_LAYERS[k]} {v:.2f}" for k, v in exponents.items() if v is not None)
                yield f"{what} grows with the power of {axis}: {fitted}."
    yield "Exponents are fitted to the three largest sizes. Memory is the peak that a new process adds for the layer."


def _describe_scaling(scaling: dict[str, Any]) -> Iterator[Table | str]:
    for name, one in scaling["models"].items():
        rows = {f"{row['gpus']} × {row['gpu']}": row for row in one["predictions"]}

        def by_row(key: str, rows: dict[str, Any] = rows) -> dict[str, float]:
            return {label: row[key] for label, row in rows.items()}

        columns = {
            "ms": (by_row("compute_seconds"), 1e-3, "{:.1f}"),
            "sent, MB": (by_row("sent_bytes"), 1e6, "{:.0f}"),
            "sending, ms": (by_row("communication_seconds"), 1e-3, "{:.1f}"),
            "samples/s": (by_row("samples_per_second"), 1, "{:,.0f}"),
            "memory, GB": (by_row("memory_bytes"), 1e9, "{:.1f}"),
        }
        yield f"{name}, {one['batch']} samples per GPU, computed, not measured", {key: key for key in rows}, columns
        tera = one["flops"] / 1e12
        yield f"{one['parameters'] / 1e6:.1f} M parameters, {tera:.2f} · 10¹² operations per GPU and step."
    check = scaling["check"]
    yield f"Computed at {scaling['utilization']:.0%} of the published peak in bfloat16, which is an assumption."
    yield (
        f"Checked here: a training step of {check['model']} on {check['batch']} images in float32 keeps "
        f"{check['counted_mib']:.0f} MiB by count and adds {check['measured_mib']:.0f} MiB at its peak by measurement."
    )
    speed = check["flops"] / check["seconds"] / 1e9
    yield f"It takes {check['seconds']:.2f} s, {speed:.0f} · 10⁹ operations per second."
