"""The typed recipe: bounds of every setting, and settings that a task does not use."""

import dataclasses
import datetime
import math

import pytest

from codingrate.recipes import Recipe, build_recipe, load_recipe, recipe_keys
from codingrate.recipes.schema import MUST_GIVE, TEXT_TASKS
from tests.refusals import refused

POSITIVE, NOT_NEGATIVE, BELOW_ONE = "greater than 0", "greater than or equal to 0", "less than 1"

BOUNDS = [
    (POSITIVE, 0, "optimizer.lr schedule.epochs schedule.steps schedule.batch_size run.per_device_batch_size"),
    (POSITIVE, 0, "run.checkpoint_epochs run.checkpoint_steps run.save_total_limit run.log_steps run.layerwise_images"),
    (POSITIVE, -3, "optimizer.lr schedule.epochs schedule.steps schedule.batch_size run.per_device_batch_size"),
    (
        POSITIVE,
        -3,
        "run.checkpoint_epochs run.checkpoint_steps run.save_total_limit run.log_steps run.layerwise_images",
    ),
    (POSITIVE, 0, "text.vocab_size text.max_length text.mask_probability data.test_share"),
    (POSITIVE, 0, "distillation.student_temperature distillation.teacher_temperature"),
    (POSITIVE, 0, "distillation.final_teacher_temperature"),
    (NOT_NEGATIVE, -1, "data.split_seed data.workers data.max_corrupt optimizer.weight_decay optimizer.eps"),
    (
        NOT_NEGATIVE,
        -1,
        "optimizer.max_grad_norm optimizer.label_smoothing schedule.warmup_epochs schedule.warmup_steps",
    ),
    (NOT_NEGATIVE, -1, "schedule.final_lr run.seed run.ema run.evaluate_epochs run.layerwise_epochs"),
    (NOT_NEGATIVE, -1, "distillation.temperature_epochs distillation.center_momentum distillation.momentum"),
    (NOT_NEGATIVE, -1, "distillation.freeze_last_epochs"),
    (BELOW_ONE, 1, "optimizer.label_smoothing run.ema text.mask_probability distillation.center_momentum"),
    ("less than or equal to 1", 1.5, "data.test_share data.max_corrupt distillation.momentum"),
    ("less than 4294967296", 2**32, "run.seed"),
    ("greater than or equal to 2", 1, "text.block"),
    ("a finite number", math.nan, "optimizer.lr optimizer.weight_decay schedule.epochs schedule.final_lr"),
    ("a finite number", math.inf, "optimizer.lr optimizer.weight_decay schedule.epochs schedule.final_lr"),
    ("a valid integer", 1.5, "schedule.batch_size schedule.steps run.seed data.workers text.block"),
    ("a valid number", "fast", "optimizer.lr run.ema schedule.epochs"),
    ("a valid number", [1], "optimizer.lr"),
    ("a valid boolean", "perhaps", "run.compile run.fsdp data.streaming model.freeze"),
    ("a valid dictionary", 3, "model.config"),
    ("a valid tuple", 3, "text.columns"),
    ("'lion', 'adamw', 'adam' or 'muon'", "sgd", "optimizer.name"),
    ("'matrices' or 'all'", "none", "optimizer.decay"),
    ("'all' or 'tensor'", "layer", "optimizer.clip_by"),
    ("'cosine', 'linear' or 'constant'", "step", "schedule.scheduler"),
    ("'fp32', 'bf16' or 'fp16'", "int8", "run.precision"),
    ("'document', 'line' or 'paragraph'", "word", "text.separate"),
    ("'classification', 'autoencoding', 'distillation'", "dreaming", "task"),
]


def nested(key, value):
    """Return the values of a recipe with one setting."""
    *sections, last = key.split(".")
    return {sections[0]: {last: value}} if sections else {last: value}


def test_a_value_out_of_bounds_is_refused_with_its_key_value_and_bound():
    for rule, value, key in ((rule, value, key) for rule, value, keys in BOUNDS for key in keys.split()):
        line = refused(rule, build_recipe, nested(key, value))
        assert line.startswith(f"{key} is {value!r}; it must be ")


@pytest.mark.parametrize(
    ("text", "columns"),
    [("review", ("review",)), ("question,answer", ("question", "answer")), ("[one, two]", ("one", "two"))],
)
def test_columns_are_given_as_typed(text, columns):
    recipe = load_recipe("sst2", [f"text.columns={text}"])
    assert recipe.text.columns == columns
    assert build_recipe(recipe.to_dict()) == recipe


@pytest.mark.parametrize("key", ["augment.flip", "augment.image_size", "views.local_count"])
def test_the_sections_of_the_data_room_name_their_keys_too(key):
    assert key in refused(key, build_recipe, {"task": "distillation", **nested(key, -2)})


def test_a_tuple_that_is_too_short_is_refused():
    refused("optimizer.betas", build_recipe, {"optimizer": {"betas": [0.9]}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "distillation", "run": {"ema": 0.5}}, "`run.fsdp` do not work with task distillation"),
        (
            {"task": "distillation", "run": {"fsdp": True}},
            "`run.ema` and `run.fsdp` do not work with task distillation",
        ),
        ({"views": {"local_count": 3}}, "section `views` is only for task distillation, not classification"),
        ({"distillation": {"momentum": 0.9}}, "section `distillation` is only for task distillation"),
        ({"task": "distillation", "augment": {"image_size": 32}}, "views.local_size 96 is larger"),
    ],
)
def test_settings_that_exclude_each_other(values, message):
    refused(message, build_recipe, values)


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("digits", "text.block=64", "`text.block` is not used by task classification; leave it out"),
        ("digits-mae", "text.tokenizer=bytes", "`text.tokenizer` is not used by task autoencoding"),
        ("pydoc-gpt", "text.mask_probability=0.3", "`text.mask_probability` is not used by task causal-lm"),
        ("pydoc-bert", "text.columns=[a, b]", "`text.columns` is not used by task masked-lm"),
        ("sst2", "text.block=64", "`text.block` is not used by task sequence-classification"),
        ("wikitext-gpt", "text.tokenizer=bytes", "`text.vocab_size` is only for the bpe tokenizer"),
        ("wikitext-gpt", "text.uncased=true", "`text.uncased` is not used by task causal-lm"),
        ("sst2", "text.uncased=true", "`text.uncased` is only for the bpe tokenizer"),
        ("pydoc-gpt", "augment.flip=0.3", "`augment` is only for images, not for task causal-lm; leave it out"),
        ("pydoc-gpt", "data.image_column=x", "`data.image_column` is only for images, not for task causal-lm"),
        ("pydoc-bert", "data.streaming=true", "`data.streaming` is only for images; task masked-lm tokenizes"),
        ("pydoc-bert", "model.freeze=true", "`model.freeze` trains only a new head, and task masked-lm has none"),
        ("pydoc-gpt", "views.local_count=3", "section `views` is only for task distillation, not causal-lm"),
    ],
)
def test_a_setting_that_the_task_does_not_use_is_refused(name, override, message):
    refused(message, load_recipe, name, [override])


def test_every_text_setting_is_used_by_some_task():
    names = {entry.name for entry in dataclasses.fields(Recipe().text)}
    assert set().union(*TEXT_TASKS.values()) == names


def test_a_choice_that_is_left_to_the_user_is_refused_on_use_only():
    recipe = build_recipe({"data": {"name": MUST_GIVE}, "model": {"from": MUST_GIVE}})
    refused("does not name a dataset; give --data (or data.name)", lambda: recipe.data_name)
    refused("starts from trained weights; give model.from=RUN", lambda: recipe.source)
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
    line = refused("model.config is ", build_recipe, {"model": {"config": {"hidden_size": HOSTILE[name]}}})
    assert len(line) < 400
    refused("model.config", build_recipe, {"model": {"config": {3: 4}}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment.affine_degrees": math.nan}, "augment.affine_degrees is nan"),
        ({"augment.std": [math.inf]}, "augment.std.0 is inf"),
        ({"augment.mean": [-math.inf]}, "augment.mean.0 is -inf"),
        ({"augment.jitter": [1e9, 0, 0, 0]}, "augment.jitter.0 is 1000000000.0"),
        ({"augment.image_size": 10**6}, "augment.image_size is 1000000"),
        ({"optimizer.betas": [0.9, 1.0]}, "optimizer.betas.1 is 1.0; it must be less than 1"),
        ({"optimizer.final_weight_decay": -1}, "optimizer.final_weight_decay is -1"),
        ({"distillation.student_temperature": 1e-45}, "distillation.student_temperature is 1e-45"),
        ({"data.workers": 10**6}, "data.workers is 1000000; it must be less than or equal to 1024"),
        ({"data.split_seed": 2**32}, "data.split_seed is 4294967296"),
        ({"text.block": 10**9}, "text.block is 1000000000"),
        ({"views.local_count": 10**9}, "views.local_count is 1000000000"),
    ],
    ids=str,
)
def test_bounds_of_single_keys(changes, message):
    refused(message, load_recipe, "digits", changes)
