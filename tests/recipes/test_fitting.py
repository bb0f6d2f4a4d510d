"""Settings that follow the amount of data: shipped recipes on their own data, the rule, and keys that the user sets."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codingrate.recipes import describe_fit, fit_to_data, fitted_like, load_recipe
from codingrate.recipes.files import change_recipe
from tests.recipes.test_shipped import NAMES, VARIANTS
from tests.recipes.values import load

SIZES = {  # training samples of the data that a recipe was made for
    "cifar10": 50_000, "cifar10-small": 50_000, "fashion-mnist": 60_000, "images": 5000, "sentences": 6920,
    "sst2": 6920, "finetune-cifar10": 50_000, "finetune-cifar100": 50_000, "finetune-flowers102": 1020,
    "finetune-oxford-pets": 3680, "finetune-imagenet1k": 1_281_167,
}  # fmt: skip


def settled(recipe):
    """Return a recipe without the keys that say how it follows the data."""
    return change_recipe(recipe, {"schedule.made_for": None, "schedule.fixed": []})


def test_published_recipes_do_not_change_on_their_own_data():
    assert {name: load(name).schedule.made_for for name in NAMES if load(name).schedule.made_for} == SIZES
    for name in NAMES:
        for variant in (None, *VARIANTS[name]):
            recipe = load(name, variant=variant)
            for samples in (SIZES.get(name, 1), round(0.9 * SIZES.get(name, 1)) + 1):  # all, or a tenth is held out
                assert fit_to_data(recipe, samples) == settled(recipe), (name, variant)
                assert describe_fit(recipe, fit_to_data(recipe, samples), samples) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(SIZES)), st.integers(1, 30_000))
def test_the_rule(name, samples):
    recipe = load(name)
    fitted, schedule, size = fit_to_data(recipe, samples), recipe.schedule, SIZES[name]
    if 2 * samples >= size:
        assert fitted == settled(recipe)
        return
    batch = fitted.schedule.batch_size
    assert batch == schedule.batch_size or math.log2(batch).is_integer()
    assert 8 <= batch <= min(schedule.batch_size, max(8, samples * max(1 / 16, schedule.batch_size / size) * 2**0.5))
    own = schedule.epochs * math.ceil(size / schedule.batch_size)
    steps = fitted.schedule.epochs * math.ceil(samples / batch)
    assert steps >= min(own, 1000)
    assert fitted.schedule.epochs >= schedule.epochs
    share = schedule.warmup_epochs / schedule.epochs
    assert fitted.schedule.warmup_epochs / fitted.schedule.epochs == pytest.approx(share, abs=0.01)
    assert fitted.schedule.warmup_steps <= schedule.warmup_steps
    factor = fitted.optimizer.lr / recipe.optimizer.lr
    expected = min(10, max(1, math.sqrt(own / steps))) if recipe.model.from_ else 1
    assert factor == pytest.approx(expected, rel=0.05), "two digits"
    assert (fitted.augment.rand_augment is None) >= (steps < own / 10)
    assert fit_to_data(fitted, samples) == fitted, "settled"


def test_600_images_are_fine_tuned_in_small_batches():
    recipe = load("finetune-cifar10")
    fitted = fit_to_data(recipe, 600)
    assert (fitted.schedule.batch_size, fitted.schedule.epochs) == (32, 200)
    assert fitted.optimizer.lr == 1.6e-4
    assert (fitted.augment.rand_augment, fitted.augment.crop_scale) == (None, (0.5, 1.0))
    line = describe_fit(recipe, fitted, 600)
    assert line.startswith("600 training samples")
    assert "schedule.batch_size=32 instead of 256" in line
    assert "\n" not in line


def test_keys_that_the_user_sets_do_not_follow(tmp_path):
    changes = ["schedule.batch_size=256", "optimizer.lr=5e-5", "augment.rand_augment=[2, 14]", "model.from=runs/a"]
    fitted = fit_to_data(load_recipe("finetune-cifar10", changes), 600)
    assert (fitted.schedule.batch_size, fitted.optimizer.lr) == (256, 5e-5)
    assert (fitted.augment.rand_augment, fitted.augment.crop_scale) == ((2, 14), (0.5, 1.0)), "the second is not set"
    assert fitted.schedule.epochs * 3 >= 1000 - 3
    for key, number in (("steps", 7), ("epochs", 3)):
        fitted = fit_to_data(load_recipe("images", [f"schedule.{key}={number}"]), 600)
        assert getattr(fitted.schedule, key) == number

    def own(schedule, samples):
        (tmp_path / "own.yaml").write_text(f"base: images\nschedule: {schedule}\n")
        recipe = load_recipe(str(tmp_path / "own.yaml"))
        return recipe, fit_to_data(recipe, samples)

    _, fitted = own("{batch_size: 64}", 600)
    assert (fitted.schedule.batch_size, fitted.schedule.epochs > 30) == (64, True)
    _, fitted = own("{batch_size: 16, made_for: 2000}", 100)
    assert fitted.schedule.batch_size == 8, "made for another amount"
    recipe, fitted = own("{made_for: null}", 600)
    assert fitted == recipe


def test_a_resumed_recipe_has_the_settings_of_its_run():
    before = fit_to_data(load("images"), 600)
    again = fitted_like(load("images"), before)
    assert again == before
    other = fitted_like(load_recipe("images", ["schedule.batch_size=16"]), before)
    assert other.schedule.batch_size == 16
    assert other.schedule.epochs == before.schedule.epochs
    assert fitted_like(load("digits"), before) == load("digits")
