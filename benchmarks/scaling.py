"""Time, memory and communication of training on GPUs, computed from counted operations and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from codingrate._state import seeded
from codingrate.bench.timing import Progress, Result, medians, peak_memory, training_step
from codingrate.models.base import CratePreTrainedModel
from codingrate.models.counts import count_flops
from codingrate.models.presets import create_model


@dataclass(frozen=True)
class Gpu:
    """Published limits of a GPU in a server of eight, per GPU."""

    flops: float
    """Dense bfloat16 operations per second."""
    memory: float
    """Bytes of memory."""
    link: float
    """Bytes per second to the other GPUs of the server, in one direction (NVLink)."""
    network: float
    """Bytes per second to other servers, in one direction (InfiniBand)."""


GPUS = {"A100": Gpu(312e12, 80e9, 300e9, 25e9), "H100": Gpu(989e12, 80e9, 450e9, 50e9)}
"""NVIDIA's data sheets: A100 80GB SXM, H100 SXM (without sparsity), DGX A100 and DGX H100 for the network."""
MODELS = {
    "crate-tiny-patch16-224": 128,
    "crate-small-patch16-224": 128,
    "crate-base-patch16-224": 128,
    "crate-large-patch16-224": 64,
    "crate-gpt-base": 8,
}
"""Models, and samples per GPU and step: images, or texts of full length."""
COUNTS = (1, 8, 64)
SERVER = 8  # GPUs that are connected by fast links
UTILIZATION = 0.4
"""Share of the published peak that a training step is assumed to reach. It is not measured; pass your own."""
STATE = 16  # bytes per parameter: float32 weight, gradient and AdamW's two averages
CHECKED = ("crate-tiny-patch16-224", 8)
"""Model and batch size whose training step is measured on this machine and compared with the counts."""


def bench_scaling(
    models: dict[str, int] | None = None,
    counts: Sequence[int] = COUNTS,
    utilization: float = UTILIZATION,
    check: tuple[str, int] = CHECKED,
    progress: Progress = None,
) -> Result:
    """Compute time, memory and communication of data-parallel training for GPUs, and check the counts on this machine.

    Nothing about GPUs is measured. With b samples per GPU, F(b) operations of a step, P parameters and N GPUs:

    - compute: F(b) / (utilization · peak)
    - communication: 2 (N − 1)/N · 4P bytes, the gradients in float32 by a ring, over NVLink up to 8 GPUs and over the
      network beyond. DDP does this during the backward pass; a step takes the longer of the two.
    - memory: 16P bytes for weights, gradients and AdamW, and the bytes that the backward pass keeps, halved for
      bfloat16

    F is counted by PyTorch's counter of operations, and the bytes by hooks on the tensors that autograd keeps.
    """
    result: Result = {"utilization": utilization, "models": {}, "check": _check(*check)}
    for name, batch in (models or MODELS).items():
        count = count_training(name, batch)
        rows = [_predict(count, gpu, number, utilization) for gpu in GPUS for number in counts]
        result["models"][name] = {**count, "predictions": rows}
        if progress is not None:
            progress()
    return result


def count_training(name: str, batch: int) -> Result:
    """Count parameters, operations of a training step, and bytes that its backward pass keeps in float32."""
    with torch.device("meta"):
        flops = count_flops(_step(create_model(name).train(), batch))
    with seeded(0):
        one, two = (kept_bytes(create_model(name).train(), samples) for samples in (1, 2))
    parameters = sum(p.numel() for p in create_model(name).parameters())
    kept = one + (batch - 1) * (two - one)  # what each sample adds; tables and masks are kept once
    return {"batch": batch, "parameters": parameters, "flops": flops, "activation_bytes": kept}


def _predict(count: Result, gpu_name: str, number: int, utilization: float) -> Result:
    gpu = GPUS[gpu_name]
    compute = count["flops"] / (utilization * gpu.flops)
    sent = 2 * (number - 1) / number * 4 * count["parameters"]
    communication = sent / (gpu.link if number <= SERVER else gpu.network)
    step = max(compute, communication)
    return {
        "gpu": gpu_name,
        "gpus": number,
        "compute_seconds": compute,
        "communication_seconds": communication,
        "sent_bytes": sent,
        "samples_per_second": number * count["batch"] / step,
        "memory_bytes": STATE * count["parameters"] + count["activation_bytes"] / 2,
    }


def _loss(model: CratePreTrainedModel, batch: int) -> Callable[[], Tensor]:
    config = model.config
    device = model.device
    if config.modality == "text":
        ids = torch.zeros(batch, config.max_tokens, dtype=torch.long, device=device)
        inputs: dict[str, Any] = {"input_ids": ids, "labels": ids}
    else:
        pixels = torch.randn(batch, config.num_channels, *config.image_sides, device=device)
        inputs = {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long, device=device)}
    return lambda: model(**inputs).loss


def _step(model: CratePreTrainedModel, batch: int) -> Callable[[], None]:
    loss = _loss(model, batch)
    return lambda: loss().backward()


def kept_bytes(model: CratePreTrainedModel, batch: int) -> int:
    """Return the bytes that the backward pass keeps between the layers, without weights; shared memory counts once."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = _loss(model, batch)()  # the graph, which lives until here, keeps addresses from being reused
    del loss
    return sum(kept.values())


def _check(name: str, batch: int) -> Result:
    """Compare the counted bytes of a training step in float32 with the measured peak, and state its speed."""
    count = count_training(name, batch)
    model = create_model(name).train()
    seconds = medians({"step": training_step(model, _loss(model, batch))}, 3, warmup=1)["step"]
    return {
        "model": name,
        "batch": batch,
        "counted_mib": (STATE * count["parameters"] + count["activation_bytes"]) / 2**20,
        "measured_mib": peak_memory(_two_steps, (name, batch)),
        "flops": count["flops"],
        "seconds": seconds,
    }


def _two_steps(name: str, batch: int) -> None:
    model = create_model(name).train()
    step = training_step(model, _loss(model, batch))
    step()
    step()
