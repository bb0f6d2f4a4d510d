"""Limits of the machine: the time of a step's matrix products and attention alone, and the bandwidth of memory."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
"""Operations of PyTorch that are matrix products; fused attention is recognized by its name."""


class _Recorder(TorchDispatchMode):
    """Record the matrix products and the attention of what runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in PRODUCTS or "scaled_dot_product" in name:
            self.calls.append((func, *tree_map_only(Tensor, _layout, (args, kwargs or {}))))
        return func(*args, **(kwargs or {}))


def _layout(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape, strides and type without memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def products_alone(step: Callable[[], object]) -> Callable[[], None]:
    """Return a function that computes only the matrix products and the attention of a step, on random numbers.

    Everything else is left out: norms, activations, skips, copies and the optimizer. Its time is what an
    implementation of the step with the same kernels could reach at best. Operands are prepared once, so that each
    product reads its own memory, as in the step.
    """
    with _Recorder() as recorder:
        step()

    def fill(like: Tensor) -> Tensor:
        memory = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        return memory.normal_() if memory.is_floating_point() else memory.zero_()

    calls = [(func, *tree_map_only(Tensor, fill, (args, kwargs))) for func, args, kwargs in recorder.calls]

    @torch.no_grad()
    def run() -> None:
        for func, args, kwargs in calls:
            func(*args, **kwargs)

    return run


def read_bandwidth(mib: int = 512) -> float:
    """Return the speed of reading memory once from start to end, in bytes per second, the best of five."""
    numbers = torch.ones(mib * 2**18)
    return numbers.nbytes / min(timeit.repeat(numbers.sum, number=1, repeat=5))
