"""Masked language modelling: which tokens are hidden, drawn anew for every batch."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import CrateError
from .tokenizers import id_count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Label of a position that does not count in the loss."""


@dataclass(frozen=True)
class Masking:
    """What masking has to know of a tokenizer."""

    mask_id: int
    """Id of `<mask>`."""
    vocab_size: int
    """Number of ids a random word is drawn from."""
    special_ids: tuple[int, ...]
    """Ids that are never hidden."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Masking:
        """That of a tokenizer."""
        if tokenizer.mask_token_id is None:
            raise CrateError("the tokenizer has no mask token; make one with kind='masked', or take a RoBERTa's")
        return cls(int(tokenizer.mask_token_id), id_count(tokenizer), tuple(sorted(set(tokenizer.all_special_ids))))


def mask_tokens(
    input_ids: Tensor,
    masking: Masking | PreTrainedTokenizerBase,
    probability: float = 0.15,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Ids (…, n) with some hidden, and the labels (…, n): the true id where one was chosen, −100 elsewhere.

    Each token that is not special is chosen independently with `probability`; of the chosen, 80 % become `<mask>`,
    10 % a random id out of the whole vocabulary, 10 % stay (Devlin et al., 2019). The draws are those of `generator`,
    made on its device and as many for any ids of one shape, so that a resumed run goes on where it was.
    """
    if not 0 < probability < 1:
        raise CrateError(f"probability of masking is {probability}; it must lie between 0 and 1")
    if not isinstance(masking, Masking):
        masking = Masking.of(masking)
    where = generator.device if generator is not None else input_ids.device
    shape = input_ids.shape
    choice, fate = torch.rand((2, *shape), generator=generator, device=where).to(input_ids.device)
    words = torch.randint(masking.vocab_size, shape, generator=generator, device=where).to(input_ids)
    special = torch.isin(input_ids, torch.tensor(masking.special_ids, dtype=input_ids.dtype, device=input_ids.device))
    chosen = (choice < probability) & ~special
    labels = input_ids.masked_fill(~chosen, IGNORED)
    hidden = input_ids.masked_fill(chosen & (fate < 0.8), masking.mask_id)
    return torch.where(chosen & (fate >= 0.9), words, hidden), labels


def mask_own_tokens(
    input_ids: Tensor, masking: Masking | PreTrainedTokenizerBase, probability: float = 0.15, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The same for each block of ids (batch, n), with draws that belong to it: they come from its own ids.

    So a loss does not depend on how a text is cut into batches, or by how many processes it is measured.
    """
    masking = masking if isinstance(masking, Masking) else Masking.of(masking)
    ids = input_ids.cpu()
    if not len(ids):
        return input_ids, input_ids
    parts = []
    for block in ids:
        key = zlib.crc32(block.numpy().astype("<i8").tobytes(), seed & 0xFFFFFFFF)
        parts.append(mask_tokens(block, masking, probability, torch.Generator().manual_seed(key)))
    hidden, labels = (torch.stack(part).to(input_ids.device) for part in zip(*parts, strict=True))
    return hidden, labels
