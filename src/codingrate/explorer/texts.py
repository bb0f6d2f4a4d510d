"""Measures of one text for the explorer: predictions, the lens over layers, attention, units, generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.documents import check_text
from ..errors import CrateError
from ..evaluation.language import MASK
from ..inspection import ForwardTrace, Intervention, Units, rank_heads, units
from ..inspection.measure.logit_lens import LanguageModel, head_logits
from ..inspection.measure.sparse_units import codes
from ..inspection.measure.tracing import UnavailableError
from ..tasks.generation import context_window
from ..tasks.text import TextTask
from .library import CURVES, Curves, Entry, Library, Prediction, top_predictions

TEXT_CHARACTERS = 4000
"""Largest number of characters of a prompt."""
SAMPLES = 16
"""Number of blocks of sample text."""
WINDOW = (24, 10)
"""Tokens before and after the one that excites a unit."""


@dataclass(frozen=True)
class TextInput:
    """A text as a model reads it: the ids of its tokens."""

    ids: tuple[int, ...]
    skipped: int = 0
    """Number of tokens before them that the model does not read."""

    @classmethod
    def of(cls, entry: Entry, text: str) -> TextInput:
        """Tokenize a text; refuse one that is empty or does not fit the model's context.

        A causal model reads of a text that fills its context what `generate` reads: the last half of a context.
        """
        check_text(text)
        if len(text) > TEXT_CHARACTERS:
            raise CrateError(f"the text has {len(text):,} characters; the limit is {TEXT_CHARACTERS:,}. Shorten it")
        if not text.strip():
            raise CrateError("the text is empty; type a few words")
        tokenizer = tokenizer_of(entry)
        if entry.masked:
            text = text.replace(MASK, str(tokenizer.mask_token))
        ids = tokenizer(text, verbose=False)["input_ids"]
        limit = int(entry.model.config.max_tokens)
        if entry.generates:
            window = context_window(torch.tensor([ids]), limit)[0].tolist()
            return cls(tuple(window), len(ids) - len(window))
        if len(ids) > limit:
            raise CrateError(f"the text has {len(ids):,} tokens, and the model reads at most {limit:,}; shorten it")
        return cls(tuple(ids))

    @property
    def key(self) -> tuple[int, ...]:
        """The ids."""
        return self.ids

    def arguments(self, entry: Entry) -> dict[str, Tensor]:
        """Return the ids (1, n) on the model's device."""
        return {"input_ids": torch.tensor([self.ids], device=entry.model.device)}


def tokenizer_of(entry: Entry) -> Any:
    """Return the tokenizer of a model."""
    return cast(TextTask, entry.run.task).processor


def token_texts(entry: Entry, ids: tuple[int, ...]) -> list[str]:
    """Return the text of each token; a part of a character is shown as the tokenizer names it."""
    tokenizer = tokenizer_of(entry)
    texts = []
    for number in ids:
        text = str(tokenizer.decode([number]))
        texts.append(str(tokenizer.convert_ids_to_tokens(number)) if "\ufffd" in text else text)
    return texts


def default_position(entry: Entry, text: TextInput) -> int:
    """Return the token whose prediction is shown first: the first mask of a masked model, else the last token."""
    if entry.masked:
        mask = tokenizer_of(entry).mask_token_id
        return text.ids.index(mask) if mask in text.ids else len(text.ids) // 2
    return len(text.ids) - 1


def predict(
    library: Library, name: str, text: TextInput, position: int, changes: Intervention, top: int = 10
) -> list[Prediction]:
    """Return the most probable tokens at a position, or labels of the text, before and after an intervention.

    A causal model predicts the token after the position, a masked model the token at it.
    """
    entry = library.entry(name)
    both = [cast(Tensor, library.look(name, text, one).logits)[0] for one in (changes, Intervention())]
    if entry.classifies_text:
        labels: Any = entry.model.config.id2label or {}
        now, before = (logits.double().softmax(-1).cpu() for logits in both)
        return top_predictions(lambda index: str(labels.get(index, index)), now, before, top)
    now, before = (logits[position].double().softmax(-1).cpu() for logits in both)
    return top_predictions(lambda index: token_texts(entry, (index,))[0], now, before, top)


def important_heads(
    library: Library,
    name: str,
    text: TextInput,
    position: int,
    progress: Callable[[int, int], object] | None = None,
) -> pd.DataFrame:
    """Rank the heads by how much the probability of the predicted token or label drops without each of them."""
    entry = library.entry(name)
    return rank_heads(entry.model, position=position, progress=progress, input_ids=text.arguments(entry)["input_ids"])


@dataclass(frozen=True)
class LensRow:
    """The most probable tokens after one layer."""

    layer: int  # from 1
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    final: float  # probability of the token that the model predicts in the end


def lens_rows(
    library: Library, name: str, text: TextInput, position: int, changes: Intervention, top: int = 4
) -> list[LensRow]:
    """Apply the model's head to the token of every layer, from the cached trace; the last layer comes first."""
    entry = library.entry(name)
    if entry.classifies_text:
        raise UnavailableError("a classifier predicts no tokens, so there is no lens")
    passed = library.look(name, text, changes)
    z = torch.stack([tokens[0, position] for tokens in passed.tokens[1:]])
    with torch.inference_mode():
        probabilities = head_logits(cast(LanguageModel, entry.model), z).double().softmax(-1).cpu()
    final = int(probabilities[-1].argmax())
    best = probabilities.topk(top)
    rows = [
        LensRow(layer, tuple(token_texts(entry, tuple(ids))), tuple(values), float(probabilities[layer - 1, final]))
        for layer, (ids, values) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True), 1)
    ]
    return rows[::-1]


def token_attention(passed: ForwardTrace, layer: int, head: int | None) -> NDArray[np.float64]:
    """Return the attention between tokens, (n, n), row by row: that of a head, from 0, or the mean over heads."""
    weights = passed.attention(layer)[0].double().cpu().numpy()
    return weights.mean(0) if head is None else weights[head]


@dataclass(frozen=True)
class FiringUnit:
    """A unit that is active on a token, with the texts of the sample that excite it most."""

    unit: int  # from 1
    activation: float
    share: float  # of the sample's tokens on which it is active
    texts: tuple[tuple[str, str, str], ...]
    """Text before the exciting token, the token, and the text after it."""


def firing_units(
    library: Library, name: str, text: TextInput, position: int, layer: int, changes: Intervention, count: int = 6
) -> list[FiringUnit]:
    """Return the units that are most active on a token after a layer, strongest first."""
    entry = library.entry(name)
    stats = unit_statistics(entry)
    passed = library.look(name, text, changes)
    with torch.inference_mode():
        code = codes(passed, layer, slice(position, position + 1))[0, 0].float().cpu()
    best = code.abs().topk(min(count, int((code != 0).sum()))).indices.tolist()
    return [
        FiringUnit(unit + 1, float(code[unit]), float(stats.share[layer, unit]), _windows(entry, stats, layer, unit))
        for unit in best
    ]


def _windows(entry: Entry, stats: Units, layer: int, unit: int) -> tuple[tuple[str, str, str], ...]:
    tokenizer, texts = tokenizer_of(entry), []
    for ids in stats.window_ids[layer, unit].tolist():
        if ids[stats.before] < 0:
            continue
        parts = (ids[: stats.before], ids[stats.before : stats.before + 1], ids[stats.before + 1 :])
        before, at, after = (str(tokenizer.decode([number for number in part if number >= 0])) for part in parts)
        texts.append((before, at, after))
    return tuple(texts)


def unit_statistics(entry: Entry) -> Units:
    """Return the statistics of all units over the sample text, measured on first use."""
    before, after = WINDOW
    options: Any = {"top": 3, "before": before, "after": after}
    return cast(Units, entry.once("units", lambda: units(entry.model, sample_batches(entry), **options)))


def sample_batches(entry: Entry) -> list[dict[str, Tensor]]:
    """Return batches of the sample text: the stored sample of a published run, or the run's own data."""
    task = entry.run.on_data(None)
    return list(entry.once("batches", lambda: list(task.batches(entry.model, limit=SAMPLES, batch_size=8))))


def sample_text(entry: Entry, characters: int = 160) -> str:
    """Return the beginning of the sample text, to start with; it leaves half of the context free."""
    ids = sample_batches(entry)[0]["input_ids"][0, : int(entry.model.config.max_tokens) // 2].tolist()
    text = str(tokenizer_of(entry).decode(ids, skip_special_tokens=True)).strip()
    words = text[:characters].rsplit(" ", 1)[0] if len(text) > characters else text
    if not entry.masked:
        return words
    parts = words.split(" ")
    return " ".join([*parts[: len(parts) // 2], MASK, *parts[len(parts) // 2 + 1 :]])


def reference_table(entry: Entry) -> Curves:
    """Return the means of the layer-wise measures over the sample text, measured on first use."""
    from ..inspection import layerwise

    def measure() -> Curves:
        table = layerwise(entry.model, sample_batches(entry))
        return {name: table[name].tolist() for name in ("layer", *CURVES)}

    return cast(Curves, entry.once("table", measure))


def next_text(
    library: Library,
    name: str,
    prompt: str,
    changes: Intervention,
    *,
    tokens: int = 1,
    greedy: bool = True,
    seed: int = 0,
) -> str:
    """Return a prompt with its continuation by a causal model with an intervention."""
    from ..tasks import generate

    entry = library.entry(name)
    if not entry.generates:
        raise UnavailableError("this model does not generate text; choose a causal language model")
    TextInput.of(entry, prompt)  # refuses what is empty or has too many characters
    settings: dict[str, Any] = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 0.8, "top_k": 50}
    written = generate(entry.changed(changes), tokenizer_of(entry), prompt, tokens=tokens, seed=seed, **settings)
    return prompt + written.text
