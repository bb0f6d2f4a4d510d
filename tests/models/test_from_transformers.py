"""Models of transformers with random weights, loaded as twins: equal outputs, or a refusal by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPT2Model,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTImageProcessorPil,
    ViTMAEConfig,
    ViTMAEForPreTraining,
    ViTModel,
)

from codingrate import CrateError, from_transformers, load_released
from codingrate.models import (
    CrateForCausalLM,
    CrateForImageClassification,
    CrateForMaskedAutoencoding,
    CrateForMaskedLM,
    CrateForSequenceClassification,
    CrateTextModel,
    load_model,
)
from codingrate.models.loading import convert

from . import toys

GPT2 = {
    "n_embd": 14, "n_layer": 3, "n_head": 2, "vocab_size": 29, "n_positions": 13, "bos_token_id": 28,
    "eos_token_id": 28,
}  # fmt: skip
ROBERTA = {
    "hidden_size": 14, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 42, "vocab_size": 29,
    "max_position_embeddings": 15, "type_vocab_size": 2,
}  # fmt: skip
VIT = {
    "hidden_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 60, "image_size": 20,
    "patch_size": 4, "num_labels": 7,
}  # fmt: skip
MAE = {
    **VIT, "decoder_hidden_size": 12, "decoder_num_attention_heads": 3, "decoder_num_hidden_layers": 2,
    "decoder_intermediate_size": 36, "mask_ratio": 0.6,
}  # fmt: skip
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


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


def assert_equal_states(ours, theirs, count=None):
    """Every hidden state is equal; the twin of an autoencoder goes on to those of its decoder."""
    assert len(ours[:count]) == len(theirs)
    for mine, other in zip(ours[:count], theirs, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
        {"num_channels": 1, "patch_size": 5},
    ],
    ids=["plain", "unbiased", "gray"],
)
def test_a_vit_has_equal_logits_and_hidden_states(options, tmp_path):
    theirs = saved(ViTForImageClassification, ViTConfig(**{**VIT, **options}), tmp_path)
    pixels = torch.randn(3, theirs.config.num_channels, 20, 20)
    for source in (tmp_path, str(tmp_path), theirs):
        ours = from_transformers(source, report=quiet)
        assert isinstance(ours, CrateForImageClassification)
        mine, other = (model(pixels, output_hidden_states=True) for model in (ours, theirs))
        torch.testing.assert_close(mine.logits, other.logits, **CLOSE)
        assert_equal_states(mine.hidden_states, other.hidden_states)
    assert torch.equal(load_model(tmp_path)(pixels).logits, ours(pixels).logits)
    larger = torch.randn(2, theirs.config.num_channels, 40, 60)  # positions are resized alike
    other = theirs(larger, interpolate_pos_encoding=True)
    torch.testing.assert_close(ours(larger).logits, other.logits, **CLOSE)
    attention = ours(pixels, output_attentions=True).attentions
    theirs.set_attn_implementation("eager")
    for mine, other in zip(attention, theirs(pixels, output_attentions=True).attentions, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


@torch.no_grad()
def test_a_vit_without_classes_has_equal_features_as_dino_is_published(tmp_path):
    theirs = saved(ViTModel, ViTConfig(**VIT), tmp_path)
    ours, pixels = from_transformers(tmp_path, report=quiet), torch.randn(3, 3, 20, 20)
    assert ours.config.num_labels == 0
    body = theirs(pixels).last_hidden_state
    torch.testing.assert_close(ours.crate(pixels).last_hidden_state, body, **CLOSE)
    torch.testing.assert_close(ours.features(pixels), body[:, 0], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"norm_pix_loss": True, "qkv_bias": False}], ids=["plain", "normalized"])
def test_a_masked_autoencoder_has_equal_reconstructions_and_loss(options, tmp_path):
    theirs = saved(ViTMAEForPreTraining, ViTMAEConfig(**MAE, **options), tmp_path)
    ours = from_transformers(tmp_path, report=quiet)
    assert isinstance(ours, CrateForMaskedAutoencoding)
    pixels, noise = torch.randn(3, 3, 20, 20), torch.rand(3, 25)
    noise, _ = noise.sort()  # theirs reads kept patches in the order of the noise, ours in that of the image
    shown = torch.stack([torch.randperm(25) for _ in range(3)]).argsort()[:, :10].sort().values
    noise = torch.ones(3, 25).scatter(1, shown, noise[:, :10] / 2)
    other = theirs(pixels, noise=noise, output_hidden_states=True)
    mine = ours(pixels, mask=other.mask.bool(), output_hidden_states=True)
    torch.testing.assert_close(mine.reconstruction, other.logits, **CLOSE)
    torch.testing.assert_close(mine.loss, other.loss, **CLOSE)
    assert_equal_states(mine.hidden_states, other.hidden_states, count=4)
    assert ours.decoder_layers[0].attention.num_heads == 3
    convert(tmp_path, tmp_path / "ours", report=quiet)
    again = load_model(tmp_path / "ours")
    assert torch.equal(again(pixels, mask=other.mask.bool()).reconstruction, mine.reconstruction)


@torch.no_grad()
@pytest.mark.parametrize("model", [BertForMaskedLM, BertForPreTraining], ids=["masked-lm", "published"])
def test_bert_has_equal_logits_and_hidden_states_also_with_padding(model, tmp_path):
    theirs = saved(model, BertConfig(**ROBERTA, pad_token_id=0), tmp_path)
    ours = from_transformers(tmp_path, report=quiet)
    assert isinstance(ours, CrateForMaskedLM)
    mask = torch.arange(11)[None] < torch.tensor([[11], [4], [7]])
    given = {
        "input_ids": torch.where(mask, torch.randint(1, 29, (3, 11)), 0), "attention_mask": mask.long(),
        "token_type_ids": torch.randint(2, (3, 11)),
    }  # fmt: skip
    mine, other = (model(**given, output_hidden_states=True) for model in (ours, theirs))
    logits = other.logits if model is BertForMaskedLM else other.prediction_logits
    torch.testing.assert_close(mine.logits[mask], logits[mask], **CLOSE)
    assert_equal_states([z[mask] for z in mine.hidden_states], [z[mask] for z in other.hidden_states])


@torch.no_grad()
def test_the_first_bert_files_name_their_norms_as_tensorflow_does(tmp_path):
    theirs = saved(BertForMaskedLM, BertConfig(**ROBERTA), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {".weight": ".gamma", ".bias": ".beta"}
    for key in [key for key in tensors if "LayerNorm" in key]:
        stem, dot, kind = key.rpartition(".")
        tensors[stem + old[dot + kind]] = tensors.pop(key)
    save_file(tensors, tmp_path / "model.safetensors")
    ids = torch.randint(2, 29, (3, 11))
    torch.testing.assert_close(from_transformers(tmp_path)(ids).logits, theirs(ids).logits, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(("model", "config"), [(BertModel, BertConfig), (RobertaModel, RobertaConfig)])
def test_a_body_alone_has_equal_tokens(model, config, tmp_path):
    theirs = saved(model, config(**ROBERTA), tmp_path)
    ours, ids = from_transformers(tmp_path, report=quiet), torch.randint(2, 29, (3, 11))
    assert isinstance(ours, CrateTextModel)
    torch.testing.assert_close(ours(ids).last_hidden_state, theirs(ids).last_hidden_state, **CLOSE)


@torch.no_grad()
def test_a_bert_classifier_has_equal_logits(tmp_path):
    theirs = saved(BertForSequenceClassification, BertConfig(**ROBERTA, num_labels=3), tmp_path)
    ours, ids = from_transformers(tmp_path, report=quiet), torch.randint(2, 29, (3, 11))
    assert isinstance(ours, CrateForSequenceClassification)
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, **CLOSE)


def test_a_converted_folder_keeps_the_image_processor(tmp_path):
    saved(ViTForImageClassification, ViTConfig(**VIT), tmp_path / "theirs")
    processor = ViTImageProcessorPil(size={"height": 20, "width": 20}, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    processor.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours", report=quiet)
    kept, own = (json.loads((tmp_path / name / "preprocessor_config.json").read_text()) for name in ("theirs", "ours"))
    assert kept == own
    assert own["image_std"] == [0.25] * 3


def test_our_own_models_are_no_models_of_transformers():
    with pytest.raises(CrateError, match="CrateForImageClassification is a model of this package already"):
        from_transformers(CrateForImageClassification(toys.vision()))


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
    ours = from_transformers(tmp_path, report=quiet)
    assert isinstance(ours, CrateForCausalLM)
    assert not ours.training
    ids = torch.randint(29, (3, 11))
    mine, other = (model(ids, labels=ids, output_hidden_states=True) for model in (ours, theirs))
    torch.testing.assert_close(mine.logits, other.logits, **CLOSE)
    assert_equal_states(mine.hidden_states, other.hidden_states)
    torch.testing.assert_close(mine.loss, other.loss, **CLOSE)
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
    ours, ids = from_transformers(tmp_path, report=quiet), torch.randint(29, (3, 11))
    body = ours.crate(input_ids=ids).last_hidden_state
    torch.testing.assert_close(body, theirs(ids).last_hidden_state, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_roberta_has_the_same_logits_also_with_padding(tied, tmp_path):
    theirs = saved(RobertaForMaskedLM, RobertaConfig(**ROBERTA, tie_word_embeddings=tied), tmp_path)
    ours = from_transformers(tmp_path, report=quiet)
    assert isinstance(ours, CrateForMaskedLM)
    ids = torch.randint(2, 29, (3, 11))
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, **CLOSE)
    mask = torch.arange(11)[None] < torch.tensor([[11], [4], [7]])
    given = {"input_ids": torch.where(mask, ids, 1), "attention_mask": mask.long()}
    given["token_type_ids"] = torch.randint(2, (3, 11))
    mine, other = (model(**given, output_hidden_states=True) for model in (ours, theirs))
    torch.testing.assert_close(mine.logits[mask], other.logits[mask], **CLOSE)
    assert_equal_states([z[mask] for z in mine.hidden_states], [z[mask] for z in other.hidden_states])
    for model in (ours, theirs):  # rows 2 … 14 are there for 13 tokens
        model(torch.full((1, 13), 5))
    with pytest.raises(CrateError, match=r"^sequence of 14 tokens is longer than .* 15 less position_offset 2"):
        ours(torch.full((1, 14), 5))


@torch.no_grad()
def test_a_roberta_classifier_has_the_same_logits(tmp_path):
    config = RobertaConfig(**ROBERTA, id2label={0: "no", 1: "perhaps", 2: "yes"})
    theirs = saved(RobertaForSequenceClassification, config, tmp_path)
    ours = from_transformers(tmp_path, report=quiet)
    assert isinstance(ours, CrateForSequenceClassification)
    assert ours.config.id2label == {0: "no", 1: "perhaps", 2: "yes"}
    ids = torch.randint(2, 29, (3, 11))
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, **CLOSE)


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
    ours, ids = from_transformers(tmp_path / "many", report=notes.append), torch.randint(29, (3, 11))
    assert notes == ["stored as torch.bfloat16: cast to torch.float32"]
    torch.testing.assert_close(ours(ids).logits, theirs.float()(ids).logits, **CLOSE)


def test_several_dropout_rates_become_one_and_this_is_said(tmp_path):
    saved(GPT2LMHeadModel, GPT2Config(**GPT2, attn_pdrop=0.0, embd_pdrop=0.2), tmp_path)
    notes = []
    assert from_transformers(tmp_path, report=notes.append).config.dropout == 0.2
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
        (ViTForMaskedImageModeling, ViTConfig(**VIT), "vit with unexpected tensors: decoder.0.bias"),
        (
            ViTMAEForPreTraining,
            ViTMAEConfig(**{**MAE, "decoder_intermediate_size": 24}),
            "decoder_intermediate_size is 24",
        ),
        (ViTModel, ViTConfig(**{**VIT, "patch_size": [4, 5]}), "a twin has square patches only"),
        (BertForMaskedLM, BertConfig(**ROBERTA, hidden_act="gelu_new"), "a twin's masked-LM head has 'gelu' only"),
        (RobertaForTokenClassification, RobertaConfig(**ROBERTA), "roberta without lm_head.bias, lm_head.dense.bias"),
    ],
    ids=[
        "width",
        "activation",
        "scale",
        "cross",
        "head",
        "decoder",
        "relative",
        "pixels",
        "mae",
        "patches",
        "gelu",
        "tokens",
    ],
)
def test_what_a_twin_cannot_be_is_refused_by_name(model, config, message, tmp_path):
    saved(model, config, tmp_path)
    with pytest.raises(CrateError) as caught:
        from_transformers(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert "\n" not in str(caught.value)


def test_bad_folders_are_refused(tmp_path):
    def refused():
        with pytest.raises(CrateError) as caught:
            from_transformers(tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"{tmp_path}: ")

    assert refused().startswith("holds no model of transformers")
    settings = {"model_type": "gpt2", **GPT2}
    for text, message in (
        ("{", "config.json cannot be read"),
        ("[1]", "config.json cannot be read"),
        (
            '{"model_type": "crate"}',
            "holds no model of transformers; a model of this package is loaded by codingrate.load",
        ),
        ('{"model_type": "gpt3"}', "unknown model_type 'gpt3'; did you mean 'gpt2'?"),
        (json.dumps({**settings, "n_layer": "three"}), "config.json: "),
        (json.dumps(settings), "holds no weights; expected model.safetensors or pytorch_model.bin"),
    ):
        (tmp_path / "config.json").write_text(text)
        assert refused().startswith(message)
    with pytest.raises(CrateError, match=r"its config.json says everything; leave out heads, sparsity"):
        convert(tmp_path, tmp_path / "out", heads=2, sparsity=0.1)
    with pytest.raises(CrateError, match="is a folder; give the file, or load a model of transformers by from_transf"):
        load_released(tmp_path)
    save_file({"wte.weight": torch.ones(29, 14)}, tmp_path / "model.safetensors")
    assert refused().startswith("gpt2 without h.0.attn.c_attn.bias, ")


def test_shapes_that_contradict_the_config_are_named(tmp_path):
    saved(GPT2LMHeadModel, GPT2Config(**GPT2), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "n_positions": 17}))
    with pytest.raises(CrateError, match=r"transformer.wpe.weight has shape \(13, 14\); expected \(17, 14\)"):
        from_transformers(tmp_path)
