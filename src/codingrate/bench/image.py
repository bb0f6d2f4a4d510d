"""A CRATE classifier against the paper's pseudocode and transformers' ViT: inference and training step."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import ViTConfig, ViTForImageClassification

from ..errors import CrateError
from ..models.classifier import CrateForImageClassification
from ..models.config import CrateConfig
from ..models.presets import create_model
from .naive import NaiveClassifier
from .timing import Progress, Result, fixed_seed, medians, peak_memory, training_step

RIVALS = ("ours", "naive", "vit")


def bench_image(
    name: str = "crate-base-patch16-224", batch: int = 8, repeats: int = 7, progress: Progress = None
) -> Result:
    """Time inference and a training step of a CRATE classifier, of its naive transcription and of transformers' ViT.

    All three have the same width, depth and number of heads. The naive form has our weights, and its logits are
    compared with ours before the timing. A training step is forward, backward and AdamW.
    """
    with fixed_seed():
        model = cast(CrateForImageClassification, _build(name, "ours"))
        models = {"ours": model, "naive": NaiveClassifier(deepcopy(model)), "vit": _build(name, "vit")}
        config = model.config
        shape = (config.num_channels, *config.image_sides)
        pixels = torch.randn(batch, *shape)
        labels = torch.randint(0, config.num_labels or 1, (batch,))
    with torch.no_grad():
        ours, naive = _logits(models["ours"].eval(), pixels), _logits(models["naive"].eval(), pixels)
    result: Result = {
        "model": name,
        "batch": batch,
        "parameters": {key: sum(p.numel() for p in model.parameters()) for key, model in models.items()},
        "logits_difference": float((ours - naive).abs().max() / naive.abs().max()),
    }
    for mode in ("inference", "training"):
        cases = {k: _runner(model.train(mode == "training"), pixels, labels, mode) for k, model in models.items()}
        seconds = medians(cases, repeats, progress=progress)
        result[mode] = {
            "seconds": seconds,
            "speedup": {key: seconds[key] / seconds["ours"] for key in RIVALS[1:]},
            "gflops_per_second": {k: _flops(name, k, batch, mode, shape) / seconds[k] / 1e9 for k in RIVALS},
            "peak_mib": {key: peak_memory(_two_steps, (name, key, batch, mode, shape)) for key in RIVALS},
        }
    return result


def _build(name: str, rival: str) -> nn.Module:
    if rival == "vit":
        with torch.device("meta"):
            config = create_model(name).config
        return _vit(config)
    model = create_model(name)
    kind = (model.config.attention, model.config.sparsifier)
    if not isinstance(model, CrateForImageClassification) or kind != ("mssa", "ista"):
        raise CrateError(f"--model {name} is not a CRATE classifier; use one such as crate-base-patch16-224")
    return model if rival == "ours" else NaiveClassifier(model)


def _vit(config: CrateConfig) -> nn.Module:
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=4 * config.hidden_size,
            image_size=config.image_sides[0],
            patch_size=config.patch_size,
            num_labels=config.num_labels,  # type: ignore[call-arg]
        )
    )


def _logits(model: nn.Module, pixels: Tensor) -> Tensor:
    output = model(pixels)
    return output if isinstance(output, Tensor) else output.logits


def _runner(model: nn.Module, pixels: Tensor, labels: Tensor, mode: str) -> Callable[[], object]:
    if mode == "inference":
        return torch.no_grad()(lambda: _logits(model, pixels))
    return training_step(model, lambda: F.cross_entropy(_logits(model, pixels), labels))


def _new_runner(name: str, rival: str, batch: int, mode: str, shape: tuple[int, int, int]) -> Callable[[], object]:
    model = _build(name, rival).train(mode == "training")
    return _runner(model, torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.long), mode)


def _flops(*case: Any) -> int:
    """Count the operations of one step from shapes alone, without those whose result is kept between steps."""
    with torch.device("meta"):
        run = _new_runner(*case)
        run()
        with FlopCounterMode(display=False) as counter:
            run()
    return int(counter.get_total_flops())


def _two_steps(*case: Any) -> None:
    run = _new_runner(*case)
    run()
    run()
