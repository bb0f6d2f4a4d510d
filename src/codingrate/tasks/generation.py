"""Text generation with a causal language model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._state import quiet_transformers, seeded
from ..data import check_tokenizer
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.language import CrateForCausalLM
from .base import expect_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_TOKENS = 200
"""Number of new tokens, if the context is long enough."""


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
    streamer: Any = None,
    **settings: Any,
) -> Generation:
    """Continue a prompt by at most `tokens` new tokens.

    `settings` are arguments of transformers' `generate`, such as `temperature` or `num_beams`. Default: sampling with
    temperature 0.8 from the 50 most probable tokens.
    """
    expect_model(model, CrateForCausalLM, "causal-lm")
    if not prompt.strip():
        raise CrateError("the prompt is empty; give a text to continue")
    check_tokenizer(tokenizer, model.config)
    encoded = tokenizer(prompt, return_tensors="pt").to(model.device)
    length = encoded["input_ids"].shape[1]
    settings = settings or {"do_sample": True, "temperature": 0.8, "top_k": 50}
    settings["max_new_tokens"] = _new_tokens(length, model.config.max_tokens, tokens)
    end: Any = tokenizer.eos_token_id
    start = time.perf_counter()
    with quiet_transformers(), seeded(seed):
        ids = model.generate(  # type: ignore[operator]
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            streamer=streamer,
            eos_token_id=end,
            pad_token_id=end or 0,
            **settings,
        )[0][length:]
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    return Generation(prompt, text, len(ids), time.perf_counter() - start, settings)


def sampling_settings(
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    beams: int | None = None,
) -> dict[str, Any]:
    """Return the arguments of transformers' `generate`; options that would have no effect are refused."""
    sampling = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p}
    search = "--greedy" if greedy else f"--beams {beams}" if beams else None
    if search is not None:
        for option, value in {**sampling, "--beams": beams if greedy else None}.items():
            if value is not None:
                raise CrateError(f"{option} has no effect with {search}; leave one of them out")
        return {"do_sample": False, "num_beams": beams or 1}
    if temperature is not None and not temperature > 0:
        raise CrateError(f"--temperature is {temperature}; it must be positive. Use --greedy for the limit 0")
    if top_p is not None and not 0 < top_p <= 1:
        raise CrateError(f"--top-p is {top_p}; it must lie in (0, 1]")
    settings: dict[str, Any] = {"do_sample": True, "temperature": 0.8 if temperature is None else temperature}
    return {**settings, "top_k": 50 if top_k is None else top_k, **({} if top_p is None else {"top_p": top_p})}


def _new_tokens(prompt: int, context: int, wanted: int | None) -> int:
    """Return the number of new tokens that fit the context after a prompt."""
    if prompt >= context:
        raise CrateError(
            f"the prompt has {prompt} tokens, but the context length is {context}; shorten it to {context - 1} or fewer"
        )
    if wanted is not None and prompt + wanted > context:
        raise CrateError(
            f"--tokens {wanted} after a prompt of {prompt} tokens exceeds the context length {context}; "
            f"use --tokens {context - prompt} or fewer"
        )
    return min(DEFAULT_TOKENS, context - prompt) if wanted is None else wanted
