"""Pieces of documents to token ids, many at a time, with what stands between documents."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError
from .text_files import Piece
from .tokenizers import byte_characters, id_count

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

SpecialTokens = Literal["eos", "bos_eos", "none"]
"""Tokens added to a document: end-of-text after it, the tokenizer's own special tokens on both sides, or none."""

SPECIAL_TOKENS: tuple[SpecialTokens, ...] = get_args(SpecialTokens)

_BEGIN, _END = 0xFE, 0xFF  # bytes that UTF-8 never has


class Encoder:
    """A tokenizer with its separators. Text that spells a special token is encoded as the text it is."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, special_tokens: SpecialTokens) -> None:
        from tokenizers import Tokenizer

        if not tokenizer.is_fast:
            raise CrateError(
                f"{type(tokenizer).__name__} has no fast version, which text needs; take another tokenizer"
            )
        # A copy: truncation and padding of the user's own tokenizer stay as they are, and have no say here.
        self.tokenizer: Tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self.hash = hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()
        self.before, self.after = _around(tokenizer, self.tokenizer, special_tokens)
        self.dtype: Literal["uint16", "uint32"] = "uint16" if id_count(tokenizer) <= 2**16 else "uint32"
        self._little = np.dtype(self.dtype).newbyteorder("<")
        self._table = self._byte_table()
        self._fresh = True  # whether the next piece begins a document

    def __call__(self, pieces: list[Piece]) -> tuple[NDArray[Any], int]:
        """Ids of pieces that follow those of the last call, and how many bytes of text they are."""
        return self._by_table(pieces) if self._table is not None else self._by_tokenizer(pieces)

    def _by_tokenizer(self, pieces: list[Piece]) -> tuple[NDArray[Any], int]:
        ids: list[int] = []
        encoded = self.tokenizer.encode_batch_fast([text for text, _ in pieces], add_special_tokens=False)
        for (_, end), encoding in zip(pieces, encoded, strict=True):
            if self._fresh:
                ids += self.before
            ids += encoding.ids
            if end:
                ids += self.after
            self._fresh = end
        return np.array(ids, self._little), sum(len(text.encode()) for text, _ in pieces)

    def _by_table(self, pieces: list[Piece]) -> tuple[NDArray[Any], int]:
        """The same for bytes, by one look-up: the separators travel as bytes that no text has."""
        assert self._table is not None
        raw: list[bytes] = []
        size = 0
        begin, finish = (bytes([mark] * len(ids)) for mark, ids in ((_BEGIN, self.before), (_END, self.after)))
        for text, end in pieces:
            if self._fresh:
                raw.append(begin)
            encoded = text.encode()
            raw.append(encoded)
            if end:
                raw.append(finish)
            size += len(encoded)
            self._fresh = end
        return self._table[np.frombuffer(b"".join(raw), np.uint8)], size

    def _byte_table(self) -> NDArray[Any] | None:
        """The id of each byte if that is all this tokenizer knows, the separators in places of impossible bytes."""
        if self.tokenizer.get_vocab_size() > 2**10 or len(self.before) > 1 or len(self.after) > 1:
            return None
        state = json.loads(self.tokenizer.to_str())
        model, first = state["model"], state["pre_tokenizer"] or {}
        plain = model["type"] == "BPE" and not model["merges"] and not model["dropout"] and state["normalizer"] is None
        if not plain or first["type"] != "ByteLevel" or first["add_prefix_space"]:
            return None
        if not all(token["special"] for token in state["added_tokens"]):
            return None
        found = [model["vocab"].get(character) for character in byte_characters()]
        if None in found:
            return None
        table = np.array(found, self._little)
        for mark, ids in ((_BEGIN, self.before), (_END, self.after)):
            table[mark] = ids[0] if ids else 0
        return table


def _around(
    tokenizer: PreTrainedTokenizerBase, plain: Tokenizer, special_tokens: SpecialTokens
) -> tuple[list[int], list[int]]:
    """The ids before and after each document."""
    if special_tokens == "none":
        return [], []
    if special_tokens == "eos":
        if tokenizer.eos_token_id is None:
            raise CrateError("the tokenizer has no end-of-text token; set `eos_token`, or use special_tokens='none'")
        return [], [int(tokenizer.eos_token_id)]
    bare, dressed = (plain.encode("a", add_special_tokens=special).ids for special in (False, True))
    place = next(i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare)
    before, after = dressed[:place], dressed[place + len(bare) :]
    if not before and not after:
        raise CrateError("the tokenizer adds no special tokens to a text; use special_tokens='eos'")
    return before, after
