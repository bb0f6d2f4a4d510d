"""Tools that wrap, merge, move or quantize weights act on what the models compute."""

import accelerate
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ...refusals import refused
from .cases import ATTENTION, FAMILIES, build, cases, inputs, loss, output

TARGETS = {
    "linear": {"target_modules": "all-linear"},
    "subspaces": {"target_modules": ["attention.project"]},
    "dictionary": {"target_modules": [], "target_parameters": ["sparsifier.dictionary"]},
}


def adapted(model, attention, target):
    """Return the model with random adapters of rank 2."""
    transposed = attention == "control" and model.config.model_type == "gpt2"
    config = LoraConfig(r=2, lora_alpha=4, init_lora_weights=False, fan_in_fan_out=transposed, **TARGETS[target])
    return get_peft_model(model, config)


def targets(attention):
    return ["linear"] if attention == "control" else list(TARGETS)


@torch.no_grad()
@cases(*FAMILIES, costly=True)
def test_lora_has_an_effect_which_merging_keeps(family, attention):
    given = {key: x.double() if x.is_floating_point() else x for key, x in inputs(family).items()}
    for target in targets(attention):
        model = build(family, attention).double()
        base = output(model, given)
        wrapped = adapted(model, attention, target)
        adapted_output = output(wrapped, given)
        assert float((adapted_output - base).abs().max()) > 1e-3, target
        with wrapped.disable_adapter():
            torch.testing.assert_close(output(wrapped, given), base, rtol=1e-5, atol=1e-5)
        merged = wrapped.merge_and_unload()
        torch.testing.assert_close(output(merged, given), adapted_output, rtol=1e-5, atol=1e-5)


@cases(*FAMILIES, costly=True)
def test_only_adapters_are_trained(family, attention):
    given = inputs(family)
    for target in targets(attention):
        model = adapted(build(family, attention), attention, target).train()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
        loss(model, family, given).backward()
        optimizer.step()
        changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert all("lora_" in name for name in trained), target
        assert changed == trained, target


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "fields", "names"),
    [
        ("image-classification", {"sparsifier": "odl"}, ["sparsifier.dictionary", "sparsifier.synthesis"]),
        ("image-classification", {"sparsifier": "prox", "orthogonality": "parametrize"}, ["sparsifier.dictionary"]),
        ("masked-autoencoding", {}, ["sparsifier.dictionary", "synthesis.dictionary"]),
    ],
)
def test_lora_on_other_dictionaries(family, fields, names):
    model, given = build(family, "mssa", **fields), inputs(family)
    base = output(model, given)
    wrapped = get_peft_model(
        model, LoraConfig(r=2, init_lora_weights=False, target_modules=[], target_parameters=names)
    )
    adapted_output = output(wrapped, given)
    assert float((adapted_output - base).abs().max()) > 1e-3
    refused("merge the adapter first", wrapped.base_model.model.orthogonality)
    merged = wrapped.merge_and_unload()
    torch.testing.assert_close(output(merged, given), adapted_output, rtol=1e-5, atol=1e-5)
    assert merged.orthogonality()


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTION)
def test_merging_without_a_pass_in_between_is_noticed(attention):
    """ISTA keeps a product of its dictionary; an adapter is merged through `.data`, which no counter shows."""
    model, given = build("image-classification", attention).double(), inputs("image-classification")
    base = output(model, given)
    merged = adapted(model, attention, "dictionary").merge_and_unload()
    changed = output(merged, given)
    assert float((changed - base).abs().max()) > 1e-3
    again = build("image-classification", attention).double()
    again.load_state_dict(merged.state_dict())
    torch.testing.assert_close(output(again, given), changed)


@pytest.mark.parametrize("attention", ["mssa", "mssa-tied", "tssa", "rate-gradient"])
@pytest.mark.parametrize("orthogonality", ["none", "parametrize", "per-head"])
def test_bases_are_those_that_the_adapter_gives(attention, orthogonality):
    model = adapted(build("image-classification", attention, orthogonality=orthogonality), attention, "subspaces")
    seen = [layer.attention.bases.detach().clone() for layer in model.base_model.model.crate.layers]
    merged = model.merge_and_unload()
    for layer, bases in zip(merged.crate.layers, seen, strict=True):
        torch.testing.assert_close(layer.attention.bases, bases)


def offloads(tmp_path):
    """Return the ways to keep weights elsewhere than on the device that computes."""
    return {
        "cpu": lambda model: accelerate.cpu_offload(model, torch.device("cpu")),
        "disk": lambda model: accelerate.disk_offload(model, str(tmp_path / "disk"), torch.device("cpu")),
        "buffers": lambda model: accelerate.cpu_offload(model, torch.device("cpu"), offload_buffers=True),
    }


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning:accelerate", "ignore::FutureWarning")
@cases(*FAMILIES, costly=True)
def test_offloaded_weights_give_the_same_output(family, attention, tmp_path):
    given = inputs(family)
    for name, offload in offloads(tmp_path).items():
        expected, model = output(build(family, attention), given), build(family, attention)
        offload(model)
        assert any(parameter.is_meta for parameter in model.parameters()), name
        for _ in range(2):
            torch.testing.assert_close(output(model, given), expected, rtol=0, atol=1e-6, msg=name)
        assert all(getattr(module, "_cached", None) is None for module in model.modules()), "nothing stays in memory"


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*device_map keys do not match any submodules:UserWarning")  # the mask token
@cases(*FAMILIES, costly=True)
def test_a_device_map_with_little_memory_gives_the_same_output(family, attention, tmp_path):
    model, given = (
        build(family, attention, **{"n_layer" if family == "gpt2" else "num_hidden_layers": 7}),
        inputs(family),
    )
    expected = output(model, given)
    model.save_pretrained(tmp_path / "model")
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    again = type(model).from_pretrained(
        tmp_path / "model", device_map="auto", max_memory={"cpu": size // 4 * 3}, offload_folder=str(tmp_path / "disk")
    )
    assert set(map(str, again.hf_device_map.values())) == {"cpu", "disk"}
    torch.testing.assert_close(output(again, given), expected, rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@cases(*FAMILIES, controls=False)
def test_quantized_projections_are_near(family, attention):
    model, given = build(family, attention, hidden_size=60), inputs(family)
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    z = torch.randn(3, 5, 60)
    for layer, exact in zip(small.base_model.layers, model.base_model.layers, strict=True):
        assert not isinstance(layer.attention.project, nn.Linear)
        for result, expected in zip(layer.attention.project_heads(z), exact.attention.project_heads(z), strict=True):
            assert 0 < float((result - expected).norm() / expected.norm()) < 0.03
        if attention != "mhsa":
            gap = (layer.attention.bases - exact.attention.bases).norm() / exact.attention.bases.norm()
            assert 0 < float(gap) < 0.03
    assert output(small, given).isfinite().all()
