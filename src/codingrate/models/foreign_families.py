"""What GPT-2 and RoBERTa call their parts and settings, and which of ours they are.

Foreign names live here and nowhere else. What a twin has no form for is refused by the name it has in config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import CrateError
from .base import CratePreTrainedModel
from .language import CrateForCausalLM, CrateForMaskedLM, CrateForSequenceClassification
from .presets import BLACK_BOX

Report = Callable[[str], None]

_ACTIVATIONS = {  # transformers' name: ours
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
_PAIR = ("weight", "bias")


@dataclass(frozen=True)
class Source:
    """Where one of our parameters is kept: in one tensor or several in a row, stored (out, in) or (in, out)."""

    keys: tuple[str, ...]
    transposed: bool = False


@dataclass(frozen=True)
class Plan:
    """A foreign model seen as one of ours; keys that match `unused` may be left over."""

    model: type[CratePreTrainedModel]
    fields: dict[str, Any]
    sources: dict[str, Source]
    unused: str


def _fields(config: Any, dropout: Mapping[str, float], report: Report) -> dict[str, Any]:
    """What both families have in common; `dropout` are their several rates by name."""
    d, inner = config.hidden_size, getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    activation = getattr(config, "activation_function", None) or getattr(config, "hidden_act", None)
    _refuse(config, "add_cross_attention", False)
    _refuse(config, "is_decoder", False)
    _refuse(config, "position_embedding_type", "absolute")
    if activation not in _ACTIVATIONS:
        raise CrateError(f"config.json: activation {activation!r} has no twin; known: {', '.join(_ACTIVATIONS)}")
    if inner is not None and inner % d:
        raise CrateError(f"config.json: the MLP's width {inner} is no multiple of the width {d}, as a twin's is")
    rate = max(dropout.values())
    if len(set(dropout.values())) > 1:
        report(f"a twin has one dropout: took {rate:g} of {', '.join(f'{k} {v:g}' for k, v in dropout.items())}")
    return {
        **BLACK_BOX,
        "modality": "text",
        "projection_bias": True,
        "positions": "learned",
        "initializer": "normal",
        "initializer_range": config.initializer_range,
        "hidden_size": d,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "expansion": 4 if inner is None else inner // d,
        "activation": _ACTIVATIONS[activation],
        "dropout": rate,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "pad_token_id": config.pad_token_id,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
    }


def _refuse(config: Any, name: str, only: object) -> None:
    value = getattr(config, name, only)
    if value != only:
        raise CrateError(f"config.json: {name} is {value!r}; a twin has {only!r} only")


def _pairs(names: Mapping[str, str], transposed: bool = False) -> dict[str, Source]:
    return {f"{our}.{kind}": Source((f"{own}.{kind}",), transposed) for our, own in names.items() for kind in _PAIR}


def _gpt2(config: Any, tensors: Mapping[str, Tensor], report: Report) -> Plan:
    """GPT-2: norms first, GELU by tanh, and linear maps stored (in, out)."""
    _refuse(config, "scale_attn_by_inverse_layer_idx", False)
    fields = {
        **_fields(
            config, {name: getattr(config, name) for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}, report
        ),
        "causal": True,
        "final_norm": True,
        "layer_norm_eps": config.layer_norm_epsilon,
        "head_norm_eps": config.layer_norm_epsilon,
        "attention_scale": None if config.scale_attn_weights else 1.0,
        "scaled_output_init": True,
    }
    body = "transformer." if any(key.startswith("transformer.") for key in tensors) else ""
    head = f"{body}wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    sources = {
        "crate.embedding.words.weight": Source((f"{body}wte.weight",)),
        "crate.embedding.positions.weight": Source((f"{body}wpe.weight",)),
        "head.weight": Source((head,)),
        **_pairs({"crate.norm": f"{body}ln_f"}),
    }
    for i in range(config.num_hidden_layers):
        our, own = f"crate.layers.{i}.", f"{body}h.{i}."
        sources |= _pairs({f"{our}attention_norm": f"{own}ln_1", f"{our}sparsifier_norm": f"{own}ln_2"})
        maps = {
            "attention.project": "attn.c_attn", "attention.output": "attn.c_proj",
            "sparsifier.expand": "mlp.c_fc", "sparsifier.contract": "mlp.c_proj",
        }  # fmt: skip
        sources |= _pairs({our + mine: own + theirs for mine, theirs in maps.items()}, transposed=True)
    return Plan(CrateForCausalLM, fields, sources, rf"{body}h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight")


def _roberta(config: Any, tensors: Mapping[str, Tensor], report: Report) -> Plan:
    """RoBERTa: norms behind, positions from the row after padding's; a masked-LM or a classification head."""
    if config.pad_token_id is None:
        raise CrateError("config.json: pad_token_id is missing, which RoBERTa counts its positions from")
    rates = {name: getattr(config, name) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    fields = {
        **_fields(config, rates, report),
        "norm": "post",
        "position_offset": config.pad_token_id + 1,
        "type_vocab_size": config.type_vocab_size,
        "embedding_norm": True,
        "layer_norm_eps": config.layer_norm_eps,
        "head_norm_eps": config.layer_norm_eps,
    }
    table = "roberta.embeddings."
    sources = {
        "crate.embedding.words.weight": Source((f"{table}word_embeddings.weight",)),
        "crate.embedding.positions.weight": Source((f"{table}position_embeddings.weight",)),
        "crate.embedding.types.weight": Source((f"{table}token_type_embeddings.weight",)),
        **_pairs({"crate.embedding.norm": f"{table}LayerNorm"}),
    }
    for i in range(config.num_hidden_layers):
        our, own = f"crate.layers.{i}.", f"roberta.encoder.layer.{i}."
        for kind in _PAIR:
            parts = tuple(f"{own}attention.self.{part}.{kind}" for part in ("query", "key", "value"))
            sources[f"{our}attention.project.{kind}"] = Source(parts)
        maps = {
            "attention.output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
            "sparsifier.expand": "intermediate.dense", "sparsifier.contract": "output.dense",
            "sparsifier_norm": "output.LayerNorm",
        }  # fmt: skip
        sources |= _pairs({our + mine: own + theirs for mine, theirs in maps.items()})
    unused = r"roberta\.(pooler\..*|embeddings\.position_ids)"
    if "classifier.out_proj.weight" in tensors:
        fields |= {"id2label": config.id2label, "label2id": config.label2id, "problem_type": config.problem_type}
        sources |= _pairs({"dense": "classifier.dense", "head": "classifier.out_proj"})
        return Plan(CrateForSequenceClassification, fields, sources, unused)
    fields["prediction_transform"] = True
    untied = not config.tie_word_embeddings
    sources |= {
        **_pairs({"transform.dense": "lm_head.dense", "transform.norm": "lm_head.layer_norm"}),
        "head.weight": Source(("lm_head.decoder.weight" if untied else f"{table}word_embeddings.weight",)),
        "head.bias": Source(("lm_head.decoder.bias" if untied else "lm_head.bias",)),
    }
    return Plan(CrateForMaskedLM, fields, sources, rf"{unused}|lm_head\.(bias|decoder\.(weight|bias))")


PLANS: dict[str, Callable[[Any, Mapping[str, Tensor], Report], Plan]] = {
    "gpt2": _gpt2,
    "roberta": _roberta,
}
