"""Models by name."""

import pytest
import torch

import codingrate
from codingrate import CrateError, create_model, list_models
from codingrate.models import build_config, presets

NAMES = {
    *(f"crate-{size}-patch16-224" for size in ("tiny", "small", "base", "large")),
    *(f"crate-{size}-patch8-224-in21k" for size in ("tiny", "small", "base")),
    *(f"crate-mae-{size}" for size in ("small", "base", "large")),
    *(f"crate-dino-{size}" for size in ("small-patch16", "base-patch8")),
    *(f"crate-bert-{size}" for size in ("medium", "base", "large")),
    *(f"crate-gpt-{size}" for size in ("small", "base", "large")),
    *(f"crate-alpha-{size}" for size in ("base-patch16", "base-patch8", "large-patch14", "large-patch8")),
    *(f"vit-{size}-patch16-224" for size in ("tiny", "small", "base", "large")),
    *(f"vit-{size}-patch8-224-in21k" for size in ("tiny", "small", "base")),
    *(f"vit-dino-{size}" for size in ("small-patch16", "small-patch8", "base-patch8")),
    *(f"vit-mae-{size}" for size in ("small", "base", "large")),
    *(f"bert-{size}" for size in ("medium", "base", "large")),
    *(f"gpt2-{size}" for size in ("small", "base", "large")),
}


def test_the_names_are_the_documented_ones():
    assert list_models() == sorted(NAMES)


def test_a_pattern_selects():
    assert list_models("crate-mae-*") == ["crate-mae-base", "crate-mae-large", "crate-mae-small"]
    assert list_models("vit-*-224") == sorted(
        name for name in NAMES if name.startswith("vit-") and name.endswith("-224")
    )
    assert list_models("crate-gpt-base") == ["crate-gpt-base"]
    assert list_models("nothing*") == []


def test_every_preset_builds_and_says_where_it_is_from():
    for name in sorted(NAMES):
        check_preset(name)


def check_preset(name):
    with torch.device("meta"):
        model = create_model(name)
    assert type(model).__name__ == presets.preset(name).model
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert presets.preset(name).source
    twin = model.config.attention == "mhsa" and model.config.sparsifier == "mlp"
    assert twin == (not name.startswith("crate-"))
    text = any(word in name for word in ("bert", "gpt"))
    assert model.config.modality == ("text" if text else "vision")
    assert model.config.causal == ("gpt" in name)


def test_overrides_change_the_config_and_only_that():
    small = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1, "image_size": 32, "num_labels": 7}
    model = create_model("crate-tiny-patch16-224", **small, sparsifier="none", step_size=1)
    assert model(torch.randn(2, 3, 32, 32)).logits.shape == (2, 7)
    assert model.config.sparsifier == "none"
    assert model.config.step_size == 1
    assert presets.PRESETS["crate-tiny-patch16-224"].fields["hidden_size"] == 384
    with pytest.raises(TypeError):
        presets.PRESETS["crate-tiny-patch16-224"].fields["hidden_size"] = 3


def test_a_model_without_classes_hands_out_its_features():
    model = create_model(
        "crate-dino-small-patch16", hidden_size=24, num_attention_heads=3, num_hidden_layers=1, image_size=32
    ).eval()
    images = torch.randn(2, 3, 32, 32)
    output = model(images, output_hidden_states=True)
    torch.testing.assert_close(output.logits, model.head_norm(output.hidden_states[-1][:, 0]))
    assert output.logits.shape == (2, 24)


def test_build_config_takes_fields():
    config = build_config({"hidden_size": 15, "num_attention_heads": 3, "num_labels": 7, "dropout": 0})
    assert (config.hidden_size, config.num_labels, config.subspace_dim, config.dropout) == (15, 7, 5, 0)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("crate-bsae-patch16-224", "crate-base-patch16-224"), ("crate-mae-bas", "crate-mae-base"), ("gpt2", "gpt2-base")],
)
def test_an_unknown_model_is_refused_with_the_nearest_one(name, nearest):
    with pytest.raises(CrateError, match=f"^unknown model '{name}'; did you mean '{nearest}'\\?$"):
        codingrate.create_model(name)


@pytest.mark.parametrize("name", ["crate-bert-base", "crate-gpt-base"])
def test_text_form_paper_leaves_out_all_that_the_equations_do_not_have(name, tmp_path):
    fields = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 59}
    published, paper = create_model(name, **fields), create_model(name, text_form="paper", **fields)
    body = paper.crate
    assert body.embedding.types is None
    assert isinstance(body.embedding.norm, torch.nn.Identity)
    assert not any(isinstance(m, torch.nn.LayerNorm) for m in paper.modules() if m not in [*body.layers.modules()])
    assert paper.num_parameters() < published.num_parameters()
    paper.save_pretrained(tmp_path)
    again = type(paper).from_pretrained(tmp_path)
    ids = torch.arange(7)[None]
    assert torch.equal(again.eval()(ids).logits, paper.eval()(ids).logits)
