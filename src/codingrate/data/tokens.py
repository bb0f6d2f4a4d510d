"""From text to token ids: tokenizers, and files of ids, written once and then memory-mapped, so that any text fits."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from .._files import as_path, atomic_write, file_checksum, is_hub_id, read_sealed, write_sealed
from ..errors import CrateError, unknown_name
from .documents import Documents, Piece, TextDocuments
from .sources import first_line, hashed

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from ..models import CrateConfig

Kind = Literal["masked", "causal"]

_NEW = ("bytes", "bpe")  # tokenizers that are made, not loaded
END = "<|endoftext|>"
_FIRST: dict[str, tuple[str, ...]] = {"masked": ("<s>", "<pad>", "</s>", "<unk>"), "causal": ()}  # ids from 0 on
_LAST = {"masked": "<mask>", "causal": END}  # the highest id
_NAMES: dict[str, dict[str, str]] = {
    "masked": {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>"},
    "causal": {"bos": END, "eos": END, "pad": END},
}

SpecialTokens = Literal["eos", "bos_eos", "none"]
"""Tokens added to each document: end-of-text after it, the tokenizer's own special tokens on both sides, or none."""

_FORMAT = 2
_BATCH = 2**20  # characters tokenized at a time


def load_tokenizer(
    spec: str,
    texts: Documents | Iterable[str] | None = None,
    *,
    kind: Kind = "causal",
    vocab_size: int = 8192,
    min_frequency: int = 2,
    uncased: bool = False,
) -> PreTrainedTokenizerFast:
    """Return a fast tokenizer: `bytes`, `bpe` trained on `texts`, or the one in a folder or under a hub id.

    New tokenizers have RoBERTa's special tokens for masked models (`<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>`
    last; `<s> A </s>` and `<s> A </s></s> B </s>`) and GPT-2's `<|endoftext|>` as the last id for causal models, which
    also pads. The same texts give the same tokenizer. With `uncased`, a new `bpe` reads capitals as small
    letters, and the first word of a text as if a space stood before it, as before any other word.
    """
    if kind not in _LAST:
        raise unknown_name("kind of tokenizer", kind, _LAST)
    if spec == "bytes":
        return _finish(_bytes(kind), kind)
    if spec == "bpe":
        if texts is None:
            raise CrateError("tokenizer 'bpe' is trained on text; pass `texts`, or use a tokenizer's folder or hub id")
        return _finish(_train(texts, kind, vocab_size, min_frequency, uncased), kind)
    return _from_pretrained(spec)


def byte_characters() -> list[str]:
    """Return GPT-2's printable character for each byte: its own if it is printable, else one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = itertools.count(256)
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]


def _bytes(kind: Kind) -> Tokenizer:
    """Return BPE without merges: the id of byte b is b plus the number of leading special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*_FIRST[kind], *byte_characters()]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizer


def _train(
    texts: Documents | Iterable[str], kind: Kind, vocab_size: int, min_frequency: int, uncased: bool
) -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    smallest = len(_FIRST[kind]) + 256 + 1
    if vocab_size < smallest:
        raise CrateError(f"text.vocab_size is {vocab_size}; bytes and special tokens need at least {smallest}")
    if min_frequency < 1:
        raise CrateError(f"`min_frequency` must be at least 1 (got {min_frequency})")
    tokenizer = Tokenizer(models.BPE())
    if uncased:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=uncased)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,  # the last id is added afterwards
        min_frequency=min_frequency,
        special_tokens=list(_FIRST[kind]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if isinstance(texts, str):
        raise CrateError("`texts` is a single string; pass a list of documents")
    documents = texts if isinstance(texts, Documents) else TextDocuments(texts)
    parts = (text for text, _ in documents.pieces() if text)
    first = next(parts, None)
    if first is None:
        raise CrateError("tokenizer 'bpe' cannot be trained, because the text is empty; use other texts")
    tokenizer.train_from_iterator(itertools.chain((first,), parts), trainer)
    return tokenizer


def _finish(tokenizer: Tokenizer, kind: Kind) -> PreTrainedTokenizerFast:
    """Add the special tokens and wrap the tokenizer in transformers' class, which can save and load it."""
    from tokenizers import AddedToken, decoders, processors
    from transformers import PreTrainedTokenizerFast

    last = AddedToken(_LAST[kind], lstrip=kind == "masked", special=True)  # RoBERTa's mask takes the space before it
    tokenizer.add_special_tokens([*_FIRST[kind], last])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    names: dict[str, Any] = {f"{name}_token": token for name, token in _NAMES[kind].items()}
    if kind == "masked":
        begin, end = ((token, _FIRST[kind].index(token)) for token in ("<s>", "</s>"))
        tokenizer.post_processor = processors.RobertaProcessing(end, begin, trim_offsets=False, add_prefix_space=False)
        names["mask_token"] = last
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)


def _from_pretrained(spec: str) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    folder = as_path(spec, "the tokenizer")
    if not os.path.exists(folder):  # checked here, because the hub answers slowly
        if "/" in spec and not is_hub_id(spec):
            raise CrateError(f"no such tokenizer folder: {folder}; use 'bytes', 'bpe', a folder or a hub id")
        if difflib.get_close_matches(spec.lower(), _NEW):
            raise unknown_name("tokenizer", spec.lower(), _NEW)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder if os.path.exists(folder) else spec, trust_remote_code=False)
        tokenizer("a")  # fails for wrong values in its files that loading does not notice
    except Exception as error:  # missing, no network, damaged: the advice is the same
        raise CrateError(
            f"cannot load the tokenizer {spec!r}; use 'bytes', 'bpe', "
            f"a folder with tokenizer.json or a hub id [{first_line(error)}]"
        ) from error
    if not tokenizer.is_fast:
        raise CrateError(f"the tokenizer {spec!r} has no fast version; save it with a tokenizer.json")
    return cast("PreTrainedTokenizerFast", tokenizer)


def id_count(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the highest id plus one, which exceeds the number of tokens if a vocabulary has gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: CrateConfig) -> None:
    """Refuse a tokenizer with ids that the model has no embedding for."""
    count = id_count(tokenizer)
    if count > config.vocab_size:
        raise CrateError(
            f"the tokenizer has {count} ids, the model only {config.vocab_size}; "
            f"set vocab_size to {count} or more, or use the tokenizer that the model was trained with"
        )


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
    checksum: int
    """CRC-32 of the file, which tells whether it is damaged."""

    def __len__(self) -> int:
        return self.count

    def array(self) -> NDArray[Any]:
        """Return the ids (count,), memory-mapped."""
        return np.memmap(self.path, np.dtype(self.dtype).newbyteorder("<"), "r", shape=(self.count,))

    def bits_per_byte(self, loss: float, end_of_document: bool = True) -> float:
        """Convert a loss in nats per token, with or without the ends of documents among the tokens."""
        count = self.count if end_of_document else self.count - self.documents
        return loss * count / (math.log(2) * self.bytes)


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
        count = size = number = checksum = 0
        for batch in _batches(documents, name):
            ids, length = encoder(batch)
            file.write(ids.data)
            checksum = zlib.crc32(ids.data, checksum)
            count, size, number = count + len(ids), size + length, number + sum(end for _, end in batch)
            if progress is not None:
                progress(size)
        if size == 0:
            raise CrateError(f"{name} has no text to tokenize; add text or change the share for validation")
        if documents.key() != text_key:
            raise CrateError(f"{name} changed while it was read; start again")
        os.fsync(file.fileno())  # before the JSON file confirms it
    tokens = TokenFile(path, count, encoder.dtype, number, size, encoder.hash, key, checksum)
    about = {field: value for field, value in asdict(tokens).items() if field != "path"}
    write_sealed(path.with_suffix(".json"), {"format": _FORMAT, **about})
    return tokens


def read_tokens(path: str | Path) -> TokenFile | None:
    """Return a file that `pack_text` wrote, or None if it is missing or damaged; damage is logged.

    The checksum takes a quarter of a second per gigabyte once the file is in memory.
    """
    path = Path(path)
    if not path.is_file() or not path.with_suffix(".json").is_file():
        return None
    about = read_sealed(path.with_suffix(".json")) or {}
    try:
        if about.pop("format", None) == _FORMAT:
            tokens = TokenFile(path, **about)
            size = tokens.count * np.dtype(tokens.dtype).itemsize
            if path.stat().st_size == size and file_checksum(path) == tokens.checksum:
                return tokens
    except (OSError, TypeError):  # unreadable, or of another origin
        pass
    logging.getLogger("codingrate").info(f"{path} is damaged or of another version; its text is tokenized again")
    return None


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
            ids, ends = self._table[np.frombuffer(b"".join(raw), np.uint8)], itertools.accumulate(map(len, raw))
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
