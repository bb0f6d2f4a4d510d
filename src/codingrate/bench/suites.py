"""What `crate bench` measures: a classifier against its naive form and a ViT, a coding rate against its definition."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .. import objective
from ..errors import CrateError
from ..models.classifier import CrateForImageClassification
from ..models.config import CrateConfig
from ..models.presets import create_model
from .naive import NaiveClassifier
from .timing import Progress, medians, peak_gflops, peak_memory

RIVALS = ("ours", "naive", "vit")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "peak_gflops": peak_gflops(),
    }


def bench_image(name: str, batch: int, repeats: int, progress: Progress | None = None) -> dict[str, Any]:
    """Inference and training step of a CRATE classifier, its naive transcription and transformers' ViT.

    All three have the same width, depth and heads; the naive form has our weights, and its logits are compared
    with ours before anything is timed. A training step is forward, backward and AdamW.
    """
    torch.manual_seed(0)
    models = _rivals(name)
    config = cast(CrateForImageClassification, models["ours"]).config
    classes = config.num_labels or 1
    shape = (config.num_channels, *config.image_sides)
    pixels = torch.randn(batch, *shape)
    labels = torch.randint(0, classes, (batch,))
    with torch.no_grad():
        ours, naive = _logits(models["ours"].eval(), pixels), _logits(models["naive"].eval(), pixels)
    difference = float((ours - naive).abs().max() / naive.abs().max())

    result: dict[str, Any] = {
        "model": name,
        "batch": batch,
        "parameters": {key: sum(p.numel() for p in model.parameters()) for key, model in models.items()},
        "logits_difference": difference,
    }
    for mode in ("inference", "training"):
        cases = {k: _runner(model.train(mode == "training"), pixels, labels, mode) for k, model in models.items()}
        flops = {key: _flops(name, key, batch, mode, shape) for key in RIVALS}
        seconds = medians(cases, repeats, progress=progress)
        result[mode] = {
            "seconds": seconds,
            "speedup": {key: seconds[key] / seconds["ours"] for key in RIVALS[1:]},
            "gflops_per_second": {key: flops[key] / seconds[key] / 1e9 for key in RIVALS},
            "peak_mib": {key: peak_memory(_one_step, (name, key, batch, mode, shape)) for key in RIVALS},
        }
    return result


def bench_rate(shape: tuple[int, int, int, int], repeats: int, progress: Progress | None = None) -> dict[str, Any]:
    """R of projected tokens (batch, heads, n, p) against the definition, logdet of an n × n matrix."""
    torch.manual_seed(0)
    w = F.normalize(torch.randn(shape), dim=-1)
    n, p = shape[-2:]
    beta = p / (n * 0.5**2)

    def definition() -> Tensor:
        return 0.5 * torch.logdet(torch.eye(n) + beta * (w @ w.mT))

    def ours() -> Tensor:
        return objective.projected_coding_rate(w, eps=0.5)

    with torch.no_grad():
        difference = float(((ours() - definition()) / definition()).abs().max())
        seconds = medians({"ours": ours, "naive": definition}, repeats, progress=progress)
    speedup = seconds["naive"] / seconds["ours"]
    return {"shape": list(shape), "seconds": seconds, "speedup": {"naive": speedup}, "difference": difference}


def _rivals(name: str) -> dict[str, nn.Module]:
    ours = _build(name, "ours")
    naive = _build(name, "naive", ours.state_dict())
    return {"ours": ours, "naive": naive, "vit": _build(name, "vit")}


def _build(name: str, rival: str, weights: dict[str, Tensor] | None = None) -> nn.Module:
    """One of the three models; `weights` are those of ours, for the naive form to share."""
    if rival == "vit":
        with torch.device("meta"):
            config = create_model(name).config
        return _vit(config)
    model = create_model(name)
    config = model.config
    if not isinstance(model, CrateForImageClassification) or (config.attention, config.sparsifier) != (
        "mssa",
        "ista",
    ):
        raise CrateError(f"--model {name}: the image bench takes a CRATE classifier such as crate-base-patch16-224")
    if weights is not None:
        model.load_state_dict(weights)
    return model if rival == "ours" else NaiveClassifier(model)


def _vit(config: CrateConfig) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

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


def _inference(model: nn.Module, pixels: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            _logits(model, pixels)

    return run


def _training(model: nn.Module, pixels: Tensor, labels: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> None:
        F.cross_entropy(_logits(model, pixels), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def _flops(name: str, rival: str, batch: int, mode: str, shape: tuple[int, int, int]) -> int:
    """Operations of one pass, counted on shapes alone; what is kept between passes is not counted."""
    with torch.device("meta"):
        model = _build(name, rival).train(mode == "training")
        run = _runner(model, torch.empty(batch, *shape), torch.zeros(batch, dtype=torch.long), mode)
        run()
        with FlopCounterMode(display=False) as counter:
            run()
    return int(counter.get_total_flops())


def _runner(model: nn.Module, pixels: Tensor, labels: Tensor, mode: str) -> Callable[[], object]:
    return _inference(model, pixels) if mode == "inference" else _training(model, pixels, labels)


def _one_step(name: str, rival: str, batch: int, mode: str, shape: tuple[int, int, int]) -> None:
    model = _build(name, rival).train(mode == "training")
    pixels, labels = torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.long)
    run = _runner(model, pixels, labels, mode)
    run()
    run()
