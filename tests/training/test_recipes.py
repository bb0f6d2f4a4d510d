"""Shipped recipes parse, build and say what the paper says; bad ones are refused in one line."""

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
    build_recipe,
    load_recipe,
    recipe_header,
    recipe_names,
    recipe_path,
    save_recipe,
)
from tests import refusals

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


def refused(pattern, call, *args, **kwargs):
    """As `refusals.refused`, by a regular expression."""
    assert re.search(pattern, refusals.refused("", call, *args, **kwargs))


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


@pytest.fixture
def own(tmp_path):
    """Writes a recipe of one's own and gives its path."""

    def write(text, name="own.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


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
    return sum(p.numel() for p in build(recipe, classes).parameters())


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


@pytest.mark.parametrize("name", GLUE)
def test_glue_is_fine_tuned_as_the_paper_says(name):
    recipe, task = load("glue", variant=name), GLUE[name]
    assert recipe.data.name == name
    found = (recipe.schedule.epochs, recipe.text.max_length, recipe.optimise.lr, recipe.schedule.batch)
    assert found == (task.epochs, task.max_length, task.learning_rate, task.batch)


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
        ("glue", name): {"data.name": name, "schedule.epochs": task.epochs, "text.max_length": task.max_length}
        for name, task in GLUE.items()
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


# Overrides


@pytest.mark.parametrize(
    ("override", "key", "wanted"),
    [
        ("schedule.batch=96", "schedule.batch", 96),
        ("optimise.lr=0.003", "optimise.lr", 0.003),
        ("optimise.lr=1e-3", "optimise.lr", 1e-3),
        ("optimise.lr=2.5E-3", "optimise.lr", 2.5e-3),
        ("schedule.batch=1e3", "schedule.batch", 1000),
        ("model.config.step_size=1e-2", "model.config.step_size", 0.01),
        ("model.config.patch_norm=false", "model.config.patch_norm", False),
        ("model.config.head_dim=null", "model.config.head_dim", None),
        ("model.config={hidden_size: 48}", "model.config", {"hidden_size": 48}),
        ("optimise.betas=[0.9, 0.98]", "optimise.betas", [0.9, 0.98]),
        ("augment.crop_scale=[0.25,1]", "augment.crop_scale", [0.25, 1.0]),
        ("optimise.name=lion", "optimise.name", "lion"),
        ("run.compile=yes", "run.compile", True),
        ("schedule.steps=", "schedule.steps", None),
        ("model.from=runs/a=b", "model.from", "runs/a=b"),
        ("data.name=a: [b", "data.name", "a: [b"),
        ("data.name=/data/1e-3.d", "data.name", "/data/1e-3.d"),
    ],
)
def test_override(override, key, wanted):
    found = value(load_recipe("digits", [override]), key)
    assert found == wanted
    assert type(found) is type(wanted)


def test_overrides_leave_the_rest_alone_and_the_last_wins():
    changed = load_recipe("digits", ["model.config.hidden_size=48", "optimise.lr=1", "optimise.lr=2"])
    assert changed.optimise.lr == 2
    plain = load("digits")
    assert changed.model.config == {**plain.model.config, "hidden_size": 48}
    assert (changed.data, changed.schedule, changed.augment) == (plain.data, plain.schedule, plain.augment)


def test_overrides_go_over_a_variant():
    recipe = load_recipe("crate-base-imagenet1k", ["optimise.lr=7e-4"], "lr-4.8e-4")
    assert recipe.optimise.lr == 7e-4


def test_no_traces_between_loads():
    before = load_recipe("digits")
    load_recipe("digits", ["model.config.hidden_size=48", "schedule.epochs=1"])
    assert load_recipe("digits") == before


# Refusals


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimise.lrr=1", "unknown recipe key 'optimise.lrr'; did you mean 'optimise.lr'"),
        ("optimize.lr=1", "unknown recipe key 'optimize'; did you mean 'optimise'"),
        ("shedule.epochs=3", "did you mean 'schedule'"),
        ("augment.imgsize=3", "did you mean 'augment.image_size'"),
        ("run.sed=3", "did you mean 'run.seed'"),
        ("model.from_=x", "did you mean 'model.from'"),
        ("base=digits", "unknown recipe key 'base'"),
        ("optimise.lr=fast", "optimise.lr: input should be a valid number.* not 'fast'"),
        ("optimise.lr=[1]", "optimise.lr: .*number"),
        ("optimise.lr=-1e-3", "optimise.lr is -0.001; it must be positive"),
        ("optimise.lr=0", "optimise.lr is 0.0; it must be positive"),
        ("optimise.lr=.nan", "optimise.lr is nan; it must be positive"),
        ("optimise.name=sgd", "optimise.name: .*'lion', 'adamw' or 'adam', not 'sgd'"),
        ("optimise.betas=[0.9]", r"optimise.betas.1: field required, not \[0.9\]"),
        ("optimise.weight_decay=-1", "optimise.weight_decay is -1.0; it must not be negative"),
        ("optimise.label_smoothing=1", "optimise.label_smoothing is 1.0"),
        ("run.ema=1.5", "run.ema is 1.5"),
        ("schedule.batch=1.5", "schedule.batch: .*integer.* not 1.5"),
        ("schedule.batch=0", "schedule.batch is 0; it must be positive"),
        ("schedule.epochs=-3", "schedule.epochs is -3.0"),
        ("schedule.shape=step", "schedule.shape: .*'cosine'"),
        ("data.workers=-1", "data.workers is -1"),
        ("run.compile=perhaps", "run.compile: .*boolean"),
        ("run.precision=int8", "run.precision: .*'bf16'"),
        ("augment.flip=2", r"augment.flip is a probability in \[0, 1\], not 2"),
        ("augment.crop=centre", "augment.crop: .*'center'"),
        ("model.config=3", "model.config: .*dictionary"),
        ("task=dreaming", "task: .*'classification'"),
        ("optimise=3", "optimise must be a section"),
        ("optimise.lr.peak=1", "lr is not a section"),
        ("optimise.lr", "override 'optimise.lr' is not of the form key=value"),
        ("=3", "override '=3' is not of the form key=value"),
        ("", "override '' is not of the form key=value"),
    ],
)
def test_a_bad_override_is_refused_in_one_line(override, message):
    refused(message, load_recipe, "digits", [override])


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("digits", "text.block=64", "text.block is not for task: classification; leave it out"),
        ("digits-mae", "text.tokenizer=bytes", "text.tokenizer is not for task: autoencoding"),
        ("pydoc-gpt", "text.mask_probability=0.3", "text.mask_probability is not for task: causal-lm"),
        ("pydoc-bert", "text.columns=[a, b]", "text.columns is not for task: masked-lm"),
        ("sst2", "text.block=64", "text.block is not for task: sequence-classification"),
        ("pydoc-gpt", "text.blocks=64", "did you mean 'text.block'"),
        ("pydoc-gpt", "text.block=1", "text.block is 1; it must be at least 2"),
        ("pydoc-bert", "text.mask_probability=1", "text.mask_probability is 1.0; it must lie between 0 and 1"),
        ("wikitext-gpt", "text.tokenizer=bytes", "text.vocab_size is what bpe learns"),
        ("pydoc-gpt", "text.separate=word", "text.separate: .*'paragraph'"),
        ("sst2", "text.columns=sentence", "text.columns: .*tuple"),
        ("sst2", "text.max_length=0", "text.max_length is 0"),
        ("pydoc-gpt", "augment.flip=0.3", "augment: is for images, not for task: causal-lm; leave it out"),
        ("pydoc-gpt", "data.image_column=x", "data.image_column is for images, not for task: causal-lm"),
        ("pydoc-bert", "data.streaming=true", "data.streaming=true is for images; task: masked-lm tokenises"),
        ("pydoc-bert", "model.freeze=true", "model.freeze keeps all but a head as it is; task: masked-lm has none"),
        ("pydoc-gpt", "views.local_count=3", "views: is for task: distillation, not causal-lm"),
    ],
)
def test_what_a_task_does_not_read_is_refused(name, override, message):
    refused(message, load_recipe, name, [override])


def test_unknown_recipe_and_variant_offer_the_nearest():
    refused("unknown recipe 'digit'; did you mean 'digits'", load_recipe, "digit")
    refused("did you mean 'crate-base-imagenet1k'", load_recipe, "crate-base-imagenet-1k")
    refused("variant of crate-base-imagenet1k 'eta-0.2'; did you mean 'eta-0.02'", load_recipe,
            "crate-base-imagenet1k", (), "eta-0.2")  # fmt: skip
    refused("unknown variant of vit-tiny-imagenet1k 'x'; known: none", load_recipe, "vit-tiny-imagenet1k", (), "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimise: [", "is not YAML"),
        ("optimise:\n\tlr: 1", "is not YAML"),
        ("- a\n- b", "a recipe is a mapping"),
        ("just words", "a recipe is a mapping"),
        ("", "a recipe is a mapping"),
        ("optimise:", "optimise must be a section"),
        ("optimise: 3", "optimise must be a section"),
        ("model: [x]", "model must be a section"),
        ("optimise: {lr: x}", "optimise.lr: .*number"),
        ("optimise: {lr: -1}", "optimise.lr is -1.0; it must be positive"),
        ("3: 4", "unknown recipe key '3'"),
        ("optimiser: {lr: 1}", "did you mean 'optimise'"),
        ("base: digitz", "unknown recipe 'digitz'; did you mean 'digits'"),
        ("base: missing.yaml", "missing.yaml: no such recipe file"),
        ("variants: [a, b]", "variants is a mapping of names to lists"),
        ("variants: {a: optimise.lr=1}", "variants is a mapping of names to lists"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text, message, own):
    refused(message, load_recipe, own(text))


def test_files_that_are_not_there_or_not_text(tmp_path):
    refused("no such recipe file", load_recipe, str(tmp_path / "nowhere.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    refused("no such recipe file", load_recipe, str(tmp_path / "folder.yaml"))
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG\xff\xfe")
    refused("is not YAML", load_recipe, str(tmp_path / "picture.yaml"))


def test_build_recipe_refuses_what_is_no_mapping():
    refused("recipe must be a section", build_recipe, [1])


# One's own files


def test_a_recipe_of_ones_own(own):
    path = own(
        "model: {name: crate-base-patch16-224, from: runs/x}\noptimise: {lr: 1e-4}\n"
        "variants: {slow: [optimise.lr=1e-5]}"
    )
    recipe = load_recipe(path, ["schedule.epochs=3"])
    assert (recipe.model.name, recipe.model.from_) == ("crate-base-patch16-224", "runs/x")
    assert (recipe.optimise.lr, recipe.schedule.epochs) == (1e-4, 3.0)
    assert recipe.data == Recipe().data
    assert load_recipe(path, (), "slow").optimise.lr == 1e-5


def test_any_file_name_will_do_but_a_shipped_name_stays_itself(own, tmp_path, monkeypatch):
    assert load_recipe(own("schedule: {epochs: 3}", "mine")).schedule.epochs == 3
    (tmp_path / "digits").mkdir()  # a run or a folder of data
    own("schedule: {epochs: 3}", "fashion-mnist")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("digits") == load("digits")
    assert load_recipe("fashion-mnist") == load("fashion-mnist")


def test_base_merges_deeply_and_keeps_its_variants_to_itself(own):
    path = own("base: fashion-mnist\nmodel: {config: {hidden_size: 64}}\noptimise: {lr: 0.5}\naugment: {mean: [0.3]}")
    recipe, base = load_recipe(path), load("fashion-mnist")
    assert recipe.model.config == {**base.model.config, "hidden_size": 64}
    assert recipe.model.name == base.model.name
    assert recipe.optimise == replace(base.optimise, lr=0.5)
    assert recipe.augment == replace(base.augment, mean=(0.3,))
    assert (recipe.data, recipe.schedule, recipe.run) == (base.data, base.schedule, base.run)
    load("fashion-mnist", variant="vit")
    refused("unknown variant of .* 'vit'; known: none", load_recipe, path, (), "vit")


def test_base_of_a_base(own):
    middle = own("base: digits\nschedule: {epochs: 3}\nrun: {seed: 5}", "middle.yaml")
    recipe = load_recipe(own(f"base: {middle}\nschedule: {{batch: 32}}"))
    plain = load("digits")
    assert recipe.schedule == replace(plain.schedule, epochs=3, batch=32)
    assert recipe.run == replace(plain.run, seed=5)


def test_a_recipe_cannot_be_its_own_base(own, tmp_path):
    refused("is its own base", load_recipe, own(f"base: {tmp_path / 'own.yaml'}"))
    own(f"base: {tmp_path / 'two.yaml'}", "one.yaml")
    refused("is its own base", load_recipe, own(f"base: {tmp_path / 'one.yaml'}", "two.yaml"))


def test_the_round_trip_keeps_every_kind_of_value(tmp_path):
    recipe = load_recipe(
        "digits",
        ["model.from=runs/x", "optimise.betas=[0.8, 0.95]", "augment.mean=[0.1]", "augment.std=[1e-5]",
         "model.config.attention_scale=1e-7", "data.name=Bücher/β", "schedule.steps=7"],
    )  # fmt: skip
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe
