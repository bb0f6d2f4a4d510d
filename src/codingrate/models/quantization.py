"""Weights as 8-bit integers for inference. Decoding reads all weights for each token, so fewer bytes take less time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import CrateError
from ..operators.registry import Sparsifier
from ..operators.sparsify import ISTA

if TYPE_CHECKING:
    from .base import CratePreTrainedModel

FEW_ROWS = 4
"""Number of tokens up to which PyTorch's product with 8-bit weights is faster than a product in bfloat16."""

KERNEL_WIDTH = 32
"""Divisor of the input widths that PyTorch's product reads; with others it would read beyond the end of a row."""


class Int8Linear(nn.Module):
    """x Wᵀ + b with W (out, in) rounded to integers: row i is s_i · q_i with q_i in −127 … 127, s_i = max|W_i|/127.

    Only weights are rounded. With few rows on a CPU the integers go into the product as they are; otherwise the
    weights are restored first.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        full = weight.detach().float().contiguous()
        scale = full.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        self.register_buffer("weight", (full / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(weight.dtype))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        fits = x.shape[-1] % KERNEL_WIDTH == 0 and x.device.type == "cpu" and x.dtype == torch.bfloat16
        if fits and 0 < (rows := x.shape[:-1].numel()) <= FEW_ROWS:
            flat = x.reshape(rows, x.shape[-1])
            out = torch.ops.aten._weight_int8pack_mm(flat, self.weight, self.scale).unflatten(0, x.shape[:-1])
            return out if self.bias is None else out + self.bias
        return F.linear(x, self.weight.to(x.dtype) * self.scale[:, None], self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}, bias={self.bias is not None}"


class Int8ISTA(Sparsifier):
    """ISTA as z + zN and its threshold, with N = η(D − DᵀD) in 8 bits; the identity is not rounded."""

    def __init__(self, ista: ISTA) -> None:
        super().__init__()
        with torch.no_grad():
            matrix = ista.step_matrix()
        change = matrix - torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)  # also exact in bfloat16
        self.step = Int8Linear(change.mT, matrix.new_full((len(matrix),), ista.shift))
        self.threshold = ista.threshold

    def forward(self, z: Tensor) -> Tensor:
        return self.threshold(z + self.step(z))


def quantize(model: CratePreTrainedModel) -> CratePreTrainedModel:
    """Return the model with 8-bit weights in its linear maps and ISTA steps, and all else in bfloat16, for inference.

    The model is changed in place. Embeddings, norms and positions stay in bfloat16. A quantized model generates and
    classifies, and is saved and loaded like others. It is not trained, and its dictionaries cannot be inspected.
    """
    if model.config.quantized:
        raise CrateError("the model is quantized already; load it again")
    if model.config.ista_steps > 1:
        raise CrateError(f"quantize needs a model with ista_steps 1, not {model.config.ista_steps}")
    replace_modules(model)
    model.config.quantized = True
    if model.config.modality == "text":
        model.config.tie_word_embeddings = False  # the head has integers of its own
    return model.bfloat16().eval()


def replace_modules(model: nn.Module) -> None:
    """Replace the linear maps and ISTA steps of a model by modules with 8-bit weights."""
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child.weight, child.bias))
            elif isinstance(child, ISTA):
                setattr(module, name, Int8ISTA(child))
