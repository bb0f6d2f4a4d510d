"""Tokenizers: bytes, byte-level BPE trained on the user's text, or one from a folder or the hub."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ..errors import CrateError, unknown_name
from .documents import Documents, TextDocuments
from .sources import first_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from ..models import CrateConfig

Kind = Literal["masked", "causal"]

END = "<|endoftext|>"
_FIRST: dict[str, tuple[str, ...]] = {"masked": ("<s>", "<pad>", "</s>", "<unk>"), "causal": ()}  # ids from 0 on
_LAST = {"masked": "<mask>", "causal": END}  # the highest id
_NAMES: dict[str, dict[str, str]] = {
    "masked": {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>"},
    "causal": {"bos": END, "eos": END},
}


def load_tokenizer(
    spec: str,
    texts: Documents | Iterable[str] | None = None,
    *,
    kind: Kind = "causal",
    vocab_size: int = 8192,
    min_frequency: int = 2,
) -> PreTrainedTokenizerFast:
    """Return a fast tokenizer: `bytes`, `bpe` trained on `texts`, or the one in a folder or under a hub id.

    New tokenizers have RoBERTa's special tokens for masked models (`<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>`
    last; `<s> A </s>` and `<s> A </s></s> B </s>`) and GPT-2's `<|endoftext|>` as the last id for causal models. The
    same texts give the same tokenizer.
    """
    if kind not in _LAST:
        raise unknown_name("kind of tokenizer", kind, _LAST)
    if spec == "bytes":
        return _finish(_bytes(kind), kind)
    if spec == "bpe":
        if texts is None:
            raise CrateError("tokenizer 'bpe' is trained on text; pass `texts`, or use a tokenizer's folder or hub id")
        return _finish(_train(texts, kind, vocab_size, min_frequency), kind)
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


def _train(texts: Documents | Iterable[str], kind: Kind, vocab_size: int, min_frequency: int) -> Tokenizer:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    smallest = len(_FIRST[kind]) + 256 + 1
    if vocab_size < smallest:
        raise CrateError(f"`vocab_size` must be at least {smallest}, for bytes and special tokens (got {vocab_size})")
    if min_frequency < 1:
        raise CrateError(f"`min_frequency` must be at least 1 (got {min_frequency})")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
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

    folder = Path(spec).expanduser()
    if not folder.exists() and (spec.startswith(("/", ".", "~")) or spec.count("/") > 1):
        raise CrateError(f"no such tokenizer folder: {folder}; use 'bytes', 'bpe', a folder or a hub id")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder if folder.exists() else spec, trust_remote_code=False)
    except Exception as error:  # missing, no network, damaged: the advice is the same
        advice = "use 'bytes', 'bpe', a folder with tokenizer.json or a hub id"
        raise CrateError(f"cannot load the tokenizer {spec!r}; {advice} [{first_line(error)}]") from error
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
        advice = f"set vocab_size to {count} or more, or use the tokenizer that the model was trained with"
        raise CrateError(f"the tokenizer has {count} ids, the model only {config.vocab_size}; {advice}")
