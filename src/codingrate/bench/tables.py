"""The tables and sentences that show the results of a benchmark to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._report import Table
from .timing import Result

Measured = tuple[str, Mapping[str, str], Mapping[str, tuple[Mapping[str, float], float, str]]]
"""Title, labels of the rows by key, and columns: values by row (none is left blank), their unit, their format."""


def describe(result: Result) -> Iterator[Table | str]:
    """Yield the tables and sentences of all suites that were run."""
    for part in _parts(result):
        if isinstance(part, str):
            yield part
        else:
            title, labels, columns = part
            cells = [
                [form.format(values[key] / unit) if key in values else "" for key in labels]
                for values, unit, form in columns.values()
            ]
            rows = list(zip(labels.values(), *cells, strict=True))
            yield Table(f"{title}, {result['machine']['threads']} threads", ("", *columns), rows)


def _parts(result: Result) -> Iterator[Measured | str]:
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


def _compiled_labels(labels: Mapping[str, str], seconds: Mapping[str, float]) -> dict[str, str]:
    return {f"{key} compiled": f"{label}, compiled" for key, label in labels.items() if f"{key} compiled" in seconds}


def _describe_compiled(metrics: Mapping[str, Any], rival: str) -> Iterator[str]:
    if gain := metrics.get("compiled"):
        ours, theirs, speedup = gain.values()
        yield f"Compiling makes ours {ours:.2f}× and {rival} {theirs:.2f}× as fast as before."
        yield f"Compiled, ours is {speedup:.2f}× as fast as {rival}."
