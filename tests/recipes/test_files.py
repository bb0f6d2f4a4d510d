"""Recipe files: names and paths, inheritance, variants, overrides, round trips, and one line for bad files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from codingrate.errors import ALIASES
from codingrate.recipes import Recipe, build_recipe, load_recipe, recipe_keys, save_recipe
from codingrate.recipes.schema import ModelSection
from tests.refusals import refused

from .values import load, value


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
    plain, before = load("digits"), load_recipe("digits")
    changed = load_recipe("digits", ["model.config.hidden_size=48", "optimizer.lr=1", "optimizer.lr=2"])
    assert changed.optimizer.lr == 2
    assert changed.model.config == {**plain.model.config, "hidden_size": 48}
    assert (changed.data, changed.schedule, changed.augment) == (plain.data, plain.schedule, plain.augment)
    assert load_recipe("digits") == before, "loads do not affect each other"
    assert load_recipe("crate-base-imagenet1k", ["optimizer.lr=7e-4"], "lr-4.8e-4").optimizer.lr == 7e-4
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


BAD_OVERRIDES = {
    "optimizer.lrr=1": "optimizer.lr", "optimize.lr=1": "optimizer", "shedule.epochs=3": "schedule",
    "schedule.batch=3": "schedule.batch_size", "augment.imgsize=3": "augment.image_size", "run.sed=3": "run.seed",
    "text.blocks=64": "text.block", "model.from_=x": "model.from", "lr=1": "optimizer.lr",
    "epochs=3": "schedule.epochs",
    "optimizer.learning_rate=1": "optimizer.lr", "run.batch_size=3": "schedule.batch_size", "base=digits": "base",
    "model.num_heads=3": "model.config.num_attention_heads", "augment.crop=centre": "'center'",
    "optimizer.lr=fast": "optimizer.lr", "optimizer.lr=-1e-3": "optimizer.lr", "optimizer.lr=.nan": "optimizer.lr",
    "optimizer=3": "optimizer", "optimizer.lr.peak=1": "lr", "optimizer.lr": "key=value", "=3": "key=value",
    "": "key=value",
    "run.seed=*a": "run.seed", "run.seed=!!int x": "run.seed",
}  # fmt: skip
"""Overrides, and the key or the form that the refusal must name."""


def test_a_bad_override_is_refused_in_one_line():
    for override, words in (
        *BAD_OVERRIDES.items(),
        *((f"run.seed={text}", "run.seed") for text in ("9" * 5000, "[" * 3000)),
    ):
        refused(words, load_recipe, "digits", [override])
    refused("3", load_recipe, "digits", [3])
    for key, words in (("model", "unknown recipe key"), ("model.config", "model.config")):
        refused(words, load_recipe, "digits", {key + ".a" * 5000: 1})


@pytest.mark.parametrize(
    ("name", "variant", "words"),
    [
        ("digit", None, "'digits'"), ("crate-base-imagenet-1k", None, "'crate-base-imagenet1k'"),
        ("crate-base-imagenet1k", "eta-0.2", "'eta-0.02'"), ("vit-small-imagenet1k", "x", "none"),
        *((name, None, "unknown recipe") for name in ("a\0b", "x" * 5000, "a\ud800", "")),
    ],
)  # fmt: skip
def test_unknown_recipe_and_variant_offer_the_nearest(name, variant, words):
    refused(words, load_recipe, name, (), variant)


BAD_FILES = {
    "optimizer: [": "YAML", "optimizer:\n\tlr: 1": "YAML", "- a\n- b": "", "just words": "", "": "",
    "optimizer:": "optimizer",
    "optimizer: 3": "optimizer", "model: [x]": "model", "optimizer: {lr: x}": "optimizer.lr", "3: 4": "'3'",
    "optimizer: {lr: -1}": "optimizer.lr", "optimiser: {lr: 1}": "'optimizer'", "base: digitz": "'digits'",
    "base: missing.yaml": "missing.yaml", "variants: [a, b]": "variants", "variants: {a: optimizer.lr=1}": "variants",
}  # fmt: skip


def test_a_bad_file_is_refused_in_one_line(own):
    for text, words in BAD_FILES.items():
        refused(words, load_recipe, own(text))
    refused("section", build_recipe, [1])


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 20))


HOSTILE_FILES = [
    *((text, "line 2: anchors") for text in (BOMB, "model: &a\n  config: *a")),
    (MERGES, "anchors"),
    *(("model: {config: " + text, "brackets") for text in ("[" * 3000 + "]" * 3000 + "}", "[" * 60_000)),
    ("- " * 5000, "too deeply"),
    ("run: {seed: " + "9" * 5000 + "}", "cannot be read"),
    ("run: {seed: " + "9" * 4000 + "}", "run.seed"),
    *((f"run: {{seed: !!{tag}}}", "cannot be read") for tag in ("int ", "int x", "float x", "bool x", "timestamp x")),
    ("data: {name: 2024-99-99}", "cannot be read"),
    ("data: {name: 2024-09-09}", "data.name"),
    *((text, "YAML") for text in ("data: {name: !!python/object/apply:os.system [id]}", "{" * 3000, "a\0b: 1")),
    *((f"schedule: {{epochs: {number}}}", "schedule.epochs") for number in (".inf", "1e999")),
    ("x" * 2**17 + ": 1", "131,072 bytes"),
    ("x" * 900 + ": 1", "unknown recipe key"),
]


def test_a_hostile_file_is_refused_at_once(own):
    """To read some of them in full would take more memory and time than there is."""
    for text, message in HOSTILE_FILES:
        refused(message, load_recipe, own(text))


def test_files_that_are_missing_or_not_text(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG\xff\xfe")
    for name in ("nowhere", "folder", "picture"):
        refused(f"{name}.yaml", load_recipe, str(tmp_path / f"{name}.yaml"))


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
    refused("'vit'", load_recipe, path, (), "vit")


def test_base_of_a_base(own):
    middle = own("base: digits\nschedule: {epochs: 3}\nrun: {seed: 5}", "middle.yaml")
    recipe = load_recipe(own(f"base: {middle}\nschedule: {{batch_size: 32}}"))
    plain = load("digits")
    assert recipe.schedule == replace(plain.schedule, epochs=3, batch_size=32)
    assert recipe.run == replace(plain.run, seed=5)


def test_a_recipe_cannot_be_its_own_base(own, tmp_path):
    for name, base in (("own", "own"), ("one", "two"), ("two", "one")):
        path = own(f"base: {tmp_path / base}.yaml", f"{name}.yaml")
        refused("itself" if name == base or name == "two" else "two.yaml", load_recipe, path)


def test_the_round_trip_keeps_every_kind_of_value(tmp_path):
    recipe = load_recipe(
        "digits",
        ["model.from=runs/x", "optimizer.betas=[0.8, 0.95]", "augment.mean=[0.1]", "augment.std=[1e-5]",
         "model.config.attention_scale=1e-7", "data.name=Bücher/β", "schedule.steps=7"],
    )  # fmt: skip
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe
