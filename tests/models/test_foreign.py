"""GPT-2 and RoBERTa saved by transformers itself, loaded as twins: the same logits, or a refusal by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPT2Model,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
)

from codingrate import CrateError, load_released
from codingrate.models import CrateForCausalLM, CrateForMaskedLM, CrateForSequenceClassification
from codingrate.models.loading import convert

GPT2 = {
    "n_embd": 14, "n_layer": 3, "n_head": 2, "vocab_size": 29, "n_positions": 13, "bos_token_id": 28,
    "eos_token_id": 28,
}  # fmt: skip
ROBERTA = {
    "hidden_size": 14, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 42, "vocab_size": 29,
    "max_position_embeddings": 15, "type_vocab_size": 2,
}  # fmt: skip


def saved(model, config, folder):
    """A model with every parameter drawn at random, saved by transformers."""
    theirs = model(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    theirs.save_pretrained(folder)
    return theirs


def quiet(message):
    raise AssertionError(f"unexpected report: {message}")


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_inner": 28, "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
        {"tie_word_embeddings": False, "scale_attn_weights": False},
    ],
    ids=["plain", "narrow", "untied"],
)
def test_gpt2_has_the_same_logits_and_loss(options, tmp_path):
    theirs = saved(GPT2LMHeadModel, GPT2Config(**GPT2, **options), tmp_path)
    ours = load_released(tmp_path, report=quiet)
    assert isinstance(ours, CrateForCausalLM)
    assert not ours.training
    ids = torch.randint(29, (3, 11))
    mine, other = ours(ids, labels=ids), theirs(ids, labels=ids)
    torch.testing.assert_close(mine.logits, other.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.loss, other.loss, rtol=1e-5, atol=1e-5)
    tied = ours.get_output_embeddings().weight is ours.get_input_embeddings().weight
    assert tied == options.get("tie_word_embeddings", True)
    assert ours.generation_config.eos_token_id == 28
    texts = [model.generate(ids[:, :4], max_new_tokens=6, do_sample=False) for model in (ours, theirs)]
    assert torch.equal(*texts)


@torch.no_grad()
def test_gpt2_without_head_or_prefix_as_on_the_hub(tmp_path):
    """The file of the original GPT-2: the body's own names, and masks among the weights."""
    theirs = saved(GPT2Model, GPT2Config(**GPT2), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "wte.weight" in tensors
    tensors |= {f"h.{i}.attn.bias": torch.ones(1, 1, 13, 13).tril() for i in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    ours, ids = load_released(tmp_path, report=quiet), torch.randint(29, (3, 11))
    body = ours.crate(input_ids=ids).last_hidden_state
    torch.testing.assert_close(body, theirs(ids).last_hidden_state, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_roberta_has_the_same_logits_also_with_padding(tied, tmp_path):
    theirs = saved(RobertaForMaskedLM, RobertaConfig(**ROBERTA, tie_word_embeddings=tied), tmp_path)
    ours = load_released(tmp_path, report=quiet)
    assert isinstance(ours, CrateForMaskedLM)
    ids = torch.randint(2, 29, (3, 11))
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)
    mask = torch.arange(11)[None] < torch.tensor([[11], [4], [7]])
    given = {"input_ids": torch.where(mask, ids, 1), "attention_mask": mask.long()}
    given["token_type_ids"] = torch.randint(2, (3, 11))
    torch.testing.assert_close(ours(**given).logits[mask], theirs(**given).logits[mask], rtol=1e-5, atol=1e-5)
    for model in (ours, theirs):  # rows 2 … 14 are there for 13 tokens
        model(torch.full((1, 13), 5))
    with pytest.raises(CrateError, match=r"^sequence of 14 tokens is longer than .* 15 less position_offset 2"):
        ours(torch.full((1, 14), 5))


@torch.no_grad()
def test_a_roberta_classifier_has_the_same_logits(tmp_path):
    config = RobertaConfig(**ROBERTA, id2label={0: "no", 1: "perhaps", 2: "yes"})
    theirs = saved(RobertaForSequenceClassification, config, tmp_path)
    ours = load_released(tmp_path, report=quiet)
    assert isinstance(ours, CrateForSequenceClassification)
    assert ours.config.id2label == {0: "no", 1: "perhaps", 2: "yes"}
    ids = torch.randint(2, 29, (3, 11))
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "config"), [(GPT2LMHeadModel, GPT2Config(**GPT2)), (RobertaForMaskedLM, RobertaConfig(**ROBERTA))]
)
def test_a_converted_folder_opens_by_from_pretrained(model, config, tmp_path):
    saved(model, config, tmp_path / "theirs")
    ours = convert(tmp_path / "theirs", tmp_path / "ours", report=quiet)
    again, info = type(ours).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.randint(2, 29, (3, 11))
    assert torch.equal(again(ids).logits, ours(ids).logits)


@torch.no_grad()
def test_shards_and_half_precision_are_read(tmp_path):
    theirs = saved(GPT2LMHeadModel, GPT2Config(**GPT2), tmp_path / "one").bfloat16()
    theirs.save_pretrained(tmp_path / "many", max_shard_size="4KB")
    assert not (tmp_path / "many" / "model.safetensors").exists()
    notes = []
    ours, ids = load_released(tmp_path / "many", report=notes.append), torch.randint(29, (3, 11))
    assert notes == ["stored as torch.bfloat16: cast to torch.float32"]
    torch.testing.assert_close(ours(ids).logits, theirs.float()(ids).logits, rtol=1e-5, atol=1e-5)


def test_several_dropout_rates_become_one_and_this_is_said(tmp_path):
    saved(GPT2LMHeadModel, GPT2Config(**GPT2, attn_pdrop=0.0, embd_pdrop=0.2), tmp_path)
    notes = []
    assert load_released(tmp_path, report=notes.append).config.dropout == 0.2
    assert notes == ["a twin has one dropout: took 0.2 of embd_pdrop 0.2, attn_pdrop 0, resid_pdrop 0.1"]


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        (GPT2LMHeadModel, GPT2Config(**GPT2, n_inner=15), "the MLP's width 15 is no multiple of the width 14"),
        (GPT2LMHeadModel, GPT2Config(**GPT2, activation_function="relu"), "activation 'relu' has no twin; known: gelu"),
        (
            GPT2LMHeadModel,
            GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True),
            "scale_attn_by_inverse_layer_idx is True; a twin has False only",
        ),
        (GPT2LMHeadModel, GPT2Config(**GPT2, add_cross_attention=True), "add_cross_attention is True"),
        (GPT2ForSequenceClassification, GPT2Config(**GPT2, pad_token_id=0), "with unexpected tensors: score.weight"),
        (RobertaForMaskedLM, RobertaConfig(**ROBERTA, is_decoder=True), "is_decoder is True"),
        (
            RobertaForMaskedLM,
            RobertaConfig(**ROBERTA, position_embedding_type="relative_key"),
            "position_embedding_type is 'relative_key'; a twin has 'absolute' only",
        ),
        (RobertaForTokenClassification, RobertaConfig(**ROBERTA), "roberta without lm_head.bias, lm_head.dense.bias"),
    ],
    ids=["width", "activation", "scale", "cross", "head", "decoder", "relative", "tokens"],
)
def test_what_a_twin_cannot_be_is_refused_by_name(model, config, message, tmp_path):
    saved(model, config, tmp_path)
    with pytest.raises(CrateError) as caught:
        load_released(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert "\n" not in str(caught.value)


def test_bad_folders_are_refused(tmp_path):
    def refused(**known):
        with pytest.raises(CrateError) as caught:
            load_released(tmp_path, **known)
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"{tmp_path}: ")

    assert refused().startswith("is a folder; give the file")
    settings = {"model_type": "gpt2", **GPT2}
    for text, message in (
        ("{", "config.json cannot be read"),
        ("[1]", "config.json cannot be read"),
        ('{"model_type": "crate"}', "is a folder; give the file, or open a saved model by from_pretrained"),
        ('{"model_type": "gpt3"}', "unknown model_type 'gpt3'; did you mean 'gpt2'?"),
        (json.dumps({**settings, "n_layer": "three"}), "config.json: "),
        (json.dumps(settings), "holds no weights; expected model.safetensors or pytorch_model.bin"),
    ):
        (tmp_path / "config.json").write_text(text)
        assert refused().startswith(message)
    assert refused(heads=2, sparsity=0.1).endswith("leave out heads, sparsity")
    save_file({"wte.weight": torch.ones(29, 14)}, tmp_path / "model.safetensors")
    assert refused().startswith("gpt2 without h.0.attn.c_attn.bias, ")


def test_shapes_that_contradict_the_config_are_named(tmp_path):
    saved(GPT2LMHeadModel, GPT2Config(**GPT2), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "n_positions": 17}))
    with pytest.raises(CrateError, match=r"transformer.wpe.weight has shape \(13, 14\); expected \(17, 14\)"):
        load_released(tmp_path)
