"""Documents to one file of token ids, written once and then mapped into memory: text of any size in little of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from .._files import atomic_write
from ..errors import CrateError, unknown_name
from .documents import Documents, hashed
from .encoding import SPECIAL_TOKENS, Encoder, SpecialTokens
from .tables import first_line
from .text_files import Piece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMAT = 1
_BATCH = 2**20  # characters tokenised at a time


@dataclass(frozen=True)
class TokenFile:
    """A file of token ids, little-endian, and what is known about it (in a JSON file beside it)."""

    path: Path
    """The file of ids."""
    count: int
    """How many ids it holds."""
    dtype: Literal["uint16", "uint32"]
    """Type of an id: two bytes where the vocabulary allows."""
    documents: int
    """How many documents they come from."""
    bytes: int
    """Size of their text in UTF-8, by which losses of different tokenizers compare."""
    tokenizer: str
    """Hash of the tokenizer."""
    key: str | None
    """Hash of all of it, text, tokenizer and separators; None if the source cannot say when it changes."""

    def __len__(self) -> int:
        return self.count

    def array(self) -> NDArray[Any]:
        """The ids (count,), mapped, not read."""
        return np.memmap(self.path, np.dtype(self.dtype).newbyteorder("<"), "r", shape=(self.count,))


def token_cache() -> Path:
    """The folder token files go to unless another is given: codingrate/tokens in the user's cache."""
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
    """Tokenise documents into one file of `folder`, or find them there already.

    `special_tokens` puts the end-of-text token after each document (`eos`, as for GPT), the tokenizer's own special
    tokens on both sides of it (`bos_eos`, `<s> A </s>` as for RoBERTa), or nothing (`none`). A special token that is
    spelled out in the text is treated as text. A file is reused only for the same text, tokenizer and special tokens.
    `progress` is called with the number of bytes read so far.
    """
    if special_tokens not in SPECIAL_TOKENS:
        raise unknown_name("special_tokens", special_tokens, SPECIAL_TOKENS)
    encoder = Encoder(tokenizer, special_tokens)
    below = documents.key()
    key = None if below is None else hashed(_FORMAT, below, encoder.hash, special_tokens)
    stem = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in Path(name).name) or "text"
    mark = (key or hashed(name, encoder.hash, special_tokens))[:16]
    path = (Path(folder).expanduser() if folder else token_cache()) / f"{stem}-{mark}.bin"
    found = read_tokens(path) if key else None
    if found is not None and found.key == key:
        return found
    with atomic_write(path) as draft, draft.open("wb") as file:
        count, size, number = _write(file, _batches(documents, name), encoder, progress)
        if size == 0:
            raise CrateError(f"{name} holds no text to tokenise; give more of it, or another share for validation")
        if documents.key() != below:
            raise CrateError(f"{name} changed while it was read; start again")
        os.fsync(file.fileno())  # before the JSON file vouches for it
    tokens = TokenFile(path, count, encoder.dtype, number, size, encoder.hash, key)
    about = {name: value for name, value in asdict(tokens).items() if name != "path"}
    with atomic_write(path.with_suffix(".json")) as draft:
        draft.write_text(json.dumps({"format": _FORMAT, **about}, indent=2) + "\n", encoding="utf-8")
    return tokens


def read_tokens(path: str | Path) -> TokenFile | None:
    """What `pack_text` wrote, or None unless it is there and whole: the JSON file comes last and knows the size."""
    path = Path(path)
    try:
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if about.pop("format") != _FORMAT:
            return None
        tokens = TokenFile(path, **about)
        whole = path.stat().st_size == tokens.count * np.dtype(tokens.dtype).itemsize
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, cut short, or not ours
        return None
    return tokens if whole else None


def _write(
    file: BinaryIO, batches: Iterator[list[Piece]], encoder: Encoder, progress: Callable[[int], None] | None
) -> tuple[int, int, int]:
    """Write the ids batch by batch; how many, of how many bytes, in how many documents."""
    count = size = number = 0
    for batch in batches:
        ids, some = encoder(batch)
        file.write(ids.data)
        count, size, number = count + len(ids), size + some, number + sum(end for _, end in batch)
        if progress is not None:
            progress(size)
    return count, size, number


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
    except OSError as error:  # a connection lost, a disk gone
        raise CrateError(f"cannot read {name}: {first_line(error)}") from error
    if batch:
        yield batch
