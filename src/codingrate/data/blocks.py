"""Blocks of a token file as a torch dataset: in order to measure, at random places to learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import CrateError
from .packing import TokenFile


class _Cut(Dataset[dict[str, Tensor]]):
    """Opens the file in whichever process asks, so that workers get its path and not its contents."""

    def __init__(self, tokens: TokenFile, block: int, needed: int) -> None:
        if block < 2:
            raise CrateError(f"block is {block}; it must be at least 2, a token and the one after it")
        if len(tokens) < needed:
            raise CrateError(
                f"{tokens.path} holds {len(tokens)} tokens, too few for a block of {block}; "
                "take a shorter block or more text"
            )
        self.tokens, self.block = tokens, block
        self._ids: NDArray[Any] | None = None

    def cut(self, start: int) -> dict[str, Tensor]:
        """The block (block,) that starts at a place of the file."""
        if self._ids is None:
            self._ids = self.tokens.array()
        return {"input_ids": torch.from_numpy(self._ids[start : start + self.block].astype(np.int64))}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ids": None}


class Blocks(_Cut):
    """Consecutive blocks; what is left at the end is dropped. The model shifts labels by one itself."""

    def __init__(self, tokens: TokenFile, block: int) -> None:
        super().__init__(tokens, block, block)

    def __len__(self) -> int:
        return len(self.tokens) // self.block

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.cut(range(len(self))[index] * self.block)


class RandomBlocks(_Cut):
    """Blocks that start anywhere in [0, count − block), evenly, as in nanoGPT; `length` of them make an epoch.

    Block i of epoch e depends on (seed, e, i) alone, so that neither workers nor a resume change it.
    """

    def __init__(self, tokens: TokenFile, block: int, *, seed: int = 0, length: int | None = None) -> None:
        super().__init__(tokens, block, block + 1)
        if seed < 0:
            raise CrateError(f"seed must not be negative, not {seed}")
        if length is not None and length < 1:
            raise CrateError(f"length is {length}; an epoch has at least one block")
        self.seed = seed
        self.length = length or max(len(tokens) // block, 1)
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that outlive an epoch follow

    def set_epoch(self, epoch: int) -> None:
        """New places for a new pass; call it before the loader is iterated."""
        self.epoch.fill_(epoch)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draw = np.random.default_rng((self.seed, int(self.epoch), range(self.length)[index]))
        return self.cut(int(draw.integers(len(self.tokens) - self.block)))
