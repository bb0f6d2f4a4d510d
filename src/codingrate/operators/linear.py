"""Linear maps that are fast for a single token, as in decoding, where every weight is read once for each token."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = 4
"""Number of parts into which the outputs of a matrix are divided for a single token."""
SMALLEST = 2**17
"""Number of weights below which the plain product is faster; a smaller matrix stays in the cache of a core."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b like `F.linear`, x (..., d), W (out, d), b (out,).

    On a CPU, a single token in float32 is multiplied with a batch of parts of W when no gradient is needed. Some
    libraries compute the product of a matrix with one vector in one thread, far below the speed of memory, but a batch
    of products in all threads. The result differs by rounding.
    """
    if not _is_single(x, weight):
        return F.linear(x, weight, bias)
    rows, width = weight.shape
    size = rows // BLOCKS
    whole = size * BLOCKS
    column = x.reshape(1, width).mT.expand(BLOCKS, width, 1)  # with these strides it counts as a matrix
    out = x.new_empty(rows)
    torch.bmm(weight[:whole].view(BLOCKS, size, width), column, out=out[:whole].view(BLOCKS, size, 1))
    if whole < rows:
        out[whole:] = F.linear(x.reshape(width), weight[whole:])
    if bias is not None:
        out += bias
    return out.view(*x.shape[:-1], rows)


def _is_single(x: Tensor, weight: Tensor) -> bool:
    """Return whether x is a single token that `linear` multiplies with parts of a large matrix."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() == weight.shape[1]
        and weight.numel() >= SMALLEST
        and weight.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
    )


def apply_linear(module: nn.Module, x: Tensor) -> Tensor:
    """Compute module(x), for a single token by `linear` if the module is an `nn.Linear` that nothing wraps or observes.

    The module stays a plain `nn.Linear`, because torch's dynamic quantization replaces that type and not a subclass.
    """
    if type(module) is not nn.Linear or "forward" in vars(module):
        return cast(Tensor, module(x))
    observed = module._forward_hooks or module._forward_pre_hooks
    single = not observed and _is_single(x, module.weight)
    return linear(x, module.weight, module.bias) if single else cast(Tensor, module(x))


class Linear(nn.Linear):
    """`nn.Linear` by `linear`, for maps that take much of the time of decoding."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
