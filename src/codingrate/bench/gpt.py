"""CRATE-GPT against transformers' GPT-2 of the same width, depth and heads: decoding, a training step, the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CrateError
from ..models.cache import cache_bytes
from ..models.config import CrateConfig
from ..models.language import CrateForCausalLM
from ..models.presets import create_model
from .timing import Progress, medians

PROMPT = 8
"""Tokens before the first generated one."""


def bench_gpt(
    name: str = "crate-gpt-base",
    *,
    new_tokens: int = 128,
    batch: int = 4,
    length: int = 256,
    repeats: int = 5,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Greedy decoding of one text, and a training step on `batch` texts of `length` tokens, side by side.

    Both models have random weights, no dropout, no end of text, and transformers' own `generate`, so that what
    surrounds the forward pass is the same. A training step is forward, backward and AdamW.
    """
    torch.manual_seed(0)
    models = _rivals(name)
    words = models["ours"].config.vocab_size
    prompt, texts = torch.randint(words, (1, PROMPT)), torch.randint(words, (batch, length))
    result: dict[str, Any] = {
        "model": name,
        "new_tokens": new_tokens,
        "batch": batch,
        "length": length,
        "parameters": {key: model.num_parameters() for key, model in models.items()},
        "cache_difference": _cache_difference(models["ours"].eval(), texts[:1]),
        "cache_bytes_per_token": {key: _bytes_per_token(model.eval(), prompt) for key, model in models.items()},
    }
    for mode in ("decoding", "training"):
        runs = {
            key: _runner(model.train(mode == "training"), mode, prompt, texts, new_tokens)
            for key, model in models.items()
        }
        seconds = medians(runs, repeats, warmup=1, progress=progress)
        result[mode] = {"seconds": seconds, "speedup": seconds["gpt2"] / seconds["ours"]}
    return result


def _rivals(name: str) -> dict[str, Any]:
    ours = create_model(name, dropout=0.0)
    if not isinstance(ours, CrateForCausalLM):
        raise CrateError(f"{name}: the gpt bench takes a causal language model such as crate-gpt-base")
    ours.generation_config.eos_token_id = None  # every text is written to its full length
    return {"ours": ours, "gpt2": _gpt2(ours.config)}


def _gpt2(config: CrateConfig) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=config.hidden_size,
            n_layer=config.num_hidden_layers,
            n_head=config.num_attention_heads,
            vocab_size=config.vocab_size,
            n_positions=config.max_position_embeddings,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _runner(model: Any, mode: str, prompt: Tensor, texts: Tensor, new_tokens: int) -> Callable[[], object]:
    if mode == "decoding":
        return lambda: model.generate(prompt, max_new_tokens=new_tokens, do_sample=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        model(texts, labels=texts, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@torch.no_grad()
def _bytes_per_token(model: Any, prompt: Tensor) -> float:
    cache = model(prompt, use_cache=True).past_key_values
    return cache_bytes(cache) / prompt.shape[1]


@torch.no_grad()
def _cache_difference(model: Any, text: Tensor) -> float:
    """How far the last logits of a text are from those of the same text from scratch, relative to the largest."""
    cache = model(text[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
    ours, reference = model(text[:, -1:], past_key_values=cache).logits, model(text, logits_to_keep=1).logits
    return float((ours - reference).abs().max() / reference.abs().max())
