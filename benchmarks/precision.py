"""Reduced precision: speed of decoding and of a training step, and what it costs the shipped models."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from codingrate._state import seeded
from codingrate.bench.timing import Progress, Result, medians, training_step
from codingrate.models.presets import create_model
from codingrate.models.pretrained import pretrained_names
from codingrate.models.quantization import quantize
from codingrate.operators import attention
from codingrate.runs import Run

PRECISIONS: dict[str, Callable[[Any], Any]] = {
    "float32": lambda model: model,
    "bfloat16": lambda model: model.bfloat16(),
    "int8": quantize,
}
"""A float32 model in another precision of its weights, by name."""
COSTS = {"crate-shakespeare-gpt": "cross_entropy", "crate-wikitext-bert": "cross_entropy", "crate-cifar10": "loss"}
"""Shipped models whose loss is measured in every precision, and its name."""
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "patch_size": 4,
    "image_size": 32,
}
"""Sizes of the classifier whose training step is timed: those of the recipe cifar10."""
PROMPT = 8  # number of tokens before the first generated one


def bench_precision(
    name: str = "crate-gpt-base", *, new_tokens: int = 64, batch: int = 128, repeats: int = 5, progress: Progress = None
) -> Result:
    """Time decoding and a training step in several precisions, and measure the loss of shipped models in each.

    Decoding has weights in float32, bfloat16 and 8-bit integers. Training has float32 weights and products in float32
    or bfloat16, with attention by products of matrices (ours) or by PyTorch's fused kernel.
    """
    with seeded(0):
        model = create_model(name, dropout=0.0).eval()
        classifier = create_model("crate-tiny-patch16-224", num_labels=10, **SMALL)
        pixels, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        prompt = torch.randint(model.config.vocab_size, (1, PROMPT))
    model.generation_config.eos_token_id = None  # so that every text has its full length
    decoders = {key: _decode(change(deepcopy(model)), prompt, new_tokens) for key, change in PRECISIONS.items()}
    decoding = medians(decoders, repeats, warmup=1, progress=progress)
    steps = {
        "float32": _train(classifier, pixels, labels, False, attention.LONGEST_PRODUCT),
        "bfloat16": _train(classifier, pixels, labels, True, attention.LONGEST_PRODUCT),
        "bfloat16, fused attention": _train(classifier, pixels, labels, True, 0),
    }
    training = medians(steps, repeats, warmup=1, progress=progress)
    return {
        "model": name,
        "new_tokens": new_tokens,
        "batch": batch,
        "decoding": {"seconds": decoding, "speedup": _speedups(decoding)},
        "training": {"seconds": training, "speedup": _speedups(training)},
        "loss": {key: _losses(key, metric) for key, metric in COSTS.items() if key in pretrained_names()},
    }


def _speedups(seconds: dict[str, float]) -> dict[str, float]:
    return {key: seconds["float32"] / value for key, value in seconds.items()}


def _decode(model: Any, prompt: Tensor, new_tokens: int) -> Callable[[], object]:
    return lambda: model.generate(prompt, max_new_tokens=new_tokens, do_sample=False)


def _train(model: Any, pixels: Tensor, labels: Tensor, half: bool, longest: int) -> Callable[[], None]:
    """Return a training step whose attention is computed by products for up to `longest` tokens."""

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return F.cross_entropy(model(pixels).logits.float(), labels)

    step = training_step(model.train(), loss)

    def run() -> None:
        before, attention.LONGEST_PRODUCT = attention.LONGEST_PRODUCT, longest
        try:
            step()
        finally:
            attention.LONGEST_PRODUCT = before

    return run


def _losses(name: str, metric: str) -> dict[str, float]:
    """Measure the loss of a shipped model on its stored sample in every precision."""
    run = Run(name)
    task = run.on_data(None)
    reports: dict[str, Any] = {key: task.evaluate(change(run.model())) for key, change in PRECISIONS.items()}
    return {key: report.metrics[metric] for key, report in reports.items()}
