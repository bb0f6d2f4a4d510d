"""Export to ONNX with a free batch size, checked against PyTorch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from .._files import atomic_write
from .._state import quiet_transformers, seeded
from ..errors import CrateError, missing_extra
from ..models import CrateForMaskedAutoencoding
from ..models.autoencoder import random_mask
from ..models.base import CratePreTrainedModel, eval_mode

TOLERANCE = 1e-4
"""Largest difference between ONNX and PyTorch, relative to the largest output where that exceeds one."""


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence what torch's exporter says about its own internals inside the block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class _Exported(nn.Module):
    """The part of a model that is exported: from named tensors to one output."""

    def __init__(self, model: CratePreTrainedModel, inputs: list[str], output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model, inputs, output

    def forward(self, *values: Tensor) -> Tensor:
        if self.output == "features":
            return cast(Any, self.model).features(*values)
        inputs = dict(zip(self.inputs, values, strict=True))
        return getattr(self.model(**inputs, return_dict=True), self.output)


def export_onnx(model: CratePreTrainedModel, path: str | Path) -> dict[str, Any]:
    """Write a model to an ONNX file, and compare it with PyTorch at batch sizes that the export did not see.

    Image classifiers map `pixel_values` to `logits`, bodies without a head to `features`, autoencoders `pixel_values`
    and a Boolean `mask` (True = removed) to `reconstruction`; text models map `input_ids` and `attention_mask` to
    `logits`, with a free length too.
    """
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise missing_extra("exporting", ", ".join(missing), "export")
    path, model = Path(path), model.float().cpu()
    inputs, output = example_inputs(model, 2), _output_name(model)
    axes = {0: torch.export.Dim("batch")}
    if model.config.modality == "text":
        axes[1] = torch.export.Dim("length", max=model.config.max_tokens)
    module = _Exported(model, list(inputs), output)
    with eval_mode(model), torch.no_grad(), quiet_transformers(), _quiet_exporter():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes=(tuple(axes for _ in inputs),),
            dynamo=True,
            verbose=False,
        )
        with atomic_write(path) as draft:
            cast(Any, program).save(str(draft), external_data=False)
        differences = {batch: _difference(module, path, batch) for batch in (1, 5)}
    worst = max(differences.values())
    if not worst <= TOLERANCE:
        raise CrateError(
            f"{path}: the exported model differs from PyTorch by {worst:.1e}; use another version of torch"
        )
    return {
        "file": str(path), "bytes": path.stat().st_size, "inputs": list(inputs), "outputs": [output],
        "difference": worst, "batch_sizes": list(differences),
    }  # fmt: skip


def example_inputs(model: CratePreTrainedModel, batch: int) -> dict[str, Tensor]:
    """Return random inputs of a model; texts have half of the largest length, and the first one is padded."""
    config = model.config
    with seeded(batch):
        if config.modality == "text":
            length = max(2, config.max_tokens // 2)
            mask = torch.ones(batch, length, dtype=torch.long)
            mask[0, length // 2 + 1 :] = 0
            return {"input_ids": torch.randint(0, config.vocab_size, (batch, length)), "attention_mask": mask}
        inputs = {"pixel_values": torch.randn(batch, config.num_channels, *config.image_sides)}
        if isinstance(model, CrateForMaskedAutoencoding):
            inputs["mask"] = random_mask(batch, config.num_patches, config.mask_ratio)
        return inputs


def _output_name(model: CratePreTrainedModel) -> str:
    if isinstance(model, CrateForMaskedAutoencoding):
        return "reconstruction"
    return "features" if model.config.modality == "vision" and not model.config.num_labels else "logits"


def _difference(module: _Exported, path: Path, batch: int) -> float:
    import onnxruntime

    inputs = example_inputs(module.model, batch)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    result = session.run(None, {name: value.numpy() for name, value in inputs.items()})[0]
    expected = module(*inputs.values()).numpy()
    if "attention_mask" in inputs and expected.ndim == 3:  # what a model says about padding has no meaning
        kept = inputs["attention_mask"].bool().numpy()
        result, expected = result[kept], expected[kept]
    return float(np.abs(result - expected).max() / max(1.0, np.abs(expected).max()))
