"""CRATE models against others of the same width, depth and heads: a classifier against the paper's pseudocode and
transformers' ViT, CRATE-GPT against transformers' GPT-2.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from .._state import seeded
from ..errors import CrateError
from ..models.cache import cache_bytes
from ..models.classifier import CrateForImageClassification
from ..models.counts import count_flops
from ..models.embedding import PatchEmbedding
from ..models.language import CrateForCausalLM
from ..models.presets import create_model
from .limits import products_alone, read_bandwidth
from .timing import Progress, Result, medians, peak_memory, training_step

RIVALS = ("ours", "naive", "vit")
PROMPT = 8  # number of tokens before the first generated one


def bench_image(
    name: str = "crate-base-patch16-224",
    batch: int = 8,
    repeats: int = 7,
    compiler: str | None = None,
    progress: Progress = None,
) -> Result:
    """Time inference and a training step of a CRATE classifier, of its naive transcription and of transformers' ViT.

    All three have the same width, depth and number of heads. The naive form has our weights, and its logits are
    compared with ours before the timing. A training step is forward, backward and AdamW. The efficiency is the share of
    our time that its matrix products and attention take alone; see `products_alone`. With a `compiler`, a backend of
    torch.compile such as "inductor", our model, as one graph, and the ViT are also timed compiled.
    """
    with seeded(0):
        model = cast(CrateForImageClassification, _classifier(name, "ours"))
        models = {"ours": model, "naive": NaiveClassifier(deepcopy(model)), "vit": _classifier(name, "vit")}
        shape = (model.config.num_channels, *model.config.image_sides)
        pixels = torch.randn(batch, *shape)
        labels = torch.randint(0, model.config.num_labels or 1, (batch,))
    with torch.no_grad():
        ours, naive = _logits(models["ours"].eval(), pixels), _logits(models["naive"].eval(), pixels)
    result: Result = {
        "model": name,
        "batch": batch,
        "parameters": {key: sum(p.numel() for p in model.parameters()) for key, model in models.items()},
        "logits_difference": float((ours - naive).abs().max() / naive.abs().max()),
    }
    for mode in ("inference", "training"):
        cases = {k: _step(model.train(mode == "training"), pixels, labels, mode) for k, model in models.items()}
        cases["products"] = products_alone(cases["ours"])
        if compiler:
            for key in ("ours", "vit"):
                cases[f"{key} compiled"] = _step(compiled(models[key], compiler, key == "ours"), pixels, labels, mode)
        seconds = medians(cases, repeats, progress=progress)
        result[mode] = {
            "seconds": seconds,
            "efficiency": seconds["products"] / seconds["ours"],
            "speedup": {key: seconds[key] / seconds["ours"] for key in RIVALS[1:]},
            "gflops_per_second": {k: _flops(name, k, batch, mode, shape) / seconds[k] / 1e9 for k in RIVALS},
            "peak_mib": {key: _median_peak((name, key, batch, mode, shape)) for key in RIVALS},
        }
        if compiler:
            result[mode]["compiled"] = _compiled_speedups(seconds, "vit")
    return result


def compiled(model: nn.Module, compiler: str, whole: bool) -> nn.Module:
    """Compile a model that shares the weights of `model`; if it must be one `whole` graph, a break is an error."""
    return cast(nn.Module, torch.compile(model, fullgraph=whole, dynamic=False, backend=compiler))


def _compiled_speedups(seconds: dict[str, float], rival: str) -> dict[str, float]:
    """Return how much faster both models become, and how much faster our compiled one is than the rival's."""
    return {
        "ours": seconds["ours"] / seconds["ours compiled"],
        rival: seconds[rival] / seconds[f"{rival} compiled"],
        "speedup": seconds[f"{rival} compiled"] / seconds["ours compiled"],
    }


def _classifier(name: str, rival: str) -> nn.Module:
    with torch.device("meta") if rival == "vit" else nullcontext():
        model = create_model(name)
    config = model.config
    if not isinstance(model, CrateForImageClassification) or (config.attention, config.sparsifier) != ("mssa", "ista"):
        raise CrateError(f"`model={name!r}` is not a CRATE classifier; use one such as crate-base-patch16-224")
    if rival != "vit":
        return model if rival == "ours" else NaiveClassifier(model)
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "num_labels")
    sizes = {name: getattr(config, name) for name in same}
    vit = ViTConfig(**sizes, intermediate_size=4 * config.hidden_size, image_size=config.image_sides[0])
    return ViTForImageClassification(vit)


class NaiveClassifier(nn.Module):
    """The image classifier of the paper's pseudocode, transcribed line by line: a baseline, and an oracle for tests.

    It uses the parameters of `model` but none of its forward passes. The softmax is explicit, ISTA follows its
    formula, and LayerNorm is computed wherever the pseudocode writes it.
    """

    def __init__(self, model: CrateForImageClassification) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to logits (batch, classes)."""
        config, e = self.model.config, cast(PatchEmbedding, self.model.crate.embedding)
        batch, channels, height, width = pixels.shape
        p = config.patch_size
        x = pixels.reshape(batch, channels, height // p, p, width // p, p).permute(0, 2, 4, 3, 5, 1)
        x = e.token_norm(e.project(e.patch_norm(x.reshape(batch, -1, p * p * channels))))
        assert e.class_token is not None
        assert e.positions is not None
        x = torch.cat([e.class_token.expand(batch, 1, -1), x], dim=1) + e.positions.weight
        for layer in cast(Any, self.model.crate.layers):
            x = mssa(layer.attention_norm(x), layer.attention, config.num_attention_heads) + layer.attention_norm(x)
            x = ista(layer.sparsifier_norm(x), layer.sparsifier.dictionary, config.step_size, config.sparsity)
        return self.model.head(self.model.head_norm(x[:, 0]))


def mssa(z: Tensor, attention: Any, heads: int) -> Tensor:
    """Compute the update of tokens (batch, n, d) by MSSA with an explicit attention matrix."""
    batch, tokens, _ = z.shape
    w = attention.project(z).reshape(batch, tokens, heads, -1).transpose(1, 2)
    scores = torch.matmul(w, w.transpose(-1, -2)) * w.shape[-1] ** -0.5
    out = torch.matmul(torch.softmax(scores, dim=-1), w)
    return attention.output(out.transpose(1, 2).reshape(batch, tokens, -1))


def ista(z: Tensor, dictionary: Tensor, step_size: float, sparsity: float) -> Tensor:
    """Take an ISTA step on tokens (batch, n, d), one matrix product after the other."""
    reconstruction = F.linear(z, dictionary)
    gradient = step_size * F.linear(reconstruction - z, dictionary.t())
    return F.relu(z - gradient - step_size * sparsity)


def _logits(model: nn.Module, pixels: Tensor) -> Tensor:
    output = model(pixels)
    return output if isinstance(output, Tensor) else output.logits


def _step(model: nn.Module, pixels: Tensor, labels: Tensor, mode: str) -> Callable[[], object]:
    if mode == "inference":
        return torch.no_grad()(lambda: _logits(model, pixels))
    return training_step(model, lambda: F.cross_entropy(_logits(model, pixels), labels))


def _new_step(name: str, rival: str, batch: int, mode: str, shape: tuple[int, int, int]) -> Callable[[], object]:
    model = _classifier(name, rival).train(mode == "training")
    return _step(model, torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.long), mode)


def _flops(*case: Any) -> int:
    """Count the operations of one step from shapes alone, without those whose result is kept between steps."""
    with torch.device("meta"):
        return count_flops(_new_step(*case))


def _median_peak(case: Sequence[Any]) -> float:
    """Return the peak MiB of two steps, the median of three processes: how memory is laid out differs between them."""
    return statistics.median(peak_memory(_two_steps, case) for _ in range(3))


def _two_steps(*case: Any) -> None:
    run = _new_step(*case)
    run()
    run()


def bench_gpt(
    name: str = "crate-gpt-base",
    *,
    new_tokens: int = 128,
    batch: int = 4,
    length: int = 256,
    repeats: int = 5,
    compiler: str | None = None,
    progress: Progress = None,
) -> Result:
    """Time greedy decoding of one text, and a training step on `batch` texts of `length` tokens.

    Both models have random weights, no dropout and no end-of-text token, and use transformers' own `generate`, so that
    they differ only in the forward pass. A training step is forward, backward and AdamW. The difference that a cache
    makes is that of the last logits, relative to the largest one. The efficiency of decoding is the time in which
    memory can deliver all weights once per token, relative to our time; that of training is as in `bench_image`. A
    `compiler`, as in `bench_image`, compiles the training step only.
    """
    with seeded(0):
        models = _language_models(name)
        vocabulary = models["ours"].config.vocab_size
        prompt, texts = torch.randint(vocabulary, (1, PROMPT)), torch.randint(vocabulary, (batch, length))
    with torch.no_grad():
        caches = {key: model.eval()(prompt, use_cache=True).past_key_values for key, model in models.items()}
        ours, text = models["ours"], texts[:1]
        cache = ours(text[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
        last, reference = ours(text[:, -1:], past_key_values=cache).logits, ours(text, logits_to_keep=1).logits
    result: Result = {"model": name, "new_tokens": new_tokens, "batch": batch, "length": length}
    result |= {
        "parameters": {key: model.num_parameters() for key, model in models.items()},
        "cache_difference": float((last - reference).abs().max() / reference.abs().max()),
        "cache_bytes_per_token": {key: cache_bytes(cache) / PROMPT for key, cache in caches.items()},
    }

    weight_bytes, bandwidth = _read_bytes(ours), read_bandwidth()
    result |= {"weight_bytes": weight_bytes, "bandwidth": bandwidth}

    def decode(model: Any) -> Callable[[], object]:
        model.eval()
        return lambda: model.generate(prompt, max_new_tokens=new_tokens, do_sample=False)

    def train(model: Any) -> Callable[[], object]:
        return training_step(model.train(), lambda: model(texts, labels=texts, use_cache=False).loss)

    for mode, step in (("decoding", decode), ("training", train)):
        runs = {key: step(model) for key, model in models.items()}
        if mode == "training":
            runs["products"] = products_alone(runs["ours"])
            if compiler:
                for key, model in models.items():
                    runs[f"{key} compiled"] = step(compiled(model, compiler, key == "ours"))
        seconds = medians(runs, repeats, warmup=1, progress=progress)
        least = seconds.get("products", new_tokens * weight_bytes / bandwidth)
        result[mode] = {
            "seconds": seconds,
            "speedup": seconds["gpt2"] / seconds["ours"],
            "efficiency": least / seconds["ours"],
        }
        if "ours compiled" in seconds:
            result[mode]["compiled"] = _compiled_speedups(seconds, "gpt2")
    return result


def _read_bytes(model: nn.Module) -> int:
    """Return the bytes of the weights that one decoded token needs: all but those of tables, of which it reads a row.

    The word embedding counts, because the head is tied to it and reads it whole.
    """
    return sum(p.nbytes for name, p in model.named_parameters() if ".positions." not in name)


def _language_models(name: str) -> Result:
    ours = create_model(name, dropout=0.0)
    if not isinstance(ours, CrateForCausalLM):
        raise CrateError(f"{name} is not a causal language model; use one such as crate-gpt-base")
    ours.generation_config.eos_token_id = None  # so that every text has its full length
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    sizes = {name: getattr(ours.config, name) for name in same}
    sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    gpt2 = GPT2LMHeadModel(GPT2Config(**sizes))
    gpt2.loss_type = "ForCausalLM"  # its default, which transformers would note in a way that breaks a compiled graph
    return {"ours": ours, "gpt2": gpt2}
