"""Bad input is refused in one line that names what is wrong, and what is merely unusual is not."""

import pytest
import torch

from codingrate import CrateError, create_model
from codingrate.models import (
    CrateForCausalLM,
    CrateForImageClassification,
    CrateForMaskedAutoencoding,
    CrateForMaskedLM,
    CrateForSequenceClassification,
    build_config,
)

from . import toys


def refuses(pattern, call, *args, **kwargs):
    with pytest.raises(CrateError, match=pattern) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400


FIELDS = [
    ({"image_size": 20, "patch_size": 7}, r"^image_size 20 is not divisible by patch_size 7; use 14$"),
    ({"image_size": [21, 15], "patch_size": 7}, r"^image_size 15 is not divisible by patch_size 7"),
    ({"image_size": 5, "patch_size": 7}, r"^image_size 5 is not divisible by patch_size 7; use 7$"),
    ({"image_size": 0}, r"^image_size 0 is not divisible"),
    ({"image_size": [224]}, r"^image_size is \[224\]; give one side, or height and width$"),
    ({"hidden_size": 15, "num_attention_heads": 4}, r"^num_attention_heads 4 does not divide hidden_size 15"),
    ({"hidden_size": 0}, r"^hidden_size is 0; it must be at least 1 and at most 65536$"),
    ({"num_hidden_layers": 0}, r"^num_hidden_layers is 0"),
    ({"num_attention_heads": -3}, r"^num_attention_heads is -3"),
    ({"expansion": 0}, r"^expansion is 0"),
    ({"dropout": 1.5}, r"^dropout is 1.5"),
    ({"attention": "msa"}, r"^unknown attention 'msa'; did you mean 'mssa'\?$"),
    ({"sparsifier": "itsa"}, r"^unknown sparsifier 'itsa'; did you mean 'ista'\?$"),
    ({"step_sise": 0.1}, r"^unknown config field 'step_sise'; did you mean 'step_size'\?$"),
    ({"num_label": 3}, r"^unknown config field 'num_label'; did you mean 'num_labels'\?$"),
    ({"class_token": False}, r"^pooling 'class' needs class_token=True; use pooling='mean'$"),
    ({"mask_ratio": -0.1}, r"^mask_ratio is -0.1; it must be at least 0 and below 1$"),
    ({"mask_ratio": 1.0}, r"^mask_ratio is 1.0; it must be at least 0 and below 1$"),
    ({"mask_ratio": 0, "loss_on": "masked"}, r"^mask_ratio 0 removes no patch to measure"),
    ({"decoder_type": "tied", "decoder_layers": 3}, r"^decoder_type 'tied' has one layer for each of the"),
    ({"decoder_type": "tied", "sparsifier": "odl"}, r"^decoder_type 'tied' needs a dictionary D"),
    ({"positions": "sinusoidal", "hidden_size": 15, "num_attention_heads": 3}, r"^sinusoidal positions need"),
    ({"position_scale": 0}, r"^position_scale is 0; it must be above 0 and at most 1000000$"),
    ({"orthogonality": "parametrize", "head_dim": 65}, r"^6 subspaces of dimension 65 cannot be orthonormal in 384"),
    ({"orthogonality": "per-head", "head_dim": 385}, r"^orthogonality 'per-head' needs head_dim 385 to be at most"),
    ({"attention": "mssa-transposed", "head_dim": 60}, r"^attention 'mssa-transposed' needs K·p = d, not 6 · 60"),
    ({"ista_steps": 2, "sparsifier": "prox"}, r"^ista_steps needs sparsifier 'ista' or 'ista-soft', not 'prox'$"),
    ({"prox_alpha": None, "sparsifier": "ista"}, r"^prox_alpha=None is for"),
    ({"prox_alpha": None, "sparsifier": "prox", "causal": True}, r"^prox_alpha=None is for"),
    ({"prox_alpha": 0}, r"^prox_alpha is 0; it must be above 0 and at most 1000000$"),
    ({"ista_steps": 0}, r"^ista_steps is 0; it must be at least 1 and at most 1000$"),
    ({"neumann_order": 1}, r"^neumann_order needs attention 'rate-gradient', not 'mssa'; leave it out$"),
    ({"neumann_order": -1, "attention": "rate-gradient"}, r"^neumann_order is -1; it must be at least 0 and at most 1"),
    ({"norm": "post"}, r"'norm' expected one of \('pre',\), got post$"),
    ({"norm": "post", "modality": "text"}, r"^norm 'post' needs skip='residual'; use norm='pre'$"),
    ({"modality": "text", "position_offset": -1}, r"^position_offset is -1; it must be a row of the position table$"),
    ({"modality": "text", "position_offset": 514}, r"^position_offset is 514; it must be a row"),
    ({"modality": "text", "position_offset": 2, "causal": True},
     r"^position_offset is for masked models; a causal model counts from 0$"),
    ({"scaled_output_init": True}, r"^scaled_output_init needs initializer='normal', not 'torch'$"),
    ({"positions": "rotary"}, r"'positions' expected one of \('learned', 'sinusoidal', 'none'\), got rotary$"),
    ({"modality": "text", "pooling": "patches"}, r"'pooling' expected one of \('class', 'mean'\), got patches$"),
    ({"modality": "audio"}, r"'modality' expected one of \('vision',\), got audio$"),
    ({"activation": "relu"}, r"'activation' expected one of \('gelu', 'gelu-tanh'\), got relu$"),
    ({"skip": "none"}, r"'skip' expected one of \('normalized', 'residual'\), got none$"),
    ({"pooling": "max"}, r"'pooling' expected one of \('class', 'mean', 'patches'\), got max$"),
    ({"hidden_size": "384"}, r"'hidden_size' expected int, got str"),
    ({"hidden_size": 384.0}, r"'hidden_size' expected int, got float"),
    ({"causal": "yes"}, r"'causal' expected bool, got str"),
    ({"step_size": "0.1"}, r"'step_size'"),
]  # fmt: skip


def test_a_bad_field_is_named():
    for fields, pattern in FIELDS:
        refuses(pattern, build_config, fields)
        refuses(pattern, create_model, "crate-tiny-patch16-224", **fields)


def test_a_slip_is_noticed_by_the_config_itself():
    refuses("^unknown config field 'step_sise'; did you mean 'step_size'\\?$", toys.vision, step_sise=1)
    assert toys.vision(a_note_of_mine="kept").a_note_of_mine == "kept"  # transformers' own way


@pytest.mark.parametrize(
    "field", ["step_size", "sparsity", "prox_alpha", "attention_scale", "coding_precision", "orthogonality_weight"]
)
def test_a_whole_number_is_a_number(field):
    assert getattr(build_config({field: 1}), field) == 1
    with torch.device("meta"):
        assert getattr(create_model("crate-tiny-patch16-224", **{field: 1}).config, field) == 1


PIXELS = [
    (torch.randn(3, 21, 14), r"^pixel_values has shape \(3, 21, 14\); expected \(batch, 3, height, width\)$"),
    (torch.randn(2, 1, 21, 14), r"^pixel_values has shape \(2, 1, 21, 14\); expected \(batch, 3"),
    (torch.zeros(2, 3, 21, 14, dtype=torch.uint8), r"^pixel_values is torch.uint8; expected floating point"),
    (torch.randn(2, 3, 20, 14), r"^image of 20 × 14 pixels is not divisible by patch_size 7; resize it$"),
    (torch.randn(2, 3, 21, 0), r"^image of 21 × 0 pixels"),
    (None, r"^pixel_values is missing"),
]  # fmt: skip


@pytest.mark.parametrize("task", ["body", "image-classification", "masked-autoencoding"])
def test_bad_images(task):
    model = toys.build(task)
    for images, pattern in PIXELS:
        refuses(pattern, model, images)


def test_bad_masks_of_patches():
    model = toys.build("masked-autoencoding")
    refuses(r"^mask has shape \(3, 7\); expected \(3, 6\), True = removed$", model, toys.pixels(), torch.ones(3, 7))
    refuses(r"^mask has shape \(2, 6\)", model, toys.pixels(), torch.ones(2, 6))
    dropping = toys.CrateForMaskedAutoencoding(toys.released_autoencoding(mask_space="drop"))
    refuses(r"^mask must keep 1 of 6 patches", dropping, toys.pixels(), toys.patch_mask())


TEXT = ["masked-lm", "sequence-classification", "causal-lm"]


@pytest.mark.parametrize("task", TEXT)
def test_bad_text(task):
    model, ids = toys.build(task), torch.randint(29, (2, 5))
    refuses(r"^input_ids is torch.float32 of shape \(2, 5\); expected ids \(batch, n\)$", model, ids.float())
    refuses(r"^input_ids is torch.int64 of shape \(5,\)", model, ids[0])
    refuses(r"^pass either input_ids or inputs_embeds$", model)
    refuses(r"^pass either input_ids or inputs_embeds$", model, ids, inputs_embeds=torch.randn(2, 5, 14))
    refuses(r"^input_ids is torch.bool of shape", model, ids > 3)
    for bad in (29, -1):
        refuses(r"^input_ids holds an id that the table of 29 rows does not have$", model, torch.full((2, 5), bad))
    long = torch.zeros(2, 14, dtype=torch.long)
    refuses(r"^sequence of 14 tokens is longer than max_position_embeddings 13; shorten it$", model, long)
    for shape in ((2, 6), (1, 5), (2, 5, 5)):
        refuses(r"^attention_mask has shape .*; expected \(2, 5\)$", model, ids, attention_mask=torch.ones(shape))


@pytest.mark.parametrize("bad", [29, -5, 10**9])
def test_bad_labels_and_positions(bad):
    model, ids = toys.build("causal-lm"), torch.randint(29, (2, 5))
    refuses(
        r"^labels do not fit logits \(.*, 29\): Target .* is out of bounds",
        model,
        ids,
        labels=torch.full_like(ids, bad),
    )
    refuses(r"^position_ids holds an id that the table of 13 rows", model, ids, position_ids=torch.full_like(ids, bad))
    image = toys.build("image-classification")
    refuses(r"^labels do not fit logits \(3, 5\)", image, toys.pixels(), labels=torch.full((3,), bad))
    refuses(r"^labels do not fit logits \(3, 5\)", image, toys.pixels(), labels=torch.zeros(2, dtype=torch.long))


def test_a_model_needs_a_config_of_its_kind():
    for model in (CrateForMaskedLM, CrateForSequenceClassification):
        refuses(f"^{model.__name__} needs modality='text', not 'vision'$", model, toys.vision())
    for model in (CrateForImageClassification, CrateForMaskedAutoencoding):
        refuses(f"^{model.__name__} needs modality='vision', not 'text'$", model, toys.text())
    refuses("^CrateForCausalLM needs causal=True$", CrateForCausalLM, toys.text())
