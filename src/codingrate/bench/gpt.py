"""CRATE-GPT against transformers' GPT-2 of the same width, depth and heads: decoding, training step, cache size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from ..errors import CrateError
from ..models.cache import cache_bytes
from ..models.config import CrateConfig
from ..models.language import CrateForCausalLM
from ..models.presets import create_model
from .timing import Progress, Result, fixed_seed, medians, training_step

PROMPT = 8
"""Number of tokens before the first generated one."""


def bench_gpt(
    name: str = "crate-gpt-base",
    *,
    new_tokens: int = 128,
    batch: int = 4,
    length: int = 256,
    repeats: int = 5,
    progress: Progress = None,
) -> Result:
    """Time greedy decoding of one text, and a training step on `batch` texts of `length` tokens.

    Both models have random weights, no dropout and no end-of-text token, and use transformers' own `generate`, so that
    they differ only in the forward pass. A training step is forward, backward and AdamW.
    """
    with fixed_seed():
        models = _rivals(name)
        vocabulary = models["ours"].config.vocab_size
        prompt, texts = torch.randint(vocabulary, (1, PROMPT)), torch.randint(vocabulary, (batch, length))
    result: Result = {
        "model": name,
        "new_tokens": new_tokens,
        "batch": batch,
        "length": length,
        "parameters": {key: model.num_parameters() for key, model in models.items()},
        "cache_difference": _cache_difference(models["ours"].eval(), texts[:1]),
        "cache_bytes_per_token": {key: _bytes_per_token(model.eval(), prompt) for key, model in models.items()},
    }
    for mode in ("decoding", "training"):
        runs = {k: _runner(m.train(mode == "training"), mode, prompt, texts, new_tokens) for k, m in models.items()}
        seconds = medians(runs, repeats, warmup=1, progress=progress)
        result[mode] = {"seconds": seconds, "speedup": seconds["gpt2"] / seconds["ours"]}
    return result


def _rivals(name: str) -> Result:
    ours = create_model(name, dropout=0.0)
    if not isinstance(ours, CrateForCausalLM):
        raise CrateError(f"{name} is not a causal language model; use one such as crate-gpt-base")
    ours.generation_config.eos_token_id = None  # so that every text has its full length
    return {"ours": ours, "gpt2": _gpt2(ours.config)}


def _gpt2(config: CrateConfig) -> nn.Module:
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
    return training_step(model, lambda: model(texts, labels=texts, use_cache=False).loss)


@torch.no_grad()
def _bytes_per_token(model: Any, prompt: Tensor) -> float:
    return cache_bytes(model(prompt, use_cache=True).past_key_values) / prompt.shape[1]


@torch.no_grad()
def _cache_difference(model: Any, text: Tensor) -> float:
    """Return the difference of the last logits with and without a cache, relative to the largest logit."""
    cache = model(text[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
    ours, reference = model(text[:, -1:], past_key_values=cache).logits, model(text, logits_to_keep=1).logits
    return float((ours - reference).abs().max() / reference.abs().max())
