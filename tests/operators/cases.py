"""The operators a contract test runs over, each with a way to build it and its oracle."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from codingrate.operators import ATTENTION, SPARSIFIERS

from . import oracles

HEADS, HEAD_DIM, LONGEST = 3, 5, 11
PAIRLESS = ("tssa", "rate-gradient")  # operators that compare no two tokens
SHAPES = ((2, 7), (3, 11))  # batch, tokens
DEFAULTS = {  # as an oracle reads them
    "attention": {"causal": False, "scale": None, "eps": 0.5, "rotary": False, "order": None, "orthonormal": False},
    "sparsifier": {"step_size": 0.1, "sparsity": 0.1, "steps": 1, "alpha": 1.0, "expansion": 4},
}


@dataclass(frozen=True)
class Case:
    """One operator in one form; `wide` is the form where K·p is not d, with every option off its default.

    `rotary` is the form with rotary positions and, for subspaces, a metric; `per_head` has every U_k orthonormal.
    """

    kind: str
    name: str
    causal: bool = False
    wide: bool = False
    rotary: bool = False
    per_head: bool = False

    def __str__(self) -> str:
        return "-".join(
            [self.name, *(mark for mark in ("causal", "wide", "rotary", "per_head") if getattr(self, mark))]
        )

    @property
    def head_dim(self) -> int:
        return HEAD_DIM + self.rotary  # rotations need pairs

    @property
    def dim(self) -> int:
        return 13 if self.wide else HEADS * self.head_dim

    def settings(self, **options: Any) -> dict[str, Any]:
        if self.kind == "attention":
            defaults: dict[str, Any] = {"causal": self.causal, "max_tokens": LONGEST}
            if self.wide:
                defaults |= {"projection_bias": True, "output_bias": False, "scale": 0.7, "eps": 0.3}
            if self.rotary:
                defaults |= {"rotary": True, "metric": self.name != "mhsa"}
            if self.per_head:
                defaults["orthonormal"] = "per-head"
            elif self.wide and self.name == "rate-gradient":
                defaults |= {"order": 2, "eps": 0.9}  # a series that diverges would have values far above 1
            return {"dim": self.dim, "num_heads": HEADS, "head_dim": self.head_dim, **defaults, **options}
        wide = {"step_size": 0.3, "sparsity": 0.2, "alpha": 0.7, "expansion": 2, "steps": 3} if self.wide else {}
        return {"dim": self.dim, **wide, **options}

    def build(self, dtype: torch.dtype = torch.float64, **options: Any) -> nn.Module:
        """The operator with every parameter drawn at random: no bias or temperature hides at 0 or 1."""
        registry: Any = ATTENTION if self.kind == "attention" else SPARSIFIERS
        module = registry.create(self.name, **self.settings(**options)).to(dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape) * (0.3 if parameter.ndim > 1 else 0.1))
        return module

    def tokens(self, batch: int = 2, n: int = 7, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(batch, n, self.dim, dtype=torch.float64).to(dtype)

    def oracle(self, module: nn.Module, z: Tensor, *args: Any, **options: Any) -> Any:
        """The update and the attention, or the output of a sparsifier, as the equation has them."""
        weights = dict(module.named_parameters())
        spec = SimpleNamespace(**{**DEFAULTS[self.kind], **self.settings(**options)})
        return getattr(oracles, self.kind)(self.name, weights, spec, z, *args)


ATTENTIONS = [
    Case("attention", name, causal, wide, rotary)
    for name in ATTENTION.names()
    for causal in (False, True)
    for wide in (False, True)
    for rotary in (False, True)
    if not (rotary and name in PAIRLESS) and not (wide and name == "mssa-transposed")
]
ATTENTIONS += [
    Case("attention", name, wide=True, per_head=True)
    for name in ATTENTION.names()
    if name not in ("mhsa", "mssa-transposed")
]
EVERY = ATTENTIONS + [Case("sparsifier", name, wide=wide) for name in SPARSIFIERS.names() for wide in (False, True)]
