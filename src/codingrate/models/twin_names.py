"""Names of transformers for the parameters and settings of ViT, ViTMAE, BERT, RoBERTa and GPT-2.

They occur only in this file, as plans to import a checkpoint. A setting that a twin cannot have raises an error with
the name that it has in config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import CrateError
from .checkpoint_file import ImportPlan, Report, prefixed
from .presets import BLACK_BOX, RELEASED_MAE

Plan = Callable[[Any, Mapping[str, Tensor], Report], ImportPlan]

_ACTIVATIONS = {  # name in transformers: ours
    "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu-tanh", "gelu_fast": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh",
}  # fmt: skip
_REQUIRED = {
    "add_cross_attention": False, "is_decoder": False, "position_embedding_type": "absolute",
    "scale_attn_by_inverse_layer_idx": False, "chunk_size_feed_forward": 0,
}  # fmt: skip
"""Settings of which a twin has only one value."""
_SAME = ("initializer_range", "hidden_size", "num_hidden_layers", "num_attention_heads")
"""Settings that have the same name here; those of text are in `_SAME_TEXT`."""
_SAME_TEXT = (
    "vocab_size", "max_position_embeddings", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip
_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_DROPOUT_GPT2 = ("embd_pdrop", "attn_pdrop", "resid_pdrop")

_VIT_LAYER = {
    "attention_norm.*": "layernorm_before.*", "sparsifier_norm.*": "layernorm_after.*",
    "attention.project.*": "attention.attention.query.* attention.attention.key.* attention.attention.value.*",
    "attention.output.*": "attention.output.dense.*",
    "sparsifier.expand.*": "intermediate.dense.*", "sparsifier.contract.*": "output.dense.*",
}  # fmt: skip
_VIT = {
    "embedding.class_token": "embeddings.cls_token", "embedding.positions.weight": "embeddings.position_embeddings",
    "embedding.project.*": "embeddings.patch_embeddings.projection.*", "norm.*": "layernorm.*",
    **prefixed("layers.{}.", "encoder.layer.{}.", _VIT_LAYER),
}  # fmt: skip
_MAE_DECODER = {
    "decoder_embed.*": "decoder_embed.*", "decoder_norm.*": "decoder_norm.*", "predict.*": "decoder_pred.*",
    "mask_token": "mask_token", "decoder_positions.weight": "decoder_pos_embed",
    **prefixed("decoder_layers.{}.", "decoder_encoder.layer.{}.", _VIT_LAYER),
}  # fmt: skip
_GPT2_LAYER = {
    "attention_norm.*": "ln_1.*", "attention.project.*": "attn.c_attn.*", "attention.output.*": "attn.c_proj.*",
    "sparsifier_norm.*": "ln_2.*", "sparsifier.expand.*": "mlp.c_fc.*", "sparsifier.contract.*": "mlp.c_proj.*",
}  # fmt: skip
_GPT2 = {
    "embedding.words.weight": "wte.weight", "embedding.positions.weight": "wpe.weight", "norm.*": "ln_f.*",
    **prefixed("layers.{}.", "h.{}.", _GPT2_LAYER),
}  # fmt: skip
_BERT_LAYER = {
    "attention.project.*": "attention.self.query.* attention.self.key.* attention.self.value.*",
    "attention.output.*": "attention.output.dense.*", "attention_norm.*": "attention.output.LayerNorm.*",
    "sparsifier.expand.*": "intermediate.dense.*", "sparsifier.contract.*": "output.dense.*",
    "sparsifier_norm.*": "output.LayerNorm.*",
}  # fmt: skip
_BERT = {
    "embedding.words.weight": "embeddings.word_embeddings.weight",
    "embedding.positions.weight": "embeddings.position_embeddings.weight",
    "embedding.types.weight": "embeddings.token_type_embeddings.weight", "embedding.norm.*": "embeddings.LayerNorm.*",
    **prefixed("layers.{}.", "encoder.layer.{}.", _BERT_LAYER),
}  # fmt: skip
_BERT_CLASSIFIER = {
    "bert": {"dense.*": "bert.pooler.dense.*", "head.*": "classifier.*"},
    "roberta": {"dense.*": "classifier.dense.*", "head.*": "classifier.out_proj.*"},
}
_BERT_MASKED = {
    "bert": {
        "transform.dense.*": "cls.predictions.transform.dense.*",
        "transform.norm.*": "cls.predictions.transform.LayerNorm.*",
        "head.weight": "bert.embeddings.word_embeddings.weight", "head.bias": "cls.predictions.bias",
    },
    "roberta": {
        "transform.dense.*": "lm_head.dense.*", "transform.norm.*": "lm_head.layer_norm.*",
        "head.weight": "roberta.embeddings.word_embeddings.weight", "head.bias": "lm_head.bias",
    },
}  # fmt: skip
_BERT_UNTIED = {
    "bert": {"head.weight": "cls.predictions.decoder.weight"},
    "roberta": {"head.weight": "lm_head.decoder.weight", "head.bias": "lm_head.decoder.bias"},
}
_BERT_UNUSED = {
    "bert": r"cls\.seq_relationship\..*|cls\.predictions\.decoder\.(weight|bias)",
    "roberta": r"lm_head\.(bias|decoder\.(weight|bias))",
}


def _layer_fields(config: Any, dropout: tuple[str, ...], eps: float, report: Report) -> dict[str, Any]:
    """Return the config fields that all families share, given the names of their dropout rates and ε of LayerNorm."""
    d, inner = config.hidden_size, getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    activation = getattr(config, "activation_function", None) or getattr(config, "hidden_act", None)
    for name, only in _REQUIRED.items():
        if (value := getattr(config, name, only)) != only:
            raise CrateError(f"config.json: {name} is {value!r}; a twin has {only!r} only")
    if activation not in _ACTIVATIONS:
        raise CrateError(f"config.json: activation {activation!r} has no twin; known: {', '.join(_ACTIVATIONS)}")
    if inner is not None and (not d or inner % d):
        raise CrateError(f"config.json: the MLP's width {inner} is no multiple of the width {d}, as a twin's is")
    rates = {name: getattr(config, name) for name in dropout}
    rate = max(rates.values())
    if len(set(rates.values())) > 1:
        report(f"a twin has one dropout: took {rate:g} of {', '.join(f'{k} {v:g}' for k, v in rates.items())}")
    return {
        **BLACK_BOX, **{name: getattr(config, name) for name in _SAME}, "projection_bias": True,
        "expansion": 4 if inner is None else inner // d, "activation": _ACTIVATIONS[activation], "dropout": rate,
        "initializer": "normal", "positions": "learned", "layer_norm_eps": eps, "head_norm_eps": eps,
    }  # fmt: skip


def _text_fields(config: Any, dropout: tuple[str, ...], eps: float, report: Report) -> dict[str, Any]:
    fields = _layer_fields(config, dropout, eps, report)
    return {**fields, "modality": "text", **{name: getattr(config, name) for name in _SAME_TEXT}}


def _labels(config: Any) -> dict[str, Any]:
    return {"id2label": config.id2label, "label2id": config.label2id, "problem_type": config.problem_type}


def _has(tensors: Mapping[str, Tensor], start: str) -> bool:
    return any(key.startswith(start) for key in tensors)


def _image_fields(config: Any, report: Report) -> dict[str, Any]:
    """Return the fields of a ViT and of the encoder of a ViTMAE: a final norm, and no other norm outside the layers."""
    fields = _layer_fields(config, _DROPOUT, config.layer_norm_eps, report)
    patch = config.patch_size
    sides = (patch, patch) if isinstance(patch, int) else tuple(patch)
    if len(set(sides)) != 1:
        raise CrateError(f"config.json: patch_size is {patch}; a twin has square patches only")
    size = config.image_size if isinstance(config.image_size, int) else tuple(config.image_size)
    return {
        **fields, "projection_bias": bool(config.qkv_bias), "patch_norm": False, "final_norm": True,
        "head_norm": False, "patch_size": sides[0], "image_size": size, "num_channels": config.num_channels,
    }  # fmt: skip


def _vit(config: Any, tensors: Mapping[str, Tensor], report: Report) -> ImportPlan:
    """Plan ViT: a classifier, or the body alone (as DINO's weights are published), without classes."""
    prefix = "vit." if _has(tensors, "vit.") else ""
    fields = _image_fields(config, report)
    fields |= _labels(config) if _has(tensors, "classifier.") else {"num_labels": 0}
    names = {**prefixed("", prefix, _VIT), "head.*": "classifier.*"}
    return ImportPlan("vit", "CrateForImageClassification", fields, names, rf"{prefix}pooler\..*")


def _vit_mae(config: Any, tensors: Mapping[str, Tensor], report: Report) -> ImportPlan:
    """Plan ViTMAE: the encoder of kept patches, and a decoder of its own width with frozen positions."""
    width, inner = config.decoder_hidden_size, config.decoder_intermediate_size
    fields = _image_fields(config, report)
    if inner != fields["expansion"] * width:
        raise CrateError(
            f"config.json: decoder_intermediate_size is {inner}; a twin has the encoder's ratio only, "
            f"{fields['expansion'] * width}"
        )
    fields |= {
        **RELEASED_MAE, **BLACK_BOX, "mask_space": "drop", "decoder_type": "forward", "pooling": "mean",
        "decoder_layers": config.decoder_num_hidden_layers, "decoder_width": width,
        "decoder_heads": config.decoder_num_attention_heads, "normalize_pixels": config.norm_pix_loss,
        "mask_ratio": config.mask_ratio, "head_norm_eps": config.layer_norm_eps,
    }  # fmt: skip
    names = prefixed("", "vit.", _VIT) | prefixed("", "decoder.", _MAE_DECODER)
    return ImportPlan("vit_mae", "CrateForMaskedAutoencoding", fields, names, "")


def _gpt2(config: Any, tensors: Mapping[str, Tensor], report: Report) -> ImportPlan:
    """Plan GPT-2: LayerNorm first, GELU by tanh, and linear maps stored (in, out)."""
    fields = _text_fields(config, _DROPOUT_GPT2, config.layer_norm_epsilon, report)
    fields |= {"causal": True, "final_norm": True, "scaled_output_init": True}
    fields["attention_scale"] = None if config.scale_attn_weights else 1.0
    body = "transformer." if _has(tensors, "transformer.") else ""
    head = f"{body}wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    names = {**prefixed("", body, _GPT2), "head.weight": head}
    unused = rf"{body}h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight"
    return ImportPlan("gpt2", "CrateForCausalLM", fields, names, unused, transposed=True)


def _bert(config: Any, tensors: Mapping[str, Tensor], report: Report) -> ImportPlan:
    """Plan BERT or RoBERTa: LayerNorm last, token types, and a head for masked tokens, for classes, or none.

    BERT's classifier reads its pooled first token. RoBERTa counts positions after padding's row.
    """
    kind: str = config.model_type
    prefix = f"{kind}." if _has(tensors, f"{kind}.") else ""
    fields = _text_fields(config, _DROPOUT, config.layer_norm_eps, report)
    fields |= {"norm": "post", "embedding_norm": True, "type_vocab_size": config.type_vocab_size}
    if kind == "roberta":
        if config.pad_token_id is None:
            raise CrateError("config.json: pad_token_id is missing; RoBERTa counts its positions from it")
        fields["position_offset"] = config.pad_token_id + 1
    names = prefixed("", prefix, _BERT)
    unused = rf"{prefix}(pooler\..*|embeddings\.position_ids)"
    if not prefix:
        return ImportPlan(kind, "CrateTextModel", fields, names, unused)
    if _has(tensors, "classifier." if kind == "bert" else "classifier.out_proj."):
        fields |= _labels(config)
        return ImportPlan(kind, "CrateForSequenceClassification", fields, names | _BERT_CLASSIFIER[kind], unused)
    if kind == "bert" and fields["activation"] != "gelu":
        raise CrateError(f"config.json: hidden_act is {config.hidden_act!r}; a twin's masked-LM head has 'gelu' only")
    fields["prediction_transform"] = True
    names |= _BERT_MASKED[kind] | ({} if config.tie_word_embeddings else _BERT_UNTIED[kind])
    return ImportPlan(kind, "CrateForMaskedLM", fields, names, f"{unused}|{_BERT_UNUSED[kind]}")


PLANS: Mapping[str, Plan] = {"vit": _vit, "vit_mae": _vit_mae, "bert": _bert, "roberta": _bert, "gpt2": _gpt2}
"""Plan of each family, by the `model_type` of its config.json."""
