"""Tokenize documents into one file of ids, written once and then memory-mapped, so that text of any size fits."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .._files import atomic_write, write_json
from ..errors import CrateError, unknown_name
from .documents import Documents, Piece, hashed
from .sources import first_line
from .tokenizers import byte_characters, id_count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SpecialTokens = Literal["eos", "bos_eos", "none"]
"""Tokens added to each document: end-of-text after it, the tokenizer's own special tokens on both sides, or none."""

_FORMAT = 1
_BATCH = 2**20  # characters tokenized at a time


@dataclass(frozen=True)
class TokenFile:
    """A file of little-endian token ids; a JSON file beside it holds the other fields."""

    path: Path
    count: int
    """Number of ids."""
    dtype: Literal["uint16", "uint32"]
    """Type of an id: two bytes if the vocabulary allows it."""
    documents: int
    bytes: int
    """Size of the text in UTF-8, which makes the losses of different tokenizers comparable."""
    tokenizer: str
    """Hash of the tokenizer."""
    key: str | None
    """Hash of text, tokenizer and special tokens; None if the source cannot tell when it changes."""

    def __len__(self) -> int:
        return self.count

    def array(self) -> NDArray[Any]:
        """Return the ids (count,), memory-mapped."""
        return np.memmap(self.path, np.dtype(self.dtype).newbyteorder("<"), "r", shape=(self.count,))


def token_cache() -> Path:
    """Return the default folder of token files: codingrate/tokens in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "codingrate" / "tokens"


def pack_text(
    documents: Documents,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str = "text",
    folder: str | Path | None = None,
    special_tokens: SpecialTokens = "eos",
    progress: Callable[[int], None] | None = None,
) -> TokenFile:
    """Tokenize documents into one file of `folder`, or reuse the file that is already there.

    `special_tokens` puts the end-of-text token after each document (`eos`, as for GPT), the tokenizer's own special
    tokens on both sides of it (`bos_eos`, `<s> A </s>` as for RoBERTa), or nothing (`none`). A special token that is
    spelled out in the text is treated as text. A file is reused only for the same text, tokenizer and special tokens.
    `progress` is called with the number of bytes read so far.
    """
    if special_tokens not in get_args(SpecialTokens):
        raise unknown_name("special_tokens", special_tokens, get_args(SpecialTokens))
    encoder = Encoder(tokenizer, special_tokens)
    text_key = documents.key()
    key = None if text_key is None else hashed(_FORMAT, text_key, encoder.hash, special_tokens)
    stem = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in Path(name).name) or "text"
    suffix = (key or hashed(name, encoder.hash, special_tokens))[:16]
    path = (Path(folder).expanduser() if folder else token_cache()) / f"{stem}-{suffix}.bin"
    cached = read_tokens(path) if key else None
    if cached is not None and cached.key == key:
        return cached
    with atomic_write(path) as draft, draft.open("wb") as file:
        count = size = number = 0
        for batch in _batches(documents, name):
            ids, length = encoder(batch)
            file.write(ids.data)
            count, size, number = count + len(ids), size + length, number + sum(end for _, end in batch)
            if progress is not None:
                progress(size)
        if size == 0:
            raise CrateError(f"{name} has no text to tokenize; add text or change the share for validation")
        if documents.key() != text_key:
            raise CrateError(f"{name} changed while it was read; start again")
        os.fsync(file.fileno())  # before the JSON file confirms it
    tokens = TokenFile(path, count, encoder.dtype, number, size, encoder.hash, key)
    about = {field: value for field, value in asdict(tokens).items() if field != "path"}
    write_json(path.with_suffix(".json"), {"format": _FORMAT, **about})
    return tokens


def read_tokens(path: str | Path) -> TokenFile | None:
    """Return a file that `pack_text` wrote, or None if it is missing or not as long as its JSON file says."""
    path = Path(path)
    try:
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if about.pop("format") != _FORMAT:
            return None
        tokens = TokenFile(path, **about)
        complete = path.stat().st_size == tokens.count * np.dtype(tokens.dtype).itemsize
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, truncated, or not ours
        return None
    return tokens if complete else None


def _batches(documents: Documents, name: str) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    try:
        for piece in documents.pieces():
            batch.append(piece)
            size += len(piece[0]) + 1
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    except OSError as error:  # a lost connection or a removed disk, and not a problem of writing
        raise CrateError(f"cannot read {name}: {first_line(error)}") from error
    if batch:
        yield batch


class Encoder:
    """A tokenizer with the special tokens of documents; text that spells a special token is encoded as text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, special_tokens: SpecialTokens) -> None:
        from tokenizers import Tokenizer

        if not tokenizer.is_fast:
            raise CrateError(f"{type(tokenizer).__name__} has no fast version, which text needs; use another tokenizer")
        # A copy, so that truncation and padding of the user's tokenizer neither change nor matter.
        self.tokenizer: Tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self.hash = hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()
        self.dtype: Literal["uint16", "uint32"] = "uint16" if id_count(tokenizer) <= 2**16 else "uint32"
        self._little = np.dtype(self.dtype).newbyteorder("<")
        special = self._special_ids(tokenizer, special_tokens)
        self.before, self.after = (np.array(ids, self._little) for ids in special)
        self._table = self._byte_table()
        self._starts_document = True  # whether the next piece does

    def __call__(self, pieces: list[Piece]) -> tuple[NDArray[Any], int]:
        """Return the ids of pieces that follow those of the last call, and the size of their text in bytes."""
        raw = [text.encode() for text, _ in pieces]
        if self._table is not None:
            ids, ends = self._table[np.frombuffer(b"".join(raw), np.uint8)], accumulate(map(len, raw))
            encoded = [ids[end - len(text) : end] for text, end in zip(raw, ends, strict=True)]
        else:
            encodings = self.tokenizer.encode_batch_fast([text for text, _ in pieces], add_special_tokens=False)
            encoded = [np.array(encoding.ids, self._little) for encoding in encodings]
        parts = []
        for (_, last), own in zip(pieces, encoded, strict=True):
            parts += [self.before, own] if self._starts_document else [own]
            if last:
                parts.append(self.after)
            self._starts_document = last
        return np.concatenate(parts, dtype=self._little), sum(map(len, raw))

    def _special_ids(self, tokenizer: PreTrainedTokenizerBase, special: SpecialTokens) -> tuple[list[int], list[int]]:
        """Return the ids before and after each document."""
        if special == "none":
            return [], []
        if special == "eos":
            if tokenizer.eos_token_id is None:
                raise CrateError("the tokenizer has no end-of-text token; set `eos_token` or special_tokens='none'")
            return [], [int(tokenizer.eos_token_id)]
        plain, dressed = (self.tokenizer.encode("a", add_special_tokens=add).ids for add in (False, True))
        start = next(i for i in range(len(dressed)) if dressed[i : i + len(plain)] == plain)
        before, after = dressed[:start], dressed[start + len(plain) :]
        if not before and not after:
            raise CrateError("the tokenizer adds no special tokens to a text; use special_tokens='eos'")
        return before, after

    def _byte_table(self) -> NDArray[Any] | None:
        """Return the id of each byte if the tokenizer knows bytes only, so that text is encoded by look-up."""
        if self.tokenizer.get_vocab_size() > 2**10:
            return None
        state = json.loads(self.tokenizer.to_str())
        model, first = state["model"], state["pre_tokenizer"] or {}
        plain = model["type"] == "BPE" and not model["merges"] and not model["dropout"] and state["normalizer"] is None
        byte_level = first.get("type") == "ByteLevel" and not first["add_prefix_space"]
        if not plain or not byte_level or not all(token["special"] for token in state["added_tokens"]):
            return None
        ids = [model["vocab"].get(character) for character in byte_characters()]
        return None if None in ids else np.array(ids, self._little)
