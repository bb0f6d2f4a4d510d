"""Shipped recipes parse, build their models, and state the paper's settings."""

import re
from dataclasses import replace

import pytest
import torch
import yaml

from codingrate.data import GLUE, dataset_names, text_names
from codingrate.models import create_model
from codingrate.models.presets import RELEASED_MAE
from codingrate.recipes import Recipe, load_recipe, recipe_header, recipe_names, recipe_path, save_recipe
from codingrate.recipes.files import HEADER
from codingrate.recipes.schema import MUST_GIVE, TEXT_TASKS

from .values import load, value

NAMES = recipe_names()
VARIANTS = {
    name: list(yaml.safe_load(recipe_path(name).read_text(encoding="utf-8")).get("variants", {})) for name in NAMES
}

IMAGENET_1K = [f"crate-{size}-imagenet1k" for size in ("tiny", "small", "base", "large")]
IMAGENET_21K = [f"crate-{size}-imagenet21k" for size in ("tiny", "small", "base")]
TWINS = [f"vit-{size}-imagenet1k" for size in ("tiny", "small", "base", "large")]
TWINS_21K = [f"vit-{size}-imagenet21k" for size in ("tiny", "small", "base")]
MAE_TWINS = [f"vit-mae-{size}" for size in ("small", "base", "large")]
DINO_TWINS = [f"vit-dino-{size}" for size in ("small-patch16", "small-patch8", "base-patch8")]
TRANSFER = [f"finetune-{data}" for data in ("cifar10", "cifar100", "flowers102", "oxford-pets")]
FINETUNE = [*TRANSFER, "finetune-imagenet1k"]
MAE = [f"crate-mae-{size}" for size in ("small", "base", "large")]
DINO = ["crate-dino-small-patch16", "crate-dino-base-patch8"]
BERT = [f"crate-bert-{size}" for size in ("medium", "base", "large")]
GPT = [f"crate-gpt-{size}" for size in ("small", "base", "large")]
BERT_TWINS = [f"bert-{size}" for size in ("medium", "base", "large")]
GPT_TWINS = [f"gpt2-{size}" for size in ("small", "base", "large")]
LAPTOP = [
    "digits", "fashion-mnist", "cifar10", "cifar10-small", "digits-mae", "cifar10-mae", "digits-dino", "cifar10-dino",
    "pydoc-gpt", "pydoc-bert", "wikitext-gpt", "wikitext-bert", "sst2", "images", "sentences", "shakespeare",
]  # fmt: skip
STARTED = [*FINETUNE, "glue", "sst2"]


VOCABULARIES = {
    "FacebookAI/roberta-base": 50265,
    "google-bert/bert-base-uncased": 30522,
    "openai-community/gpt2": 50257,
    "bytes": 261,
}


def build(recipe, classes=7):
    """Build the model of a recipe on the meta device, with the config fields that its task gives it."""
    names = [f"class {index}" for index in range(classes)]
    fields = {"image_size": recipe.augment.image_size, "num_channels": recipe.augment.channels}
    if recipe.task.endswith("-lm"):
        words = VOCABULARIES.get(recipe.text.tokenizer, recipe.text.vocab_size)
        fields = {"vocab_size": words, "max_position_embeddings": recipe.text.block}
    elif recipe.task != "autoencoding":
        fields |= {
            "num_labels": classes,
            "id2label": dict(enumerate(names)),
            "label2id": {n: i for i, n in enumerate(names)},
        }
    with torch.device("meta"):
        return create_model(recipe.model.name, **{**fields, **recipe.model.config})


# Files


def test_every_experiment_of_the_paper_is_shipped():
    vision = {*IMAGENET_1K, *IMAGENET_21K, *TWINS, *TWINS_21K, *FINETUNE, *MAE, *MAE_TWINS, *DINO, *DINO_TWINS}
    assert sorted({*vision, *BERT, *GPT, *BERT_TWINS, *GPT_TWINS, "glue", *LAPTOP} - set(NAMES)) == []


def test_round_trip_and_variants(tmp_path):
    for place in [(name, variant) for name in NAMES for variant in (None, *VARIANTS[name])]:
        name, variant = place
        recipe = load(name, variant=variant)
        assert isinstance(recipe, Recipe), place
        assert variant is None or recipe != load(name), place
        names = text_names() if recipe.task in TEXT_TASKS else dataset_names()
        assert recipe.data.name in (*names, *GLUE, MUST_GIVE), place
        file = tmp_path / name / str(variant) / "recipe.yaml"
        save_recipe(recipe, file)
        assert load_recipe(str(file)) == recipe, place
        assert [path.name for path in file.parent.iterdir()] == ["recipe.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_header(name):
    lines, header = recipe_path(name).read_text(encoding="utf-8").splitlines(), recipe_header(name)
    assert all(header.values())
    assert [f"# {key.capitalize()}: {text}" for key, text in header.items()] == lines[: len(HEADER)]
    assert re.match(rf"crate train {name}( |$)", header["command"])
    if name not in LAPTOP:  # large runs are not measured; their headers may state nothing but the paper's results
        assert header["time"].startswith("not measured here")
        assert re.match(r"not measured here; the paper\b", header["metric"])
    if not header["metric"].startswith(("not measured", "depends on")):
        assert re.search(r"seeds?\b.*, measured with \d+\.\d+\.\d+", header["metric"]), "seed and version"
    assert ("model.from=" in header["command"]) == (name in STARTED)
    assert load(name).data.name != MUST_GIVE or re.search("--data (PATH|FILE)|--variant TASK", header["command"])


def test_builds_its_models():
    places = [
        (name, variant) for name in NAMES if load(name).model.from_ is None for variant in (None, *VARIANTS[name])
    ]
    assert len(places) > 40
    for name, variant in places:
        recipe = load(name, variant=variant)
        model = build(recipe, classes=7)
        config = model.config
        if recipe.task == "classification":
            assert (config.num_labels, config.id2label[6]) == (7, "class 6")
        if recipe.task.endswith("-lm"):
            assert config.max_tokens >= recipe.text.block
        elif config.modality == "vision":
            assert (config.image_size, config.num_channels) == (recipe.augment.image_size, recipe.augment.channels)
        assert {key: getattr(config, key) for key in recipe.model.config} == recipe.model.config
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_batches_divide_over_four_devices():
    pairs = [(name, variant) for name in NAMES if name not in LAPTOP for variant in (None, *VARIANTS[name])]
    rests = {pair: load(pair[0], variant=pair[1]) for pair in pairs}
    rests = {pair: r.schedule.batch_size % (4 * r.run.per_device_batch_size) for pair, r in rests.items()}
    assert {pair: rest for pair, rest in rests.items() if rest} == {}


# The paper's settings


PARAMETERS = {  # recipe: number of classes, number of parameters
    "crate-tiny-imagenet1k": (1000, 6_090_856),
    "crate-small-imagenet1k": (1000, 13_116_328),
    "crate-base-imagenet1k": (1000, 22_796_008),
    "crate-large-imagenet1k": (1000, 77_641_192),
    "crate-tiny-imagenet21k": (21842, 5_743_250),
    "crate-small-imagenet21k": (21842, 14_118_482),
    "crate-base-imagenet21k": (21842, 38_831_570),
    "crate-bert-medium": (0, 32_626_265),
    "crate-bert-base": (0, 60_922_713),
    "crate-bert-large": (0, 128_723_033),
    "crate-gpt-base": (0, 60_701_184),
    "crate-gpt-large": (0, 242_880_000),
}


def test_parameters():
    assert {name: (n, build(load(name), n).num_parameters()) for name, (n, _) in PARAMETERS.items()} == PARAMETERS


# Where the paper is silent, the released code decides: everything decays, gradients are not clipped.
RELEASED = {"optimizer.decay": "all", "optimizer.max_grad_norm": 0.0}
RELEASED_DINO = {"optimizer.lr": 1e-3, "optimizer.weight_decay": 0.04, "optimizer.final_weight_decay": 0.4}
PAPER = [
    (
        [*IMAGENET_1K, *TWINS],
        {
            "data.name": "imagenet-1k",
            "optimizer.name": "lion",
            "optimizer.lr": 2.4e-4,
            "optimizer.weight_decay": 0.5,
            "optimizer.betas": [0.9, 0.99],
            "optimizer.label_smoothing": 0.1,
            "schedule.batch_size": 2048,
            "schedule.epochs": 150,
            "schedule.warmup_epochs": 5,
            "schedule.scheduler": "cosine",
            "augment.crop": "random-resized",
            "augment.flip": 0.5,
            "augment.rand_augment": None,
            "augment.interpolation": "bilinear",
            "augment.image_size": 224,
            "augment.evaluation": "center",
            **RELEASED,
        },
    ),
    (
        [*IMAGENET_21K, *TWINS_21K],
        {
            "data.name": "imagenet-21k",
            "optimizer.name": "lion",
            "optimizer.lr": 9.6e-5,
            "optimizer.weight_decay": 0.05,
            "schedule.batch_size": 4096,
            "schedule.epochs": 90,
            "augment.crop": "center",
            "augment.interpolation": "bilinear",
            "augment.evaluation_ratio": 1.0,
            "augment.flip": 0.5,
            **RELEASED,
        },
    ),
    (
        FINETUNE,
        {
            "optimizer.name": "adamw",
            "optimizer.lr": 5e-5,
            "optimizer.weight_decay": 0.01,
            "optimizer.label_smoothing": 0.0,
            "schedule.batch_size": 256,
            "augment.image_size": 224,
            "augment.flip": 0.5,
            "augment.rand_augment": [2, 14],
            "augment.interpolation": "bilinear",
            "model.from": MUST_GIVE,
            **RELEASED,
        },
    ),
    (TRANSFER, {"schedule.epochs": 200, "augment.evaluation": "resize"}),  # epochs of the released script
    (["finetune-imagenet1k"], {"schedule.epochs": 50, "augment.evaluation": "center"}),
    (
        MAE,
        {
            "task": "autoencoding",
            "optimizer.name": "adamw",
            "optimizer.lr": 3e-5,
            "optimizer.weight_decay": 0.1,
            "schedule.batch_size": 4096,
            "schedule.epochs": 800,
            "schedule.warmup_epochs": 40,
        },
    ),
    (
        DINO,
        {
            "task": "distillation",
            "optimizer.name": "adamw",
            "optimizer.lr": 2e-3,
            "optimizer.weight_decay": 0.005,
            "optimizer.max_grad_norm": 3.0,
            "optimizer.clip_by": "tensor",
            "schedule.epochs": 100,
            "distillation.student_temperature": 0.1,
            "distillation.teacher_temperature": 0.04,
            "distillation.final_teacher_temperature": 0.04,
            "distillation.momentum": 0.996,
        },
    ),
    (TWINS, {"model.config": {"pooling": "patches"}}),  # as the released code
    (DINO_TWINS, {"model.config": {"drop_path": 0.1}, **RELEASED_DINO}),
    (
        [*BERT, *BERT_TWINS],
        {
            "task": "masked-lm",
            "optimizer.lr": 1e-3,
            "optimizer.betas": [0.9, 0.98],
            "optimizer.weight_decay": 0.01,
            "schedule.batch_size": 8096,
            "schedule.steps": 30_000,
            "schedule.warmup_steps": 1800,
            "schedule.scheduler": "linear",
            "text.mask_probability": 0.15,
            "run.milestones": [6000, 12_000, 18_000, 24_000, 30_000],  # for the middle panel of fig:crate-text-evals
        },
    ),
    (BERT, {"text.tokenizer": "FacebookAI/roberta-base"}),
    (BERT_TWINS, {"text.tokenizer": "google-bert/bert-base-uncased"}),
    (
        [*GPT, *GPT_TWINS],
        {
            "task": "causal-lm",
            "data.name": "openwebtext",
            "optimizer.lr": 6e-4,
            "optimizer.betas": [0.9, 0.95],
            "optimizer.weight_decay": 0.1,
            "schedule.batch_size": 384,
            "schedule.steps": 600_000,
            "schedule.warmup_steps": 2000,
            "schedule.scheduler": "cosine",
            "schedule.final_lr": 6e-5,
            "text.block": 1024,
        },
    ),
    (["glue"], {"task": "sequence-classification", "model.from": MUST_GIVE}),
]


def test_recipes_have_the_settings_of_the_paper():
    wanted = {(name, key): wish for names, table in PAPER for name in names for key, wish in table.items()}
    assert {(name, key): value(load(name), key) for name, key in wanted} == wanted
    released = load("crate-base-imagenet1k", variant="released")
    assert {key: value(released, key) for key in RELEASED} == RELEASED
    augments = [load(name).augment for name in (*IMAGENET_1K, "finetune-imagenet1k")]
    assert {round(augment.image_size * augment.evaluation_ratio) for augment in augments} == {256}


GLUE_EPOCHS = {"mrpc": 5, "mnli": 8, "wnli": 5}


ADAM = {"optimizer.name": "adam"}
ABLATIONS = {
    ("crate-base-imagenet1k", "eta-0.02"): {"model.config": {"step_size": 0.02}},
    ("crate-base-imagenet1k", "eta-0.5"): {"model.config": {"step_size": 0.5}},
    ("crate-base-imagenet1k", "lambda-0.02"): {"model.config": {"sparsity": 0.02}},
    ("crate-base-imagenet1k", "lambda-0.5"): {"model.config": {"sparsity": 0.5}},
    ("crate-base-imagenet1k", "epochs-90"): {"schedule.epochs": 90},
    ("crate-base-imagenet1k", "epochs-300"): {"schedule.epochs": 300},
    ("crate-base-imagenet1k", "wd-1.0"): {"optimizer.weight_decay": 1.0},
    ("crate-base-imagenet1k", "wd-0.05"): {"optimizer.weight_decay": 0.05},
    ("crate-base-imagenet1k", "lr-4.8e-4"): {"optimizer.lr": 4.8e-4},
    ("crate-base-imagenet1k", "lr-1.2e-4"): {"optimizer.lr": 1.2e-4},
    ("crate-base-imagenet1k", "mssa-tied"): {"model.config": {"attention": "mssa-tied"}},
    ("crate-base-imagenet1k", "prox"): {"model.config": {"sparsifier": "prox", "prox_alpha": 1.0}},
    ("crate-base-imagenet1k", "soft-threshold"): {"model.config": {"sparsifier": "ista-soft", "sparsity": 10.0}},
    ("crate-base-imagenet1k", "no-ista"): {"model.config": {"sparsifier": "none"}},
    ("crate-base-imagenet1k", "released"): {
        "model.config": {"skip": "residual"},
        "optimizer.lr": 2e-4,
        "optimizer.weight_decay": 0.05,
        "schedule.epochs": 200,
        "schedule.batch_size": 512,
        "schedule.warmup_epochs": 20,
        "run.per_device_batch_size": 64,
        "run.precision": "fp16",
    },
    ("crate-small-imagenet21k", "mssa-mlp"): {"model.config": {"sparsifier": "mlp"}},
    ("crate-small-imagenet21k", "mhsa-ista"): {"model.config": {"attention": "mhsa"}},
    ("crate-small-imagenet21k", "vit"): {
        "model.config": {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual", "patch_norm": False}
    },
    **{(name, "batch-512"): {"schedule.batch_size": 512} for name in TRANSFER},
    **{(name, "after-21k"): {"schedule.batch_size": 128, "run.per_device_batch_size": 32} for name in TRANSFER},
    **{(name, "mae"): {"model.config": {"head_norm": False, "pooling": "mean"}} for name in TRANSFER},
    ("finetune-imagenet1k", "base"): {"schedule.batch_size": 128},
    ("crate-mae-base", "base-rate"): {"optimizer.lr": 4.8e-4},
    ("crate-mae-base", "released"): {"model.config": dict(RELEASED_MAE)},
    ("crate-mae-base", "norm-pix"): {"model.config": {"loss_on": "masked", "normalize_pixels": True}},
    ("crate-dino-small-patch16", "paper-head"): {"model.config": {"projection_head": "paper"}},
    ("crate-dino-small-patch16", "released"): {**RELEASED_DINO, "model.config": {"drop_path": 0.1}},
    ("crate-dino-small-patch16", "warm-teacher"): {
        "distillation.final_teacher_temperature": 0.07,
        "distillation.temperature_epochs": 30,
    },
    ("crate-dino-small-patch16", "decay-cosine"): {"optimizer.final_weight_decay": 0.4},
    ("crate-dino-small-patch16", "drop-path"): {"model.config": {"drop_path": 0.1}},
    ("crate-bert-base", "adam"): ADAM,
    ("crate-bert-base", "batch-8192"): {"schedule.batch_size": 8192, "run.per_device_batch_size": 32},
    ("crate-gpt-base", "adam"): ADAM,
    ("crate-gpt-base", "no-ista"): {"model.config": {"vocab_size": 50304, "sparsifier": "none"}},
    ("crate-bert-base", "learned-positions"): {
        "model.config": {"dropout": 0.1, "max_position_embeddings": 514, "positions": "learned"}
    },
    ("crate-gpt-base", "learned-positions"): {"model.config": {"vocab_size": 50304, "positions": "learned"}},
    ("crate-gpt-base", "batch-480"): {"schedule.batch_size": 480},
    ("crate-gpt-base", "equations"): {
        "model.config": {"vocab_size": 50304, "text_form": "paper", "scaled_output_init": False}
    },
    ("crate-bert-base", "equations"): {
        "model.config": {"dropout": 0.1, "max_position_embeddings": 514, "text_form": "paper"}
    },
    ("vit-tiny-imagenet1k", "class-token"): {"model.config": {"pooling": "class"}},
    **{
        ("glue", name): {
            "data.name": name,
            "schedule.epochs": GLUE_EPOCHS.get(name, 3),
            "text.max_length": 128 if name == "wnli" else 512,
        }
        for name in GLUE
    },
}


def flat(recipe):
    """Return the values of a recipe at dotted keys, with the fields of a model's config as one value."""
    parts = {name: part if isinstance(part, dict) else {"": part} for name, part in recipe.to_dict().items()}
    return {f"{name}.{key}".rstrip("."): value for name, values in parts.items() for key, value in values.items()}


def test_ablations_change_what_their_rows_state_and_nothing_else():
    found = {}
    for name, variant in ((one, variant) for one in NAMES if one not in LAPTOP for variant in VARIANTS[one]):
        plain, changed, row = flat(load(name)), flat(load(name, variant=variant)), ABLATIONS.get((name, variant), {})
        found[name, variant] = {key: changed[key] for key in changed if changed[key] != plain[key] or key in row}
    assert found == ABLATIONS


BLACK_BOX = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual", "patch_norm": False}


@pytest.mark.parametrize(
    ("name", "variant", "equal"),
    [("wikitext-gpt", "gpt2", True), ("shakespeare", "gpt2", True), ("cifar10", "vit", True),
     ("fashion-mnist", "vit", False), ("cifar10-small", "vit", False)],
)  # fmt: skip
def test_twins_differ_only_in_the_model_or_in_its_blocks(name, variant, equal):
    plain, twin = load(name), load(name, variant=variant)
    assert replace(twin, model=plain.model) == plain
    if equal:
        sizes = [build(recipe).num_parameters() for recipe in (twin, plain)]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.03)
    else:
        assert twin.model.config == {**plain.model.config, **BLACK_BOX}
