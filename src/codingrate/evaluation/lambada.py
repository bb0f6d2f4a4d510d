"""LAMBADA: whether a language model finds the last word of a passage, which only the whole passage gives away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data import check_tokenizer
from ..errors import CrateError
from ..models import CrateForCausalLM, eval_mode
from ._images import placed
from ._text import check_sizes, expect_causal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STRAIGHT = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})
_NEW = 10  # tokens that the word may be among, where text is generated


@dataclass(frozen=True)
class LambadaReport:
    """How often the last word was found."""

    accuracy: float
    """Share of passages."""
    texts: int
    """How many passages."""
    protocol: str
    """`argmax` or `generate`, see `lambada_accuracy`."""
    cut: int
    """Passages whose beginning did not fit into the model."""
    seconds: float
    """Time of the pass."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)


def lambada_accuracy(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    generate: bool = False,
    batch_size: int = 8,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> LambadaReport:
    """Share of texts whose last word the model finds by greedy decoding.

    The usual protocol (Radford et al., 2019): every token of " word" has the highest logit given all that stands
    before it. With `generate` that of the ToST release: curly quotes straightened and a newline put in front, ten
    tokens are generated, and the word is to be in them, in whatever case, also as part of another. A text too long for
    the model loses its beginning.
    """
    room = expect_causal(model, None)
    check_sizes(batch_size=batch_size)
    if isinstance(model, CrateForCausalLM):
        check_tokenizer(tokenizer, model.config)
    pairs = [_last_word(number, text, generate) for number, text in enumerate(texts, 1)]
    if not pairs:
        raise CrateError("there are no texts to measure on; give some, one passage each")
    place, found, cut, start = placed(model, device), 0, 0, time.perf_counter()
    with eval_mode(model), torch.inference_mode():
        for first in range(0, len(pairs), batch_size):
            some = pairs[first : first + batch_size]
            contexts = [_ids(tokenizer, context) for context, _ in some]
            targets = [[0] * _NEW if generate else _ids(tokenizer, f" {word}") for _, word in some]
            space = [room - len(target) for target in targets]
            if min(space) < 1:
                raise CrateError(f"the model reads {room} tokens, too few for a word of {room - min(space)}")
            cut += sum(len(ids) > most for ids, most in zip(contexts, space, strict=True))
            contexts = [ids[-most:] for ids, most in zip(contexts, space, strict=True)]
            if generate:
                said = _continuations(model, tokenizer, contexts, place)
                found += sum(word.lower() in text.lower() for text, (_, word) in zip(said, some, strict=True))
            else:
                found += _all_highest(model, contexts, targets, place)
            if progress is not None:
                progress(len(some))
    protocol = "generate" if generate else "argmax"
    return LambadaReport(found / len(pairs), len(pairs), protocol, cut, time.perf_counter() - start)


def _last_word(number: int, text: str, generate: bool) -> tuple[str, str]:
    """What stands before the last word, and the word."""
    parts = text.rstrip().rsplit(maxsplit=1)
    if len(parts) < 2:
        raise CrateError(f"text {number} has fewer than two words ({text!r:.30}); LAMBADA asks for the last of several")
    context, word = parts[0].rstrip(), parts[1]
    return ("\n" + context.translate(_STRAIGHT), word.translate(_STRAIGHT)) if generate else (context, word)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"])


def _padded(rows: list[list[int]], place: torch.device, *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows filled up to the longest, and which places are real."""
    longest = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for line, row in enumerate(rows):
        where = slice(longest - len(row), None) if left else slice(len(row))
        ids[line, where], mask[line, where] = torch.tensor(row), 1
    return ids.to(place), mask.to(place)


def _all_highest(model: nn.Module, contexts: list[list[int]], targets: list[list[int]], place: torch.device) -> int:
    """In how many rows every target token has the highest logit; padding stands behind, where nothing sees it."""
    rows = [context + target for context, target in zip(contexts, targets, strict=True)]
    ids, _ = _padded(rows, place, left=False)
    longest = ids.shape[1]
    keep = longest + 1 - min(map(len, contexts))  # from the first place that predicts a target on
    best = model(input_ids=ids, logits_to_keep=keep, use_cache=False).logits.argmax(-1)
    right = 0
    for line, (context, target) in enumerate(zip(contexts, targets, strict=True)):
        start = len(context) - 1 - (longest - keep)
        right += best[line, start : start + len(target)].tolist() == target
    return right


def _continuations(
    model: Any, tokenizer: PreTrainedTokenizerBase, contexts: list[list[int]], place: torch.device
) -> list[str]:
    ids, mask = _padded(contexts, place, left=True)
    end: Any = tokenizer.eos_token_id
    out = model.generate(ids, attention_mask=mask, max_new_tokens=_NEW, do_sample=False, pad_token_id=end or 0)
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in out[:, ids.shape[1] :]]
