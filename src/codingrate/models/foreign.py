"""GPT-2 and RoBERTa from folders that transformers saved, as black-box twins with the same logits.

The names of transformers for parameters and settings occur only in this file. A setting that a twin cannot have raises
an error with the name that it has in config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CrateError, unknown_name
from .base import CratePreTrainedModel
from .checkpoint_file import ImportPlan, Report, build_imported, read_folder, read_json, renamed
from .config import check_limits
from .presets import BLACK_BOX

_ACTIVATIONS = {  # name in transformers: ours
    "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu-tanh", "gelu_fast": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh",
}  # fmt: skip

_REQUIRED = {
    "add_cross_attention": False, "is_decoder": False, "position_embedding_type": "absolute",
    "scale_attn_by_inverse_layer_idx": False,
}  # fmt: skip
"""Settings of which a twin has only one value."""
_SAME = (
    "initializer_range", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip
"""Settings that have the same name here."""

_GPT2 = {"embedding.words.weight": "wte.weight", "embedding.positions.weight": "wpe.weight", "norm.*": "ln_f.*"}
_GPT2_LAYER = {
    "attention_norm.*": "ln_1.*", "attention.project.*": "attn.c_attn.*", "attention.output.*": "attn.c_proj.*",
    "sparsifier_norm.*": "ln_2.*", "sparsifier.expand.*": "mlp.c_fc.*", "sparsifier.contract.*": "mlp.c_proj.*",
}  # fmt: skip
_ROBERTA = {
    "words.weight": "word_embeddings.weight", "positions.weight": "position_embeddings.weight",
    "types.weight": "token_type_embeddings.weight", "norm.*": "LayerNorm.*",
}  # fmt: skip
_ROBERTA_LAYER = {
    "attention.project.*": "attention.self.query.* attention.self.key.* attention.self.value.*",
    "attention.output.*": "attention.output.dense.*", "attention_norm.*": "attention.output.LayerNorm.*",
    "sparsifier.expand.*": "intermediate.dense.*", "sparsifier.contract.*": "output.dense.*",
    "sparsifier_norm.*": "output.LayerNorm.*",
}  # fmt: skip


def load_foreign(folder: Path, report: Report) -> CratePreTrainedModel:
    """Load the GPT-2 or RoBERTa in a folder (config.json and weights) as a twin in float32 and eval mode."""
    config, tensors = _read_config(folder), read_folder(folder, "pytorch_model.bin")
    return build_imported(_PLANS[config.model_type](config, tensors, report), tensors, report)


def _read_config(folder: Path) -> Any:
    """Read config.json, with the defaults of the config class of transformers."""
    file = folder / "config.json"
    settings = read_json(file) if file.is_file() else {"model_type": "crate"}
    kind = settings.get("model_type")
    if kind == "crate":
        raise CrateError("is a folder; give the file, or open a saved model by from_pretrained")
    if "auto_map" in settings:
        raise CrateError("config.json names code to run (auto_map); remove the entry to load the weights without it")
    if kind not in list(_PLANS):
        raise unknown_name("model_type", kind, _PLANS)
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[kind].from_dict(settings)
    except Exception as error:  # a setting of the wrong type may raise anything
        raise CrateError(f"config.json: {error}") from error


def _common_fields(config: Any, dropout: tuple[str, ...], eps: float, report: Report) -> dict[str, Any]:
    """Return the config fields that both families share, given the names of their dropout rates and ε of LayerNorm."""
    d, inner = config.hidden_size, getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    activation = getattr(config, "activation_function", None) or getattr(config, "hidden_act", None)
    for name, only in _REQUIRED.items():
        if (value := getattr(config, name, only)) != only:
            raise CrateError(f"config.json: {name} is {value!r}; a twin has {only!r} only")
    check_limits({name: getattr(config, name) for name in _SAME})  # before names of parameters are listed by layer
    if activation not in _ACTIVATIONS:
        raise CrateError(f"config.json: activation {activation!r} has no twin; known: {', '.join(_ACTIVATIONS)}")
    if inner is not None and inner % d:
        raise CrateError(f"config.json: the MLP's width {inner} is no multiple of the width {d}, as a twin's is")
    rates = {name: getattr(config, name) for name in dropout}
    rate = max(rates.values())
    if len(set(rates.values())) > 1:
        report(f"a twin has one dropout: took {rate:g} of {', '.join(f'{k} {v:g}' for k, v in rates.items())}")
    return {
        **BLACK_BOX, **{name: getattr(config, name) for name in _SAME}, "modality": "text", "projection_bias": True,
        "positions": "learned", "initializer": "normal", "expansion": 4 if inner is None else inner // d,
        "activation": _ACTIVATIONS[activation], "dropout": rate, "layer_norm_eps": eps, "head_norm_eps": eps,
    }  # fmt: skip


def _gpt2(config: Any, tensors: Mapping[str, Tensor], report: Report) -> ImportPlan:
    """Plan GPT-2: LayerNorm first, GELU by tanh, and linear maps stored (in, out)."""
    rates = ("embd_pdrop", "attn_pdrop", "resid_pdrop")
    fields = _common_fields(config, rates, config.layer_norm_epsilon, report)
    fields |= {"causal": True, "final_norm": True, "scaled_output_init": True}
    fields["attention_scale"] = None if config.scale_attn_weights else 1.0
    body = "transformer." if any(key.startswith("transformer.") for key in tensors) else ""
    head = f"{body}wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    sources = {
        **renamed({"head.weight": head}),
        **renamed(_GPT2, "crate.", body),
        **renamed(_GPT2_LAYER, "crate.layers.{}.", f"{body}h.{{}}.", config.num_hidden_layers, transposed=True),
    }
    unused = rf"{body}h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight"
    return ImportPlan("gpt2", "CrateForCausalLM", fields, sources, unused)


def _roberta(config: Any, tensors: Mapping[str, Tensor], report: Report) -> ImportPlan:
    """Plan RoBERTa: LayerNorm last, positions counted after padding's row, a masked-LM or a classification head."""
    if config.pad_token_id is None:
        raise CrateError("config.json: pad_token_id is missing; RoBERTa counts its positions from it")
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    fields = _common_fields(config, rates, config.layer_norm_eps, report)
    fields |= {"norm": "post", "embedding_norm": True, "type_vocab_size": config.type_vocab_size}
    fields["position_offset"] = config.pad_token_id + 1
    sources = {
        **renamed(_ROBERTA, "crate.embedding.", "roberta.embeddings."),
        **renamed(_ROBERTA_LAYER, "crate.layers.{}.", "roberta.encoder.layer.{}.", config.num_hidden_layers),
    }
    unused = r"roberta\.(pooler\..*|embeddings\.position_ids)"
    if "classifier.out_proj.weight" in tensors:
        fields |= {"id2label": config.id2label, "label2id": config.label2id, "problem_type": config.problem_type}
        sources |= renamed({"dense.*": "classifier.dense.*", "head.*": "classifier.out_proj.*"})
        return ImportPlan("roberta", "CrateForSequenceClassification", fields, sources, unused)
    fields["prediction_transform"] = True
    head = {"head.weight": "roberta.embeddings.word_embeddings.weight", "head.bias": "lm_head.bias"}
    if not config.tie_word_embeddings:
        head = {"head.*": "lm_head.decoder.*"}
    sources |= renamed({"transform.dense.*": "lm_head.dense.*", "transform.norm.*": "lm_head.layer_norm.*", **head})
    unused = rf"{unused}|lm_head\.(bias|decoder\.(weight|bias))"
    return ImportPlan("roberta", "CrateForMaskedLM", fields, sources, unused)


_PLANS: dict[str, Callable[[Any, Mapping[str, Tensor], Report], ImportPlan]] = {"gpt2": _gpt2, "roberta": _roberta}
