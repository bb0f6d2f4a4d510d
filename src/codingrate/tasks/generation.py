"""Text generation with a causal language model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from .._state import quiet_transformers, seeded
from ..data.documents import check_text
from ..data.tokens import check_tokenizer
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.language import CrateForCausalLM
from .base import expect_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_TOKENS = 200
"""Number of new tokens."""
SMALLEST, LARGEST = 0.001, 1000.0
"""Bounds of the temperature and of the repetition penalty."""


@dataclass(frozen=True)
class Generation:
    """A continued text."""

    prompt: str
    text: str
    """The continuation, without the prompt."""
    tokens: int
    """Number of new tokens."""
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of transformers' `generate`."""


def generate(
    model: CratePreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    tokens: int | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    streamer: Any = None,
    **settings: Any,
) -> Generation:
    """Continue a prompt by at most `tokens` new tokens, or until one of the texts in `stop` appears.

    Text longer than the context slides through it: when the context is full, its second half becomes the prompt of the
    rest. `settings` are arguments of transformers' `generate`, such as `temperature` or `num_beams`. Default: sampling
    with temperature 0.8 from the 50 most probable tokens.
    """
    expect_model(model, CrateForCausalLM, "causal-lm")
    check_text(prompt)
    if not prompt.strip():
        raise CrateError("the prompt is empty; give a text to continue")
    if any(not text for text in stop):
        raise CrateError("`stop` is an empty text; give a text that ends the continuation")
    check_tokenizer(tokenizer, model.config)
    settings = settings or {"do_sample": True, "temperature": 0.8, "top_k": 50}
    _check_scales(settings)
    settings["max_new_tokens"] = tokens or DEFAULT_TOKENS
    ids: Any = tokenizer(prompt, return_tensors="pt")["input_ids"].to(model.device)
    length, end = ids.shape[1], tokenizer.eos_token_id
    stream = _OneStream(streamer) if streamer is not None else None
    start = time.perf_counter()
    with quiet_transformers(), seeded(seed):
        while (missing := length + settings["max_new_tokens"] - ids.shape[1]) > 0:
            window = context_window(ids, model.config.max_tokens)
            room = model.config.max_tokens - window.shape[1]
            part = model.generate(  # type: ignore[operator]
                input_ids=window,
                attention_mask=torch.ones_like(window),
                streamer=stream,
                eos_token_id=end,
                pad_token_id=end or 0,
                stopping_criteria=[_Contains(tokenizer, stop, window.shape[1])] if stop else None,
                **{**settings, "max_new_tokens": min(missing, room)},
            )[:, window.shape[1] :]
            ids = torch.cat([ids, part], dim=1)
            text = str(tokenizer.decode(ids[0, length:], skip_special_tokens=True))
            if part.shape[1] < min(missing, room) or int(ids[0, -1]) == end or any(word in text for word in stop):
                break
    if stream is not None:
        streamer.end()
    cut = min((text.index(word) for word in stop if word in text), default=len(text))
    return Generation(prompt, text[:cut], ids.shape[1] - length, time.perf_counter() - start, settings)


def context_window(ids: Tensor, context: int) -> Tensor:
    """Return the end of a text (1, n) that the model reads: all of it, or half a context if it fills the context."""
    return ids if ids.shape[1] < context else ids[:, -max(1, context // 2) :]


class _OneStream:
    """Shows a streamer the parts of a text as one: the prompt once, and no end between parts."""

    def __init__(self, streamer: Any) -> None:
        self.streamer, self.started, self.in_prompt = streamer, False, True

    def put(self, value: Tensor) -> None:
        """Pass on new tokens, and the prompt of the first part."""
        if not self.in_prompt or not self.started:
            self.streamer.put(value)
        self.started, self.in_prompt = True, False

    def end(self) -> None:
        """Expect the prompt of the next part."""
        self.in_prompt = True


class _Contains(StoppingCriteria):
    """Stops when the new text contains one of several texts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> None:
        self.tokenizer, self.texts, self.length = tokenizer, texts, length

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        ends = [
            any(text in self.tokenizer.decode(ids[self.length :], skip_special_tokens=True) for text in self.texts)
            for ids in input_ids
        ]
        return torch.tensor(ends, device=input_ids.device)


def _check_scales(settings: Mapping[str, Any]) -> None:
    """Refuse factors of the logits with which they or their probabilities would not be finite."""
    for name in ("temperature", "repetition_penalty"):
        value = settings.get(name)
        if value is not None and not SMALLEST <= value <= LARGEST:
            raise CrateError(f"`{name}` is {value}; it must be at least {SMALLEST} and at most {LARGEST}")


def sampling_settings(
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    beams: int | None = None,
    repetition_penalty: float | None = None,
) -> dict[str, Any]:
    """Return the arguments of transformers' `generate`; options that would have no effect are refused."""
    if repetition_penalty is not None and not repetition_penalty > 0:
        raise CrateError(f"`repetition_penalty` is {repetition_penalty}; it must be positive, and 1 has no effect")
    penalty = {} if repetition_penalty is None else {"repetition_penalty": repetition_penalty}
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    search = "greedy=True" if greedy else f"beams={beams}" if beams else None
    if search is not None:
        for name, value in {**sampling, "beams": beams if greedy else None}.items():
            if value is not None:
                raise CrateError(f"`{name}` has no effect with `{search}`; leave one of them out")
        return {"do_sample": False, "num_beams": beams or 1, **penalty}
    if temperature is not None and not temperature > 0:
        raise CrateError(f"`temperature` is {temperature}; it must be positive. Use `greedy=True` for the limit 0")
    _check_scales({"temperature": temperature, "repetition_penalty": repetition_penalty})
    if top_p is not None and not 0 < top_p <= 1:
        raise CrateError(f"`top_p` is {top_p}; it must lie in (0, 1]")
    settings: dict[str, Any] = {"do_sample": True, "temperature": 0.8 if temperature is None else temperature}
    return {
        **settings,
        **penalty,
        "top_k": 50 if top_k is None else top_k,
        **({} if top_p is None else {"top_p": top_p}),
    }
