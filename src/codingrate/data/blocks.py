"""Blocks of a token file as torch datasets, and the masking of their tokens for masked language modeling."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import CrateError
from .tokens import TokenFile, id_count
from .transforms import EpochGenerators

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Label of a position that does not count in the loss."""


class Blocks(Dataset[dict[str, Tensor]]):
    """Consecutive blocks, without the remainder at the end. The model shifts the labels by one itself.

    Each process opens the file itself, so that workers receive its path only.
    """

    spare = 0  # tokens that the file needs besides one block

    def __init__(self, tokens: TokenFile, block: int) -> None:
        if block < 2:
            raise CrateError(f"`block` must be at least 2, a token and the next one (got {block})")
        if len(tokens) < block + self.spare:
            raise CrateError(
                f"{tokens.path} has {len(tokens)} tokens, "
                f"too few for a block of {block}; use a shorter block or more text"
            )
        self.tokens, self.block = tokens, block
        self._ids: NDArray[Any] | None = None

    def read(self, start: int) -> dict[str, Tensor]:
        """Return the block (block,) that starts at a position of the file."""
        if self._ids is None:
            self._ids = self.tokens.array()
        return {"input_ids": torch.from_numpy(self._ids[start : start + self.block].astype(np.int64))}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ids": None}

    def __len__(self) -> int:
        return len(self.tokens) // self.block

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.read(range(len(self))[index] * self.block)


class RandomBlocks(Blocks, EpochGenerators):
    """Blocks that start at uniform positions in [0, count − block), as in nanoGPT; an epoch has `length` of them.

    Block i of epoch e depends on (seed, e, i) only, so that neither workers nor resuming change it.
    """

    spare = 1

    def __init__(self, tokens: TokenFile, block: int, *, seed: int = 0, length: int | None = None) -> None:
        Blocks.__init__(self, tokens, block)
        EpochGenerators.__init__(self, seed)
        if length is not None and length < 1:
            raise CrateError(f"`length` must be at least 1 (got {length})")
        self.length = length or max(len(tokens) // block, 1)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = self.generator(range(self.length)[index])
        return self.read(int(generator.integers(len(self.tokens) - self.block)))


@dataclass(frozen=True)
class Masking:
    """The ids of a tokenizer that masking needs."""

    mask_id: int
    """Id of `<mask>`."""
    vocab_size: int
    """Number of ids that a random replacement is drawn from."""
    special_ids: tuple[int, ...]
    """Ids that are never masked."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Masking:
        """Read the ids from a tokenizer."""
        if tokenizer.mask_token_id is None:
            raise CrateError("the tokenizer has no mask token; create one with kind='masked', or use RoBERTa's")
        return cls(int(tokenizer.mask_token_id), id_count(tokenizer), tuple(sorted(set(tokenizer.all_special_ids))))


def mask_tokens(
    input_ids: Tensor,
    masking: Masking | PreTrainedTokenizerBase,
    probability: float = 0.15,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ids (…, n) with some tokens masked, and labels (…, n): the true id of each chosen token, −100 elsewhere.

    Each token that is not special is chosen independently with `probability`. Of the chosen ones, 80 % become `<mask>`,
    10 % a random id of the whole vocabulary, and 10 % stay (Devlin et al., 2019). All draws come from `generator`, on
    its device, and their number depends on the shape only, so that a resumed run continues exactly.
    """
    if not 0 < probability < 1:
        raise CrateError(f"`probability` of masking must lie between 0 and 1 (got {probability})")
    if not isinstance(masking, Masking):
        masking = Masking.of(masking)
    device = generator.device if generator is not None else input_ids.device
    shape = input_ids.shape
    choice, fate = torch.rand((2, *shape), generator=generator, device=device).to(input_ids.device)
    random_ids = torch.randint(masking.vocab_size, shape, generator=generator, device=device).to(input_ids)
    special = torch.isin(input_ids, torch.tensor(masking.special_ids, dtype=input_ids.dtype, device=input_ids.device))
    chosen = (choice < probability) & ~special
    labels = input_ids.masked_fill(~chosen, IGNORED)
    masked = input_ids.masked_fill(chosen & (fate < 0.8), masking.mask_id)
    return torch.where(chosen & (fate >= 0.9), random_ids, masked), labels


def mask_own_tokens(
    input_ids: Tensor, masking: Masking | PreTrainedTokenizerBase, probability: float = 0.15, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Mask each block of ids (batch, n) with a generator seeded by the block, whatever the batches and processes."""
    masking = masking if isinstance(masking, Masking) else Masking.of(masking)
    ids = input_ids.cpu()
    if not len(ids):
        return input_ids, input_ids
    parts = []
    for block in ids:
        key = zlib.crc32(block.numpy().astype("<i8").tobytes(), seed & 0xFFFFFFFF)
        parts.append(mask_tokens(block, masking, probability, torch.Generator().manual_seed(key)))
    masked, labels = (torch.stack(part).to(input_ids.device) for part in zip(*parts, strict=True))
    return masked, labels
