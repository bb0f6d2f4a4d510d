"""Operators by name: their contracts, and one registry for each kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import unknown_name
from .linear import Linear

Module = TypeVar("Module", bound=nn.Module)


class KeyValueCache(Protocol):
    """Keys and values of earlier tokens of the same sequences, as one attention operator reads them."""

    @property
    def past_length(self) -> int | Tensor:
        """Number of tokens before those of the next `update`; a tensor if memory is allocated ahead."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (batch, K, n, p) of new tokens; return those of all tokens."""


class Attention(nn.Module):
    """Contract of the first half of a layer, which mixes tokens.

    `forward(z, mask=None, return_attention=False, num_queries=None, cache=None)` maps tokens z (batch, n, d) to an
    update (batch, n, d). With `return_attention` it returns a pair: the update, and the attention (batch, K, n, n),
    whose rows sum to one. `mask` (batch, n) is True for real tokens; padding is never attended to. With
    `num_queries` only so many tokens from the front are updated, (batch, num_queries, d): a classifier reads only the
    class token of its last layer.

    With `cache` the n tokens continue a sequence, and attention is (batch, K, n, all tokens). The mask then covers
    all tokens, (batch, tokens), or states which of them each new token attends to, (batch or 1, 1, n, tokens).
    """

    cache_tensors: int = 0
    """Number of tensors cached per layer: 1 if keys equal values, 2 otherwise, 0 if caching is not supported."""
    weighs_pairs: bool = True
    """Whether the attention that is returned has a weight for every pair of tokens; otherwise it is diagonal."""
    name: str = ""
    """Name under which the operator is registered."""

    def reset_parameters(self) -> None:
        """Initialize the operator's own parameters, not those of its linear maps."""


class Sparsifier(nn.Module):
    """Contract of the second half of a layer: `forward` maps tokens (..., d) to tokens (..., d), each token alike.

    An operator that `counts_tokens` takes a second argument: the number n of real tokens of each sample, which
    broadcasts with (..., 1). Default: the length of the second to last axis.
    """

    residual: bool = False
    """Whether the layer adds a skip around the operator: an MLP needs one, ISTA contains its own."""
    uses_norm: bool = True
    """Whether the operator acts on normalized tokens."""
    counts_tokens: bool = False
    """Whether the operator depends on the number of tokens."""

    def reset_parameters(self) -> None:
        """Initialize the operator's own parameters, not those of its linear maps."""


def is_offloaded(module: nn.Module) -> bool:
    """Return whether accelerate loads the weights of a module for the time of its forward pass only."""
    return bool(getattr(getattr(module, "_hf_hook", None), "offload", False))


class OutputProjection(Linear):
    """The linear map that ends a branch of a layer; a class of its own, so that it can be initialized differently."""


class Registry(Generic[Module]):
    """A table of operators of one kind, by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Callable[..., Module]] = {}
        self._settings: dict[str, set[str]] = {}

    def register(self, name: str) -> Callable[[type[Module]], type[Module]]:
        """Return a class decorator that registers an operator as `name`."""

        def enter(cls: type[Module]) -> type[Module]:
            self._entries[name], self._settings[name] = cls, keywords(cls)
            cls.name = name  # type: ignore[attr-defined]
            return cls

        return enter

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._entries)

    def check(self, name: str) -> None:
        """Raise an error for an unknown name that suggests the nearest known one."""
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)

    def create(self, name: str, **settings: Any) -> Module:
        """Build the operator registered as `name`; settings that only others of its kind have are left out.

        So one set of settings, such as a model's config, serves every operator.
        """
        self.check(name)
        known = set().union(*self._settings.values())
        for setting in settings:
            if setting not in known:
                raise unknown_name(f"setting of {self.kind}", setting, known)
        return self._entries[name](**{key: settings[key] for key in settings.keys() & self._settings[name]})

    def apply(self, name: str, weights: Mapping[str, Tensor], *inputs: Any, **settings: Any) -> Any:
        """Return the output of the operator registered as `name` with these weights and settings, for its inputs."""
        with torch.device("meta"):
            operator = self.create(name, **settings)
        return functional_call(operator, dict(weights), inputs)


def keywords(cls: type) -> set[str]:
    """Return the names of all arguments of a class, with those that its `**` argument passes on to the next class."""
    names: set[str] = set()
    for base in cls.__mro__:
        if create := vars(base).get("__init__"):
            arguments = list(signature(create).parameters.values())[1:]
            names |= {argument.name for argument in arguments if argument.kind is not Parameter.VAR_KEYWORD}
            if not any(argument.kind is Parameter.VAR_KEYWORD for argument in arguments):
                break
    return names


ATTENTION: Registry[Attention] = Registry("attention")
SPARSIFIERS: Registry[Sparsifier] = Registry("sparsifier")
