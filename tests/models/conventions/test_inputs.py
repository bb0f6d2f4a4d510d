"""Inputs, outputs and settings are those that a user of transformers expects."""

import copy
import inspect
import json
import pickle

import pytest
import torch
from PIL import Image
from transformers import AttentionInterface, AutoModel, AutoModelForCausalLM, DynamicCache, pipeline

from codingrate.models import CrateConfig, CrateModel, CrateTextModel, load_model

from ... import refusals
from .. import toys
from .cases import ATTENTION, CACHED, FAMILIES, TEXT, VISION, build, cases, inputs, output

refused = refusals.refused
every_attention = pytest.mark.parametrize("attention", ATTENTION)
compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def without_labels(family, batch=3):
    return {name: value for name, value in inputs(family, batch).items() if name != "labels"}


@torch.no_grad()
@cases(*FAMILIES)
def test_the_main_input_comes_first(family, attention):
    model, given = build(family, attention), without_labels(family)
    name = "input_ids" if family in (*TEXT, "gpt2") else "pixel_values"
    assert next(iter(inspect.signature(model.forward).parameters)) == model.main_input_name == name
    main = given.pop(name)
    torch.testing.assert_close(output(model, {**given, name: main}), toys.main_output(model(main, **given)))


@torch.no_grad()
@every_attention
def test_a_body_is_of_the_modality_of_its_config(attention, tmp_path):
    for family, kind in (("body", CrateModel), ("text-body", CrateTextModel)):
        model, given = build(family, attention), without_labels(family)
        model.save_pretrained(tmp_path / family)
        copies = [AutoModel.from_pretrained(tmp_path / family), CrateModel.from_pretrained(tmp_path / family)]
        copies += [load_model(tmp_path / family), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for other in (model, *copies):
            assert type(other) is kind
            torch.testing.assert_close(output(other, given), output(model, given))


@torch.no_grad()
@cases(*TEXT)
def test_the_last_hidden_state_is_what_the_head_reads(family, attention):
    fields = {} if attention == "control" else {"final_norm": True}
    model, given = build(family, attention, **fields), without_labels(family)
    states = model(**given, output_hidden_states=True).hidden_states
    body = model.base_model(**given).last_hidden_state
    assert len(states) == 3
    torch.testing.assert_close(states[-1], body)
    if family in ("causal-lm", "gpt2"):
        torch.testing.assert_close(model.get_output_embeddings()(states[-1]), model(**given).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_settings_are_those_of_the_modality(family, tmp_path):
    build(family, "mssa").save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    image = {"patch_size", "image_size", "mask_ratio", "prototypes", "num_channels", "decoder_type"}
    text = {"vocab_size", "max_position_embeddings", "pad_token_id", "use_cache", "prediction_transform"}
    own, other = (text, image) if family in TEXT else (image, text)
    assert own <= saved.keys()
    assert not other & saved.keys()
    assert CrateConfig.from_pretrained(tmp_path).to_diff_dict().keys() == saved.keys()


def test_names_of_other_models_are_understood_and_reload(tmp_path):
    config = CrateConfig(modality="text", n_embd=20, n_layer=3, n_head=5, layer_norm_epsilon=1e-3)
    config.n_positions = 17
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (20, 3, 5)
    assert (config.layer_norm_eps, config.max_position_embeddings) == (1e-3, 17)
    config.save_pretrained(tmp_path)
    assert CrateConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    refused("layer_norm_eps", CrateConfig, layer_norm_ep=1e-3)


@torch.no_grad()
@cases("causal-lm")
def test_the_config_says_whether_to_cache(family, attention):
    model, given = build(family, attention), without_labels(family)
    model.config.use_cache = True
    if attention in ("tssa", "rate-gradient"):
        refused("does not support caching", model, **given)
        return
    assert isinstance(model(**given).past_key_values, DynamicCache)
    assert model(**given, use_cache=False).past_key_values is None
    model.config.use_cache = False
    assert model(**given).past_key_values is None
    assert isinstance(model(**given, use_cache=True).past_key_values, DynamicCache)


def test_without_a_setting_only_generation_caches(tmp_path):
    model, given = build("causal-lm", "mssa"), without_labels("causal-lm")
    assert model(**given).past_key_values is None
    assert model.generation_config.use_cache is not False
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    result = again.generate(given["input_ids"], max_new_tokens=2, do_sample=False, return_dict_in_generate=True)
    assert result.past_key_values.get_seq_length() == 12


@torch.no_grad()
@cases("masked-lm", "causal-lm", attention=CACHED)
def test_masks_of_pairs_are_boolean_or_added(family, attention):
    model, given = build(family, attention), without_labels(family)
    n = given["input_ids"].shape[1]
    plain = output(model, given)
    pairs = torch.ones(1, 1, n, n, dtype=torch.bool)
    pairs = pairs.tril() if family != "masked-lm" else pairs
    kinds = {"boolean": pairs, "added": torch.zeros(1, 1, n, n).masked_fill(~pairs, torch.finfo(torch.float32).min)}
    for kind, mask in kinds.items():
        torch.testing.assert_close(output(model, {**given, "attention_mask": mask}), plain, msg=kind)
    kinds["added"][..., 5:, 0] = torch.finfo(torch.float32).min
    hidden = output(model, {**given, "attention_mask": kinds["added"]})
    torch.testing.assert_close(hidden, output(model, {**given, "attention_mask": kinds["added"] == 0}))
    assert float((hidden - plain).abs().max()) > 1e-3


@torch.no_grad()
@cases("causal-lm")
def test_packed_sequences_do_not_see_each_other(family, attention):
    model, ids = build(family, attention, use_cache=False), inputs(family)["input_ids"]
    lengths = (4, 1, 6)
    positions = torch.cat([torch.arange(length) for length in lengths])[None].expand(3, -1)
    if attention in ("tssa", "rate-gradient"):
        refused("pass one sequence per row", model, ids, position_ids=positions)
        return
    packed = model(ids, position_ids=positions).logits
    alone = torch.cat([model(part).logits for part in ids.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone)
    if attention != "control":  # GPT-2 lets them see each other if it caches
        torch.testing.assert_close(model(ids, position_ids=positions, use_cache=True).logits, alone)
    long = ids.repeat(1, 2)  # more tokens than positions
    twice = model(long, position_ids=torch.arange(11).repeat(3, 2)).logits
    torch.testing.assert_close(twice, model(ids).logits.repeat(1, 2, 1))


def strange(*args, **kwargs):
    raise AssertionError("called")


@torch.no_grad()
@cases(*FAMILIES)
def test_attention_functions_are_used_or_refused(family, attention):
    model, given = build(family, attention), without_labels(family)
    fused = output(model, given)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(output(model, given), fused)
    AttentionInterface.register("strange", strange)
    if attention == "control":
        model.set_attn_implementation("strange")
        with pytest.raises(AssertionError, match="called"):
            model(**given)
        return
    for name in ("strange", "flash_attention_2", "flex_attention"):
        refused(f"attn_implementation '{name}' is not supported", model.set_attn_implementation, name)
        config = copy.deepcopy(model.config)
        config._attn_implementation = name
        refused("use 'sdpa' or 'eager'", type(model), config)


@torch.no_grad()
@cases("masked-lm", attention=ATTENTION, controls=False)
def test_eager_attention_calls_no_fused_kernel(family, attention, monkeypatch):
    model, given = build(family, attention), without_labels(family)
    model.set_attn_implementation("eager")
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", strange)
    output = model(**given)
    assert output.attentions is None
    assert output.logits.isfinite().all()


@cases(*FAMILIES)
def test_every_second_layer_is_checkpointed(family, attention):
    depth = "n_layer" if family == "gpt2" else "num_hidden_layers"
    model = build(family, attention, **{depth: 4})
    model.gradient_checkpointing_enable(every_n_layers=2)
    flags = [
        module.gradient_checkpointing
        for module in model.modules()
        if "Layer" in type(module).__name__ or "Block" in type(module).__name__
        if hasattr(module, "gradient_checkpointing")
    ]
    assert flags == [True, False] * (len(flags) // 2)
    assert len(flags) >= 4
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@torch.no_grad()
@cases(*VISION)
def test_pixels_are_cast_to_the_dtype_of_the_weights(family, attention):
    model, given = build(family, attention).bfloat16(), without_labels(family)
    half = {**given, "pixel_values": given["pixel_values"].bfloat16()}
    result = output(model, given)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, output(model, half))


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["class", "mean"])
@every_attention
def test_image_features_are_pooled(attention, pooling, tmp_path):
    model = build("body", attention, pooling=pooling, image_size=28, final_norm=True)
    model.save_pretrained(tmp_path)
    extract = pipeline("image-feature-extraction", model=str(tmp_path), pool=True)
    image = Image.linear_gradient("L").convert("RGB")
    pixels = extract.image_processor(image, return_tensors="pt")["pixel_values"]
    result = model(pixels)
    tokens = result.last_hidden_state
    torch.testing.assert_close(result.pooler_output, tokens[:, 0] if pooling == "class" else tokens.mean(1))
    torch.testing.assert_close(torch.tensor(extract(image)), result.pooler_output)


@compiler
@torch.no_grad()
@cases(*FAMILIES, costly=True)
def test_an_export_with_batch_two_answers_batch_seven(family, attention):
    model = build(family, attention, **({"use_cache": False} if family in (*TEXT, "gpt2") else {}))
    axes = {0: torch.export.Dim("batch")}
    given = without_labels(family, 2)
    program = torch.export.export(model, (), given, dynamic_shapes=dict.fromkeys(given, axes))
    for batch in (7, 1):
        other = without_labels(family, batch)
        torch.testing.assert_close(output(program.module(), other), output(model, other))


@every_attention
def test_continuous_batching_is_refused(attention):
    refused("use generate", build("causal-lm", attention).generate_batch, inputs=[[3, 4], [5]], max_new_tokens=2)
