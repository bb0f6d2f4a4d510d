"""Shipped recipes parse, build and say what the paper says."""

import re
from dataclasses import replace
from functools import cache

import pytest
import torch
import yaml

from codingrate.data import GLUE, dataset_names, text_names
from codingrate.models import create_model
from codingrate.models.presets import RELEASED_MAE
from codingrate.training.recipe import MUST_GIVE, Recipe
from codingrate.training.recipe_files import (
    HEADER,
    load_recipe,
    recipe_header,
    recipe_names,
    recipe_path,
    save_recipe,
)

NAMES = recipe_names()
VARIANTS = [
    (name, variant)
    for name in NAMES
    for variant in yaml.safe_load(recipe_path(name).read_text(encoding="utf-8")).get("variants", {})
]
EVERY = [*((name, None) for name in NAMES), *VARIANTS]

IMAGENET_1K = [f"crate-{size}-imagenet1k" for size in ("tiny", "small", "base", "large")]
IMAGENET_21K = [f"crate-{size}-imagenet21k" for size in ("tiny", "small", "base")]
TWINS = ["vit-tiny-imagenet1k", "vit-small-imagenet1k"]
TRANSFER = [f"finetune-{data}" for data in ("cifar10", "cifar100", "flowers102", "oxford-pets")]
FINETUNE = [*TRANSFER, "finetune-imagenet1k"]
MAE = [f"crate-mae-{size}" for size in ("small", "base", "large")]
DINO = ["crate-dino-small-patch16", "crate-dino-base-patch8"]
BERT = [f"crate-bert-{size}" for size in ("medium", "base", "large")]
GPT = [f"crate-gpt-{size}" for size in ("small", "base", "large")]
TEXT_TWINS = ["bert-base", "gpt2-base"]
LAPTOP = [
    "digits", "fashion-mnist", "cifar10-small", "digits-mae", "cifar10-mae", "digits-dino", "cifar10-dino",
    "pydoc-gpt", "pydoc-bert", "wikitext-gpt", "sst2",
]  # fmt: skip
STARTED = [*FINETUNE, "glue", "sst2"]

load = cache(load_recipe)


def value(recipe, key):
    """What a recipe has at a dotted key."""
    found = recipe.to_dict()
    for part in key.split("."):
        found = found[part]
    return found


VOCABULARIES = {"FacebookAI/roberta-base": 50265, "openai-community/gpt2": 50257, "bytes": 261}


def build(recipe, classes=7):
    """The model of a recipe, without its numbers, by the fields that training gives it."""
    fields = {
        "num_labels": classes,
        "image_size": recipe.augment.image_size,
        "num_channels": recipe.augment.channels,
        "id2label": {index: f"class {index}" for index in range(classes)},
        "label2id": {f"class {index}": index for index in range(classes)},
    }
    if recipe.task == "autoencoding":
        fields = {name: fields[name] for name in ("image_size", "num_channels")}
    if recipe.task.endswith("-lm"):
        words = VOCABULARIES.get(recipe.text.tokenizer, recipe.text.vocab_size)
        fields = {"vocab_size": words, "max_position_embeddings": recipe.text.block}
    with torch.device("meta"):
        return create_model(recipe.model.name, **{**fields, **recipe.model.config})


# What is shipped


def test_every_experiment_of_the_paper_is_shipped():
    vision = {*IMAGENET_1K, *IMAGENET_21K, *TWINS, *FINETUNE, *MAE, *DINO, "vit-mae-base"}
    assert sorted({*vision, *BERT, *GPT, *TEXT_TWINS, "glue", *LAPTOP} - set(NAMES)) == []


@pytest.mark.parametrize(("name", "variant"), EVERY)
def test_parses_and_survives_a_round_trip(name, variant, tmp_path):
    recipe = load(name, variant=variant)
    assert isinstance(recipe, Recipe)
    names = dataset_names() if not recipe.task.endswith(("-lm", "sequence-classification")) else text_names()
    assert recipe.data.name in (*names, *GLUE, MUST_GIVE)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_header(name):
    lines = recipe_path(name).read_text(encoding="utf-8").splitlines()
    for line, key in zip(lines, HEADER, strict=False):
        assert re.fullmatch(rf"# {key.capitalize()}: \S.*", line)
    header = recipe_header(name)
    assert [f"# {key.capitalize()}: {text}" for key, text in header.items()] == lines[: len(HEADER)]
    assert re.match(rf"crate train {name}( |$)", header["command"])
    if name not in LAPTOP:  # no GPU and no ImageNet here: nothing but the paper's figures may stand there
        assert header["time"].startswith("not measured here")
        assert re.match(r"not measured here; the paper\b", header["metric"])
    assert ("model.from=" in header["command"]) == (name in STARTED)
    needs_data = load(name).data.name == MUST_GIVE
    assert not needs_data or "--data PATH" in header["command"] or "--variant TASK" in header["command"]


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_variant_changes_the_recipe(name, variant):
    assert load(name, variant=variant) != load(name)


@pytest.mark.parametrize(("name", "variant"), [case for case in EVERY if load(case[0]).model.from_ is None])
def test_builds_its_model(name, variant):
    recipe = load(name, variant=variant)
    model = build(recipe, classes=7)
    config = model.config
    if recipe.task == "classification":
        assert (config.num_labels, config.id2label[6]) == (7, "class 6")
    if recipe.task.endswith("-lm"):
        assert config.max_tokens >= recipe.text.block
    else:
        assert (config.image_size, config.num_channels) == (recipe.augment.image_size, recipe.augment.channels)
    for key, wanted in recipe.model.config.items():
        assert getattr(config, key) == wanted
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LAPTOP])
def test_batches_divide_over_four_devices(name):
    for variant in [None, *(v for n, v in VARIANTS if n == name)]:
        recipe = load(name, variant=variant)
        assert recipe.schedule.batch % (4 * recipe.run.device_batch) == 0


# The paper's numbers


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("crate-tiny-imagenet1k", 1000, 6_090_856),
        ("crate-small-imagenet1k", 1000, 13_116_328),
        ("crate-base-imagenet1k", 1000, 22_796_008),
        ("crate-large-imagenet1k", 1000, 77_641_192),
        ("crate-tiny-imagenet21k", 21842, 5_743_250),
        ("crate-small-imagenet21k", 21842, 14_118_482),
        ("crate-base-imagenet21k", 21842, 38_831_570),
        ("crate-bert-medium", 0, 32_626_265),
        ("crate-bert-base", 0, 60_922_713),
        ("crate-bert-large", 0, 128_723_033),
        ("crate-gpt-base", 0, 60_701_184),
        ("crate-gpt-large", 0, 242_880_000),
    ],
)
def test_parameters(name, classes, parameters):
    assert count(load(name), classes) == parameters


def count(recipe, classes=7):
    return build(recipe, classes).num_parameters()


PAPER = [
    *(
        (name, key, wanted)
        for name in [*IMAGENET_1K, *TWINS]
        for key, wanted in {
            "data.name": "imagenet-1k",
            "optimise.name": "lion",
            "optimise.lr": 2.4e-4,
            "optimise.weight_decay": 0.5,
            "optimise.betas": [0.9, 0.99],
            "optimise.label_smoothing": 0.1,
            "schedule.batch": 2048,
            "schedule.epochs": 150,
            "schedule.warmup_epochs": 5,
            "schedule.shape": "cosine",
            "augment.crop": "random-resized",
            "augment.flip": 0.5,
            "augment.rand_augment": None,
            "augment.image_size": 224,
            "augment.evaluation": "center",
        }.items()
    ),
    *(
        (name, key, wanted)
        for name in IMAGENET_21K
        for key, wanted in {
            "data.name": "imagenet-21k",
            "optimise.name": "lion",
            "optimise.lr": 9.6e-5,
            "optimise.weight_decay": 0.05,
            "schedule.batch": 4096,
            "schedule.epochs": 90,
            "augment.crop": "center",
            "augment.evaluation_ratio": 1.0,
            "augment.flip": 0.5,
        }.items()
    ),
    *(
        (name, key, wanted)
        for name in FINETUNE
        for key, wanted in {
            "optimise.name": "adamw",
            "optimise.lr": 5e-5,
            "optimise.weight_decay": 0.01,
            "optimise.label_smoothing": 0.0,
            "schedule.batch": 256,
            "augment.image_size": 224,
            "augment.flip": 0.5,
            "augment.rand_augment": [2, 14],
            "model.from": "???",
        }.items()
    ),
    *((name, "schedule.epochs", 200) for name in TRANSFER),  # the released script's: the paper gives none
    *((name, "augment.evaluation", "resize") for name in TRANSFER),
    ("finetune-imagenet1k", "schedule.epochs", 50),
    ("finetune-imagenet1k", "augment.evaluation", "center"),
    *(
        (name, key, wanted)
        for name in MAE
        for key, wanted in {
            "task": "autoencoding",
            "optimise.name": "adamw",
            "optimise.lr": 3e-5,
            "optimise.weight_decay": 0.1,
            "schedule.batch": 4096,
            "schedule.epochs": 800,
            "schedule.warmup_epochs": 40,
        }.items()
    ),
    *(
        (name, key, wanted)
        for name in DINO
        for key, wanted in {
            "task": "distillation",
            "optimise.name": "adamw",
            "optimise.lr": 2e-3,
            "optimise.weight_decay": 0.005,
            "optimise.clip": 3.0,
            "optimise.clip_by": "tensor",
            "schedule.epochs": 100,
            "distil.student_temperature": 0.1,
            "distil.teacher_temperature": 0.04,
            "distil.final_teacher_temperature": 0.04,
            "distil.momentum": 0.996,
        }.items()
    ),
    *(
        (name, key, wanted)
        for name in [*BERT, "bert-base"]
        for key, wanted in {
            "task": "masked-lm",
            "optimise.lr": 1e-3,
            "optimise.betas": [0.9, 0.98],
            "optimise.weight_decay": 0.01,
            "schedule.batch": 8096,
            "schedule.steps": 30_000,
            "schedule.warmup_steps": 1800,
            "schedule.shape": "linear",
            "text.tokenizer": "FacebookAI/roberta-base",
            "text.mask_probability": 0.15,
        }.items()
    ),
    *(
        (name, key, wanted)
        for name in [*GPT, "gpt2-base"]
        for key, wanted in {
            "task": "causal-lm",
            "data.name": "openwebtext",
            "optimise.lr": 6e-4,
            "optimise.betas": [0.9, 0.95],
            "optimise.weight_decay": 0.1,
            "schedule.batch": 384,
            "schedule.steps": 600_000,
            "schedule.warmup_steps": 2000,
            "schedule.shape": "cosine",
            "schedule.final_lr": 6e-5,
            "text.block": 1024,
        }.items()
    ),
    ("glue", "task", "sequence-classification"),
    ("glue", "model.from", "???"),
]


GLUE_EPOCHS = {"mrpc": 5, "mnli": 8, "wnli": 5}


@pytest.mark.parametrize("name", GLUE)
def test_glue_is_fine_tuned_as_the_paper_says(name):
    recipe = load("glue", variant=name)
    assert recipe.data.name == name
    found = (recipe.schedule.epochs, recipe.text.max_length, recipe.optimise.lr, recipe.schedule.batch)
    assert found == (GLUE_EPOCHS.get(name, 3), 128 if name == "wnli" else 512, 2e-5, 32)


@pytest.mark.parametrize(("name", "key", "wanted"), PAPER)
def test_paper(name, key, wanted):
    assert value(load(name), key) == wanted


@pytest.mark.parametrize("name", [*IMAGENET_1K, "finetune-imagenet1k"])
def test_imagenet_is_measured_at_256_then_224(name):
    augment = load(name).augment
    assert round(augment.image_size * augment.evaluation_ratio) == 256


ADAM = {"optimise.name": "adam"}
RELEASED_DINO = {"optimise.lr": 1e-3, "optimise.weight_decay": 0.04, "optimise.final_weight_decay": 0.4}
ABLATIONS = {
    ("crate-base-imagenet1k", "eta-0.02"): {"model.config": {"step_size": 0.02}},
    ("crate-base-imagenet1k", "eta-0.5"): {"model.config": {"step_size": 0.5}},
    ("crate-base-imagenet1k", "lambda-0.02"): {"model.config": {"sparsity": 0.02}},
    ("crate-base-imagenet1k", "lambda-0.5"): {"model.config": {"sparsity": 0.5}},
    ("crate-base-imagenet1k", "epochs-90"): {"schedule.epochs": 90},
    ("crate-base-imagenet1k", "epochs-300"): {"schedule.epochs": 300},
    ("crate-base-imagenet1k", "wd-1.0"): {"optimise.weight_decay": 1.0},
    ("crate-base-imagenet1k", "wd-0.05"): {"optimise.weight_decay": 0.05},
    ("crate-base-imagenet1k", "lr-4.8e-4"): {"optimise.lr": 4.8e-4},
    ("crate-base-imagenet1k", "lr-1.2e-4"): {"optimise.lr": 1.2e-4},
    ("crate-base-imagenet1k", "mssa-tied"): {"model.config": {"attention": "mssa-tied"}},
    ("crate-base-imagenet1k", "prox"): {"model.config": {"sparsifier": "prox", "prox_alpha": 1.0}},
    ("crate-base-imagenet1k", "soft-threshold"): {"model.config": {"sparsifier": "ista-soft", "sparsity": 10.0}},
    ("crate-base-imagenet1k", "no-ista"): {"model.config": {"sparsifier": "none"}},
    ("crate-base-imagenet1k", "released"): {
        "model.config": {"skip": "residual"},
        "optimise.lr": 2e-4,
        "optimise.weight_decay": 0.05,
        "schedule.epochs": 200,
        "schedule.batch": 512,
        "schedule.warmup_epochs": 20,
        "run.device_batch": 64,
        "run.precision": "fp16",
    },
    ("crate-small-imagenet21k", "mssa-mlp"): {"model.config": {"sparsifier": "mlp"}},
    ("crate-small-imagenet21k", "mhsa-ista"): {"model.config": {"attention": "mhsa"}},
    ("crate-small-imagenet21k", "vit"): {
        "model.config": {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual", "patch_norm": False}
    },
    **{(name, "batch-512"): {"schedule.batch": 512} for name in TRANSFER},
    **{(name, "after-21k"): {"schedule.batch": 128, "run.device_batch": 32} for name in TRANSFER},
    ("finetune-imagenet1k", "base"): {"schedule.batch": 128},
    ("crate-mae-base", "base-rate"): {"optimise.lr": 4.8e-4},
    ("crate-mae-base", "released"): {"model.config": dict(RELEASED_MAE)},
    ("crate-mae-base", "norm-pix"): {"model.config": {"loss_on": "masked", "normalize_pixels": True}},
    ("crate-dino-small-patch16", "paper-head"): {"model.config": {"projection_head": "paper"}},
    ("crate-dino-small-patch16", "released"): RELEASED_DINO,
    ("crate-dino-small-patch16", "warm-teacher"): {
        "distil.final_teacher_temperature": 0.07,
        "distil.temperature_epochs": 30,
    },
    ("crate-dino-small-patch16", "vit"): {**RELEASED_DINO, "model.name": "vit-small-patch16-224"},
    ("crate-bert-base", "adam"): ADAM,
    ("crate-bert-base", "batch-8192"): {"schedule.batch": 8192, "run.device_batch": 32},
    ("crate-gpt-base", "adam"): ADAM,
    ("crate-gpt-base", "no-ista"): {"model.config": {"vocab_size": 50304, "sparsifier": "none"}},
    ("crate-bert-base", "learned-positions"): {
        "model.config": {"dropout": 0.1, "max_position_embeddings": 514, "positions": "learned"}
    },
    ("crate-gpt-base", "learned-positions"): {"model.config": {"vocab_size": 50304, "positions": "learned"}},
    ("crate-gpt-base", "batch-480"): {"schedule.batch": 480},
    ("gpt2-base", "small"): {"model.config": {"vocab_size": 50257, "hidden_size": 512, "num_attention_heads": 8}},
    **{
        ("glue", name): {
            "data.name": name,
            "schedule.epochs": GLUE_EPOCHS.get(name, 3),
            "text.max_length": 128 if name == "wnli" else 512,
        }
        for name in GLUE
    },
}


@pytest.mark.parametrize(("name", "variant"), ABLATIONS)
def test_an_ablation_changes_what_its_row_says_and_nothing_else(name, variant):
    plain, changed = load(name).to_dict(), load(name, variant=variant).to_dict()
    for key, wanted in ABLATIONS[name, variant].items():
        section, field = key.split(".")
        assert changed[section][field] == wanted
        changed[section][field] = plain[section][field]
    assert changed == plain


def test_the_table_of_ablations_is_complete():
    assert {case for case in VARIANTS if case[0] not in LAPTOP} == set(ABLATIONS)


@pytest.mark.parametrize(("option", "wanted"), [("decay", "all"), ("clip", 0.0)])
def test_where_the_paper_is_silent_the_released_code_speaks(option, wanted):
    for name in [*IMAGENET_1K, *IMAGENET_21K, *TWINS, *FINETUNE]:
        assert getattr(load(name).optimise, option) == wanted
    assert getattr(load("crate-base-imagenet1k", variant="released").optimise, option) == wanted


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10-small"])
def test_the_twin_differs_by_its_blocks_only(name):
    plain, twin = load(name), load(name, variant="vit")
    black_box = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual", "patch_norm": False}
    assert twin.model.config == {**plain.model.config, **black_box}
    assert replace(twin, model=plain.model) == plain


def test_the_twin_on_wikitext_has_as_many_parameters():
    plain, twin = load("wikitext-gpt"), load("wikitext-gpt", variant="gpt2")
    assert count(twin) == pytest.approx(count(plain), rel=0.02)
    assert replace(twin, model=plain.model) == plain
