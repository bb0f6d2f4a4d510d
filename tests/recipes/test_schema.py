"""The typed recipe: bounds of every setting, and settings that a task does not use."""

import dataclasses
import datetime
import math

import pytest

from codingrate.recipes import Recipe, build_recipe, load_recipe, recipe_keys
from codingrate.recipes.schema import MUST_GIVE, TEXT_TASKS
from tests.refusals import refused

BOUNDS = [
    (0, "optimizer.lr schedule.epochs schedule.steps schedule.batch_size run.per_device_batch_size run.log_steps"),
    (-3, "optimizer.lr schedule.epochs schedule.steps schedule.batch_size run.per_device_batch_size run.log_steps"),
    (0, "run.checkpoint_epochs run.checkpoint_steps run.save_total_limit run.layerwise_images data.test_share"),
    (0, "text.vocab_size text.max_length text.mask_probability distillation.final_teacher_temperature"),
    (0, "distillation.student_temperature distillation.teacher_temperature"),
    (-1, "data.split_seed data.workers data.max_corrupt optimizer.weight_decay optimizer.eps optimizer.max_grad_norm"),
    (-1, "optimizer.label_smoothing schedule.warmup_epochs schedule.warmup_steps schedule.final_lr run.seed run.ema"),
    (-1, "run.evaluate_epochs run.layerwise_epochs distillation.temperature_epochs distillation.center_momentum"),
    (-1, "distillation.momentum distillation.freeze_last_epochs optimizer.final_weight_decay views.local_count"),
    (1, "optimizer.label_smoothing run.ema text.mask_probability distillation.center_momentum text.block"),
    (1.5, "data.test_share data.max_corrupt distillation.momentum schedule.batch_size schedule.steps run.seed"),
    (1.5, "data.workers text.block"),
    (2**32, "run.seed data.split_seed data.workers"),
    (10**9, "text.block views.local_count augment.image_size"),
    (math.nan, "optimizer.lr optimizer.weight_decay schedule.epochs schedule.final_lr augment.affine_degrees"),
    (math.inf, "optimizer.lr optimizer.weight_decay schedule.epochs schedule.final_lr"),
    ("fast", "optimizer.lr run.ema schedule.epochs"),
    ([1], "optimizer.lr"),
    ("perhaps", "run.compile run.fsdp data.streaming model.freeze"),
    (3, "model.config text.columns"),
    ("other", "optimizer.name optimizer.decay optimizer.clip_by schedule.scheduler run.precision text.separate task"),
    (-2, "augment.flip augment.image_size"),
    (1e-45, "distillation.student_temperature"),
]


def nested(key, value):
    """Return the values of a recipe with one setting."""
    *sections, last = key.split(".")
    return {sections[0]: {last: value}} if sections else {last: value}


def test_a_value_out_of_bounds_is_refused_with_its_key_value_and_bound():
    for value, key in ((value, key) for value, keys in BOUNDS for key in keys.split()):
        line = refused("", build_recipe, {"task": "distillation"} | nested(key, value))
        assert line.startswith(f"{key} is {value!r}; it must be ")


@pytest.mark.parametrize(
    ("key", "value"),
    [("augment.std", [math.inf]), ("augment.mean", [-math.inf]), ("augment.jitter", [1e9, 0, 0, 0]),
     ("optimizer.betas", [0.9, 1.0]), ("optimizer.betas", [0.9])],
)  # fmt: skip
def test_an_entry_out_of_bounds_is_refused_with_its_key(key, value):
    refused(key, load_recipe, "digits", {key: value})


@pytest.mark.parametrize(
    ("text", "columns"),
    [("review", ("review",)), ("question,answer", ("question", "answer")), ("[one, two]", ("one", "two"))],
)
def test_columns_are_given_as_typed(text, columns):
    recipe = load_recipe("sst2", [f"text.columns={text}"])
    assert recipe.text.columns == columns
    assert build_recipe(recipe.to_dict()) == recipe


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("digits", "text.block=64"), ("digits-mae", "text.tokenizer=bytes"), ("pydoc-gpt", "text.mask_probability=0.3"),
        ("pydoc-bert", "text.columns=[a, b]"), ("sst2", "text.block=64"), ("wikitext-gpt", "text.uncased=true"),
        ("sst2", "text.uncased=true"), ("pydoc-gpt", "data.image_column=x"), ("pydoc-bert", "data.streaming=true"),
        ("pydoc-bert", "model.freeze=true"), ("digits-dino", "run.ema=0.5"), ("digits-dino", "run.fsdp=true"),
    ],
)  # fmt: skip
def test_a_setting_that_the_task_does_not_use_is_refused(name, override):
    refused(f"`{override.partition('=')[0]}`", load_recipe, name, [override])


@pytest.mark.parametrize(
    ("name", "override", "words"),
    [
        ("wikitext-gpt", "text.tokenizer=bytes", "`text.vocab_size`"), ("pydoc-gpt", "augment.flip=0.3", "`augment`"),
        ("pydoc-gpt", "views.local_count=3", "`views`"), ("digits", "views.local_count=3", "`views`"),
        ("digits", "distillation.momentum=0.9", "`distillation`"),
        ("digits-dino", "views.local_size=96", "views.local_size 96"),
    ],
)  # fmt: skip
def test_a_section_that_the_task_does_not_use_or_that_does_not_fit_is_refused(name, override, words):
    refused(words, load_recipe, name, [override])


def test_every_text_setting_is_used_by_some_task():
    names = {entry.name for entry in dataclasses.fields(Recipe().text)}
    assert set().union(*TEXT_TASKS.values()) == names


def test_a_choice_that_is_left_to_the_user_is_refused_on_use_only():
    recipe = build_recipe({"data": {"name": MUST_GIVE}, "model": {"from": MUST_GIVE}})
    for key, name in (("data.name", "data_name"), ("model.from", "source")):
        refused(key, getattr, recipe, name)
    plain = build_recipe({"data": {"name": "digits"}, "model": {"from": "runs/x"}})
    assert (plain.data_name, plain.source, Recipe().source) == ("digits", "runs/x", None)


def test_a_recipe_is_frozen_and_complete_in_plain_values():
    recipe = build_recipe({"model": {"from": "runs/x"}, "optimizer": {"betas": (0.8, 0.95)}})
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.run.seed = 3
    values = recipe.to_dict()
    assert (values["model"]["from"], values["optimizer"]["betas"]) == ("runs/x", [0.8, 0.95])
    assert {name: list(section) for name, section in values.items() if name not in ("task", "model")} == {
        entry.name: [inner.name for inner in dataclasses.fields(getattr(recipe, entry.name))]
        for entry in dataclasses.fields(recipe)
        if entry.name not in ("task", "model")
    }
    assert build_recipe(values) == recipe


# Values that no key has

KEYS = sorted(key for key in recipe_keys() if key != "model.config")
BELOW, ITSELF = [[]], []
for _ in range(500):
    BELOW = [BELOW]
ITSELF.append(ITSELF)
HOSTILE = {
    "not a number": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "400 digits": 10**400,
    "5000 digits": 10**5000, "negative": -(2**70), "itself": ITSELF, "nested": BELOW, "mapping": {1: {2: 3}},
    "date": datetime.date(2024, 1, 2), "bytes": b"\xff", "NUL": "a\0b", "surrogate": "a\ud800", "long": "x" * 10**5,
    "empty": "", "object": object(),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_key_takes_a_value_of_the_wrong_kind(name):
    for key in KEYS:
        line = refused("", build_recipe, nested(key, HOSTILE[name]))
        assert key in line
        assert len(line) < 400


def test_numbers_are_not_true_or_false():
    numbers = [key for key, (default, _) in recipe_keys().items() if type(default) in (int, float)]
    assert len(numbers) > 40
    for key in numbers:
        refused(f"{key} is True; it must be", build_recipe, nested(key, True))


@pytest.mark.parametrize("name", ["5000 digits", "itself", "nested", "date", "bytes", "NUL", "surrogate", "object"])
def test_a_model_config_holds_plain_values(name):
    line = refused("model.config", build_recipe, {"model": {"config": {"hidden_size": HOSTILE[name]}}})
    assert len(line) < 400
    refused("model.config", build_recipe, {"model": {"config": {3: 4}}})
