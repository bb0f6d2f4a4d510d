"""Recipes are read, overridden and built on each other; bad ones are refused in one line."""

import re
from dataclasses import replace

import pytest

from codingrate.training.recipe import Recipe
from codingrate.training.recipe_files import (
    build_recipe,
    load_recipe,
    save_recipe,
)
from tests import refusals

from .test_recipes import load, value


def refused(pattern, call, *args, **kwargs):
    """As `refusals.refused`, by a regular expression."""
    assert re.search(pattern, refusals.refused("", call, *args, **kwargs))


@pytest.fixture
def own(tmp_path):
    """Writes a recipe of one's own and gives its path."""

    def write(text, name="own.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


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
        ("augment.flip=2", "augment.flip: input should be less than or equal to 1"),
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
