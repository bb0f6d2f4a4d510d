"""Recipe files: names and paths, inheritance, variants, overrides, round trips, and one line for bad files."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from codingrate.errors import ALIASES
from codingrate.recipes import Recipe, build_recipe, load_recipe, recipe_keys, save_recipe
from codingrate.recipes.schema import ModelSection
from tests import refusals

from .values import load, value


def refused(pattern, call, *args, **kwargs):
    """Check a refusal as `refusals.refused` does, by a regular expression."""
    assert re.search(pattern, refusals.refused("", call, *args, **kwargs))


@pytest.fixture
def own(tmp_path):
    """Return a function that writes a recipe file and returns its path."""

    def write(text, name="own.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


# Overrides


OVERRIDES = [
    ("schedule.batch_size=96", "schedule.batch_size", 96),
    ("optimizer.lr=0.003", "optimizer.lr", 0.003),
    ("optimizer.lr=1e-3", "optimizer.lr", 1e-3),
    ("optimizer.lr=2.5E-3", "optimizer.lr", 2.5e-3),
    ("schedule.batch_size=1e3", "schedule.batch_size", 1000),
    ("model.config.step_size=1e-2", "model.config.step_size", 0.01),
    ("model.config.patch_norm=false", "model.config.patch_norm", False),
    ("model.config.head_dim=null", "model.config.head_dim", None),
    ("model.config={hidden_size: 48}", "model.config", {"hidden_size": 48}),
    ("optimizer.betas=[0.9, 0.98]", "optimizer.betas", [0.9, 0.98]),
    ("augment.crop_scale=[0.25,1]", "augment.crop_scale", [0.25, 1.0]),
    ("optimizer.name=lion", "optimizer.name", "lion"),
    ("run.compile=yes", "run.compile", True),
    ("schedule.steps=", "schedule.steps", None),
    ("model.from=runs/a=b", "model.from", "runs/a=b"),
    ("data.name=a: [b", "data.name", "a: [b"),
    ("data.name=/data/1e-3.d", "data.name", "/data/1e-3.d"),
]


def test_override():
    for override, key, wanted in OVERRIDES:
        for overrides in ([override], {override.partition("=")[0]: wanted}):
            result = value(load_recipe("digits", overrides), key)
            assert result == wanted, override
            assert type(result) is type(wanted), override


def test_overrides_leave_the_rest_alone_and_the_last_wins():
    changed = load_recipe("digits", ["model.config.hidden_size=48", "optimizer.lr=1", "optimizer.lr=2"])
    assert changed.optimizer.lr == 2
    plain = load("digits")
    assert changed.model.config == {**plain.model.config, "hidden_size": 48}
    assert (changed.data, changed.schedule, changed.augment) == (plain.data, plain.schedule, plain.augment)


def test_overrides_win_over_a_variant():
    recipe = load_recipe("crate-base-imagenet1k", ["optimizer.lr=7e-4"], "lr-4.8e-4")
    assert recipe.optimizer.lr == 7e-4


def test_loads_do_not_affect_each_other():
    before = load_recipe("digits")
    load_recipe("digits", ["model.config.hidden_size=48", "schedule.epochs=1"])
    assert load_recipe("digits") == before


def test_a_mapping_of_overrides_holds_values_not_text():
    recipe = load_recipe("digits", {"optimizer.lr": 0.003, "data.name": "1e3", "model.config.head_dim": None})
    assert (recipe.optimizer.lr, recipe.data.name, recipe.model.config["head_dim"]) == (0.003, "1e3", None)


def test_the_source_brings_its_own_architecture():
    """`model.from` replaces the model that a recipe describes; what is set beside it stays."""
    assert load_recipe("digits", ["model.from=runs/a"]).model == ModelSection(from_="runs/a")
    changes = ["model.config.dropout=0.5", "model.from=runs/a", "model.freeze=true"]
    expected = ModelSection(from_="runs/a", config={"dropout": 0.5}, freeze=True)
    assert load_recipe("digits", changes).model == expected
    own = load_recipe("finetune-cifar10", ["model.from=runs/a"]).model
    assert own == replace(load_recipe("finetune-cifar10").model, from_="runs/a"), "made to start from it"


def test_every_key_is_described_and_every_alias_is_a_key():
    keys = recipe_keys()
    assert keys["optimizer.lr"] == (1e-3, "Peak learning rate.")
    assert all(description.endswith((".", ")")) for _, description in keys.values())
    assert {alias for alias in ALIASES.values() if not alias.startswith("model.config.")} <= set(keys)
    table = "".join(f"| `{key}` | {_shown(default)} | {text} |\n" for key, (default, text) in keys.items())
    document = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    assert table in document, f"docs/recipes.md must hold this table:\n{table}"


def _shown(default):
    return "" if default is None else f"`{json.dumps(default)}`"


# Refusals


BAD_OVERRIDES = [
    ("optimizer.lrr=1", "unknown recipe key 'optimizer.lrr'; did you mean 'optimizer.lr'"),
    ("optimize.lr=1", "unknown recipe key 'optimize'; did you mean 'optimizer'"),
    ("shedule.epochs=3", "did you mean 'schedule'"),
    ("schedule.batch=3", "did you mean 'schedule.batch_size'"),
    ("augment.imgsize=3", "did you mean 'augment.image_size'"),
    ("run.sed=3", "did you mean 'run.seed'"),
    ("text.blocks=64", "did you mean 'text.block'"),
    ("model.from_=x", "did you mean 'model.from'"),
    ("base=digits", "unknown recipe key 'base'"),
    ("lr=1", "unknown recipe key 'lr'; did you mean 'optimizer.lr'"),
    ("optimizer.learning_rate=1", "did you mean 'optimizer.lr'"),
    ("epochs=3", "did you mean 'schedule.epochs'"),
    ("run.batch_size=3", "did you mean 'schedule.batch_size'"),
    ("model.num_heads=3", "did you mean 'model.config.num_attention_heads'"),
    ("optimizer.lr=fast", "optimizer.lr is 'fast'; it must be a valid number"),
    ("optimizer.lr=-1e-3", "optimizer.lr is -0.001; it must be greater than 0"),
    ("optimizer.lr=.nan", "optimizer.lr is nan; it must be a finite number"),
    ("augment.crop=centre", "augment.crop is 'centre'; .*'center'"),
    ("optimizer=3", "optimizer must be a section"),
    ("optimizer.lr.peak=1", "lr is not a section"),
    ("optimizer.lr", "override 'optimizer.lr' must have the form key=value"),
    ("=3", "override '=3' must have the form key=value"),
    ("", "override '' must have the form key=value"),
]


def test_a_bad_override_is_refused_in_one_line():
    for override, message in BAD_OVERRIDES:
        refused(message, load_recipe, "digits", [override])


def test_unknown_recipe_and_variant_offer_the_nearest():
    refused("unknown recipe 'digit'; did you mean 'digits'", load_recipe, "digit")
    refused("did you mean 'crate-base-imagenet1k'", load_recipe, "crate-base-imagenet-1k")
    refused("variant of crate-base-imagenet1k 'eta-0.2'; did you mean 'eta-0.02'", load_recipe,
            "crate-base-imagenet1k", (), "eta-0.2")  # fmt: skip
    refused("unknown variant of vit-small-imagenet1k 'x'; known: none", load_recipe, "vit-small-imagenet1k", (), "x")


BAD_FILES = [
    ("optimizer: [", "not a YAML file"),
    ("optimizer:\n\tlr: 1", "not a YAML file"),
    ("- a\n- b", "must be a mapping of keys"),
    ("just words", "must be a mapping of keys"),
    ("", "must be a mapping of keys"),
    ("optimizer:", "optimizer must be a section"),
    ("optimizer: 3", "optimizer must be a section"),
    ("model: [x]", "model must be a section"),
    ("optimizer: {lr: x}", "optimizer.lr is 'x'; .*number"),
    ("optimizer: {lr: -1}", "optimizer.lr is -1; it must be greater than 0"),
    ("3: 4", "unknown recipe key '3'"),
    ("optimiser: {lr: 1}", "did you mean 'optimizer'"),
    ("base: digitz", "unknown recipe 'digitz'; did you mean 'digits'"),
    ("base: missing.yaml", "no such recipe file: missing.yaml"),
    ("variants: [a, b]", "`variants` must be a mapping of names to lists"),
    ("variants: {a: optimizer.lr=1}", "`variants` must be a mapping of names to lists"),
]


def test_a_bad_file_is_refused_in_one_line(own):
    for text, message in BAD_FILES:
        refused(message, load_recipe, own(text))


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 20))


HOSTILE_FILES = [
    (BOMB, "line 2: anchors and aliases are not supported"),
    (MERGES, "anchors and aliases are not supported"),
    ("model: &a\n  config: *a", "line 2: anchors and aliases are not supported"),
    ("model: {config: " + "[" * 3000 + "]" * 3000 + "}", "more than 50 brackets are nested"),
    ("model: " + "[" * 60_000, "more than 50 brackets are nested"),
    ("- " * 5000, "lists are nested too deeply"),
    ("run: {seed: !!int }", "a value cannot be read"),
    ("{" * 3000, "not a YAML file"),
    ("run: {seed: " + "9" * 5000 + "}", "a value cannot be read: Exceeds the limit"),
    ("run: {seed: " + "9" * 4000 + "}", "run.seed is 9999.*…; it must be less than 4294967296"),
    ("run: {seed: !!int x}", "a value cannot be read"),
    ("run: {seed: !!float x}", "a value cannot be read"),
    ("run: {compile: !!bool x}", "a value cannot be read"),
    ("run: {seed: !!timestamp x}", "a value cannot be read"),
    ("data: {name: 2024-99-99}", "a value cannot be read"),
    ("data: {name: 2024-09-09}", "data.name is datetime.date"),
    ("data: {name: !!python/object/apply:os.system [id]}", "not a YAML file"),
    ("schedule: {epochs: .inf}", "schedule.epochs is inf; it must be a finite number"),
    ("schedule: {epochs: 1e999}", "schedule.epochs is inf"),
    ("x" * 2**17 + ": 1", "is larger than 131,072 bytes"),
    ("a\0b: 1", "not a YAML file"),
    ("x" * 900 + ": 1", "unknown recipe key 'xxx.*…; "),
]


def test_a_hostile_file_is_refused_at_once(own):
    """To read some of them in full would take more memory and time than there is."""
    for text, message in HOSTILE_FILES:
        refused(message, load_recipe, own(text))


@pytest.mark.parametrize(
    "override", ["run.seed=" + "9" * 5000, "run.seed=!!int x", "run.seed=" + "[" * 3000, "run.seed=*a"]
)
def test_an_override_that_is_no_yaml_is_text(override):
    refused("run.seed is '.*; .*integer", load_recipe, "digits", [override])


def test_overrides_of_other_types():
    refused("override 3 must have the form key=value", load_recipe, "digits", [3])
    refused("unknown recipe key", load_recipe, "digits", {"model" + ".a" * 5000: 1})
    refused("model.config is", load_recipe, "digits", {"model.config" + ".a" * 5000: 1})


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "a\ud800", ""])
def test_names_that_no_recipe_can_have(name):
    refused("unknown recipe", load_recipe, name)


def test_files_that_are_missing_or_not_text(tmp_path):
    refused("no such recipe file", load_recipe, str(tmp_path / "nowhere.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    refused("no such recipe file", load_recipe, str(tmp_path / "folder.yaml"))
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG\xff\xfe")
    refused("not a YAML file", load_recipe, str(tmp_path / "picture.yaml"))


def test_build_recipe_refuses_other_than_mappings():
    refused("recipe must be a section", build_recipe, [1])


# Own files


def test_an_own_recipe(own):
    path = own(
        "model: {name: crate-base-patch16-224, from: runs/x}\noptimizer: {lr: 1e-4}\n"
        "variants: {slow: [optimizer.lr=1e-5]}"
    )
    recipe = load_recipe(path, ["schedule.epochs=3"])
    assert (recipe.model.name, recipe.model.from_) == ("crate-base-patch16-224", "runs/x")
    assert (recipe.optimizer.lr, recipe.schedule.epochs) == (1e-4, 3.0)
    assert recipe.data == Recipe().data
    assert load_recipe(path, (), "slow").optimizer.lr == 1e-5


def test_any_file_name_is_accepted_but_a_shipped_name_wins(own, tmp_path, monkeypatch):
    assert load_recipe(own("schedule: {epochs: 3}", "mine")).schedule.epochs == 3
    (tmp_path / "digits").mkdir()  # a run folder or a data folder
    own("schedule: {epochs: 3}", "fashion-mnist")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("digits") == load("digits")
    assert load_recipe("fashion-mnist") == load("fashion-mnist")


def test_base_merges_deeply_and_keeps_its_variants_to_itself(own):
    path = own("base: fashion-mnist\nmodel: {config: {hidden_size: 64}}\noptimizer: {lr: 0.5}\naugment: {mean: [0.3]}")
    recipe, base = load_recipe(path), load("fashion-mnist")
    assert recipe.model.config == {**base.model.config, "hidden_size": 64}
    assert recipe.model.name == base.model.name
    assert recipe.optimizer == replace(base.optimizer, lr=0.5)
    assert recipe.augment == replace(base.augment, mean=(0.3,))
    schedule = replace(base.schedule, fixed=("optimizer.lr",))
    assert (recipe.data, recipe.schedule, recipe.run) == (base.data, schedule, base.run)
    load("fashion-mnist", variant="vit")
    refused("unknown variant of .* 'vit'; known: none", load_recipe, path, (), "vit")


def test_base_of_a_base(own):
    middle = own("base: digits\nschedule: {epochs: 3}\nrun: {seed: 5}", "middle.yaml")
    recipe = load_recipe(own(f"base: {middle}\nschedule: {{batch_size: 32}}"))
    plain = load("digits")
    assert recipe.schedule == replace(plain.schedule, epochs=3, batch_size=32)
    assert recipe.run == replace(plain.run, seed=5)


def test_a_recipe_cannot_be_its_own_base(own, tmp_path):
    refused("the recipe inherits from itself", load_recipe, own(f"base: {tmp_path / 'own.yaml'}"))
    own(f"base: {tmp_path / 'two.yaml'}", "one.yaml")
    refused("the recipe inherits from itself", load_recipe, own(f"base: {tmp_path / 'one.yaml'}", "two.yaml"))


def test_the_round_trip_keeps_every_kind_of_value(tmp_path):
    recipe = load_recipe(
        "digits",
        ["model.from=runs/x", "optimizer.betas=[0.8, 0.95]", "augment.mean=[0.1]", "augment.std=[1e-5]",
         "model.config.attention_scale=1e-7", "data.name=Bücher/β", "schedule.steps=7"],
    )  # fmt: skip
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe
