"""Saved folders that are damaged, incomplete or hostile: each is refused in one line, and nothing in them ever runs."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageClassification

from codingrate.models import CrateForCausalLM, CrateForMaskedLM, load_model
from tests.refusals import refused

from . import toys
from .test_released_refusals import Evil

TASK = "image-classification"


@pytest.fixture
def folder(tmp_path):
    toys.build(TASK).save_pretrained(tmp_path)
    return tmp_path


def change(folder, name="config.json", **settings):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def change_weights(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def refuse(folder, message):
    """Refuse to load the folder, whose name is in front of the message."""
    assert refused(message, load_model, folder).startswith(f"{folder}: ")


@pytest.mark.parametrize("entry", ["AutoConfig", "AutoModelForImageClassification", "AutoTokenizer"])
@pytest.mark.parametrize("known", [True, False], ids=["crate", "unknown model type"])
def test_code_in_the_folder_is_not_run_after_a_yes(folder, monkeypatch, entry, known):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    witness = folder / "ran"
    (folder / "code.py").write_text(
        f"open({str(witness)!r}, 'w')\nfrom transformers import PreTrainedConfig\nclass C(PreTrainedConfig): pass\n"
    )
    change(folder, auto_map={entry: "code.C"}, **({} if known else {"model_type": "foreign"}))
    refuse(folder, "config.json names code to run (auto_map), which is never run; remove the entry")
    assert not witness.exists()


def test_the_code_of_the_test_above_would_run(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [str(tmp_path / "modules"), *__import__("sys").path])
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    witness = folder / "ran"
    (folder / "code.py").write_text(
        f"open({str(witness)!r}, 'w').close()\nfrom transformers import PreTrainedConfig\n"
        "class C(PreTrainedConfig):\n    model_type = 'foreign'\n"
    )
    change(folder, auto_map={"AutoConfig": "code.C"}, model_type="foreign")
    AutoConfig.from_pretrained(folder)
    assert witness.exists()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "preprocessor_config.json", "generation_config.json"])
def test_code_named_by_other_files(folder, name):
    (folder / name).write_text(json.dumps({"auto_map": {"AutoTokenizer": ["code.C", None]}}))
    refuse(folder, f"{name} names code to run")


def test_code_beside_the_model_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    toys.build("causal-lm").save_pretrained(tmp_path)
    (tmp_path / "custom_generate").mkdir()
    (tmp_path / "custom_generate" / "generate.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/no/such", "peft_type": "X"}))
    load_model(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    CrateForCausalLM.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_pickles_are_not_opened(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Evil(folder / "ran")))
    refuse(folder, "holds no weights; expected model.safetensors")
    assert not (folder / "ran").exists()


WRONG_SETTINGS = [
    (
        {"attn_implementation": "kernels-community/flash-attn"},
        "attn_implementation is 'kernels-community/flash-attn'",
    ),
    ({"_attn_implementation": "flash_attention_2"}, "attn_implementation is 'flash_attention_2'"),
    ({"attn_implementation": {"": "flex_attention"}}, "attn_implementation is 'flex_attention'"),
    ({"attn_implementation": 3}, "attn_implementation is 3"),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config is not supported"),
    ({"per_layer_config": {"0": {}}}, "per_layer_config is not supported"),
    ({"to_dict": "x"}, "to_dict is not supported"),
    ({"__class__": "x"}, "__class__ is not supported"),
    ({"architectures": ["load_model"]}, "holds a crate model (load_model), not one of this package"),
    ({"architectures": ["CratePreTrainedModel"]}, "not one of this package"),
    ({"architectures": ["os.system"]}, "not one of this package"),
    ({"architectures": [["CrateModel"]]}, "not one of this package"),
    ({"architectures": []}, "not one of this package"),
    ({"architectures": {"a": 1}}, "not one of this package"),
    ({"architectures": ["CrateForMaskedLM"]}, "CrateForMaskedLM needs modality='text', not 'vision'"),
    ({"architectures": ["CrateTextModel"]}, "CrateTextModel needs modality='text', not 'vision'"),
    ({"model_type": ["crate"]}, "not one of this package"),
    ({"dtype": "int32"}, "dtype is torch.int32; use float32"),
    ({"dtype": "nn"}, "dtype is <module"),
    ({"dtype": "no_such"}, "the config cannot be used"),
    ({"dtype": 3}, "dtype is 3; use float32"),
    ({"id2label": {"a": "b"}}, "the config cannot be used"),
    ({"id2label": {"5": "b"}}, "id2label must name the labels 0, 1, …"),
    ({"id2label": [1, 2]}, "the config cannot be used"),
    ({"label2id": {"a": 99}}, "id2label must name the labels"),
    ({"hidden_size": {"a": 12}}, "'hidden_size' expected int, got dict"),
    ({"hidden_size": "12"}, "'hidden_size' expected int, got str"),
    ({"hidden_size": True}, "'hidden_size' expected int, got bool"),
    ({"image_size": [[21], 14]}, "'image_size'"),
    ({"num_hidden_layers": 200_000}, "num_hidden_layers is 200000; it must be at least 1 and at most 1000"),
    ({"id2label": None, "num_labels": 10**9}, "num_labels is 1000000000; it must be a whole number from 0 to 1048576"),
    ({"id2label": None, "num_labels": "ten"}, "num_labels is 'ten'; it must be a whole number"),
    ({"image_size": 7 * 10**6}, "number of patches is 1000000000000; it must be at most 1048576"),
    ({"step_size": float("nan")}, "step_size is nan"),
    ({"layer_norm_eps": 0}, "layer_norm_eps is 0; it must be above 0"),
    ({"head_dim": -1}, "head_dim is -1; it must be at least 1"),
]


def test_settings_that_are_refused(folder):
    config = (folder / "config.json").read_bytes()
    for settings, message in WRONG_SETTINGS:
        (folder / "config.json").write_bytes(config)
        change(folder, **settings)
        refuse(folder, message)


def test_ids_of_labels_may_be_strings_as_in_the_guides_of_transformers(folder, tmp_path):
    names = ["bee", "cat", "dog"]
    labels = {
        "label2id": {name: str(i) for i, name in enumerate(names)},
        "id2label": {str(i): name for i, name in enumerate(names)},
    }
    change(folder, **labels)
    tuned = AutoModelForImageClassification.from_pretrained(folder, ignore_mismatched_sizes=True, **labels)
    tuned.save_pretrained(tmp_path / "tuned")
    for model in (tuned, load_model(tmp_path / "tuned"), type(tuned).from_pretrained(tmp_path / "tuned")):
        assert model.config.id2label == dict(enumerate(names))
        assert model.config.label2id == {name: i for i, name in enumerate(names)}
        assert model.head.out_features == 3


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"a":', "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}", "\x00", '"crate"'],
)
def test_configs_that_are_no_settings(folder, text):
    (folder / "config.json").write_text(text)
    refuse(folder, "config.json cannot be read")
    (folder / "config.json").write_bytes(b"\xff\xfe{}")
    refuse(folder, "config.json cannot be read")


def test_a_config_that_is_a_folder(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    refuse(folder, "holds no saved model")


WEIGHT = "crate.layers.1.attention.output.bias"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tensors: tensors.pop("head.weight"), "the weights lack head.weight; the saved model is incomplete"),
        (lambda tensors: tensors.pop(WEIGHT), f"the weights lack {WEIGHT}"),
        (lambda tensors: tensors.update(surplus=torch.ones(2)), "the weights hold surplus, which the model"),
        (lambda tensors: tensors.update({WEIGHT: torch.ones(17)}), f"{WEIGHT} has shape (17,); config.json says (15,)"),
        (lambda tensors: tensors.update({WEIGHT: torch.ones(15, dtype=torch.int64)}), f"{WEIGHT} is torch.int64"),
        (lambda tensors: tensors[WEIGHT].fill_(torch.inf), f"{WEIGHT} holds NaN or infinity"),
        (lambda tensors: tensors[WEIGHT].view(-1)[5:6].fill_(torch.nan), f"{WEIGHT} holds NaN or infinity"),
        (
            lambda tensors: tensors.update({WEIGHT: torch.full((15,), 1e300, dtype=torch.float64)}),
            f"{WEIGHT} holds NaN or infinity",
        ),
        (lambda tensors: tensors.clear(), "model.safetensors holds no tensors"),
    ],
)
def test_weights_that_do_not_fit_the_config(folder, edit, message):
    change_weights(folder, edit)
    refuse(folder, message)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_cut_weights(folder, share):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refuse(folder, "model.safetensors is truncated or not a safetensors file")


def test_one_of_two_tied_weights_is_enough(tmp_path):
    model = toys.build("masked-lm")
    assert model.head.weight is model.crate.embedding.words.weight
    model.save_pretrained(tmp_path)
    for keep, drop in (
        ("head.weight", "crate.embedding.words.weight"),
        ("crate.embedding.words.weight", "head.weight"),
    ):
        change_weights(tmp_path, lambda tensors, keep=keep, drop=drop: _rename(tensors, drop, keep))
        again = load_model(tmp_path)
        assert isinstance(again, CrateForMaskedLM)
        assert again.head.weight is again.crate.embedding.words.weight
        assert torch.equal(again.head.weight, model.head.weight)
    change_weights(tmp_path, lambda tensors: tensors.pop("crate.embedding.words.weight"))
    refuse(tmp_path, "the weights lack crate.embedding.words.weight, head.weight")


def _rename(tensors, old, new):
    tensors[new] = tensors.pop(old) if old in tensors else tensors[new]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_keep_the_precision_of_the_config(tmp_path, dtype):
    model = toys.build(TASK).to(dtype)
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert {tensor.dtype for tensor in again.state_dict().values()} == {dtype}
    change(tmp_path, dtype=None)
    assert {tensor.dtype for tensor in load_model(tmp_path).state_dict().values()} == {dtype}


def test_shards_are_read_and_lead_nowhere_else(tmp_path):
    model = toys.build(TASK)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    index = tmp_path / "model.safetensors.index.json"
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(load_model(tmp_path).head.weight, model.head.weight)
    save_file({"head.weight": torch.ones(1)}, tmp_path.parent / "elsewhere.safetensors")
    index.write_text(json.dumps({"weight_map": {"head.weight": "../elsewhere.safetensors"}}))
    refuse(tmp_path, "elsewhere.safetensors no such file")
    for broken in ("[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "{"):
        index.write_text(broken)
        refuse(tmp_path, "model.safetensors.index.json")


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": "hot", "do_sample": True}, {"max_new_tokens": -3}, {"watermarking_config": {"a": 3}},
        {"eos_token_id": "x"}, {"eos_token_id": [1, 29]}, {"bos_token_id": -1}, {"num_beams": "3"}, {"to_dict": 3},
        {"cache_implementation": "foo"}, {"cache_implementation": [3]}, {"top_p": float("nan")}, {"compile_config": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_generation_config(tmp_path, settings):
    toys.build("causal-lm").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    refuse(tmp_path, "generation_config.json: ")


def test_settings_of_generation_come_back(tmp_path):
    model = toys.build("causal-lm")
    model.generation_config.update(temperature=0.5, do_sample=True, eos_token_id=[3, 5], max_new_tokens=7)
    model.save_pretrained(tmp_path)
    assert load_model(tmp_path).generation_config.to_dict() == model.generation_config.to_dict()
