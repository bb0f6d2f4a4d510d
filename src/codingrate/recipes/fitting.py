"""Settings of a recipe that follow the amount of data, if there is less than the recipe is made for."""

from __future__ import annotations

import math
from typing import Any, get_args

from .files import change_recipe
from .schema import TEXT_TASKS, Following, Recipe

STEPS = 1000
"""Smallest number of optimizer steps, or those of the recipe on its own data if these are fewer."""
LARGEST_SHARE, SMALLEST_BATCH = 1 / 16, 8
"""Largest share of the data in a batch, if the recipe's own share is not larger, and the batch size that is enough."""
LARGEST_RATE = 10.0
"""Largest factor of the learning rate."""
SHORT = 10
"""Factor between the steps of a recipe and those of a training from which its augmentation is too strong."""


def fit_to_data(recipe: Recipe, samples: int) -> Recipe:
    """Return a recipe whose settings follow the number of training samples n, and which never changes again.

    Nothing changes without `schedule.made_for` N or if n ≥ N/2, and keys in `schedule.fixed` never do. Otherwise, with
    S the number of optimizer steps, S_N that on the recipe's own data, and B the recipe's batch size:

    - `batch_size` is the power of two nearest to n·max(1/16, B/N), at least 8 and at most B.
    - `epochs` rise until S ≥ min(S_N, 1000). They do not fall, and `steps` stay as they are.
    - The warm-up keeps its share of the training, and evaluations and checkpoints keep their number.
    - `optimizer.lr` of a model that starts from trained weights rises by √(S_N/S), at most tenfold: Adam moves a weight
      by no more than the learning rate in a step, so few steps at the rate of a long training hardly change the model.
    - If S < S_N/10, RandAugment is switched off, and a random crop has at least half of the area of an image.
    """
    schedule, augment, size = recipe.schedule, recipe.augment, recipe.schedule.made_for
    values: dict[str, Any] = {"schedule.made_for": None, "schedule.fixed": ()}
    if size is None or 2 * samples >= size:
        return change_recipe(recipe, values)

    def follow(key: Following, old: Any, new: Any) -> Any:
        """Return the new value of a key, unless it is fixed."""
        if key in schedule.fixed:
            return old
        values[key] = new
        return new

    share = max(LARGEST_SHARE, schedule.batch_size / size)
    batch = min(schedule.batch_size, max(SMALLEST_BATCH, 2 ** round(math.log2(samples * share))))
    batch = follow("schedule.batch_size", schedule.batch_size, batch)
    own, per_epoch = schedule.epochs * math.ceil(size / schedule.batch_size), math.ceil(samples / batch)
    epochs = max(schedule.epochs, math.ceil(min(own, STEPS) / per_epoch))
    epochs = schedule.epochs if schedule.steps else follow("schedule.epochs", schedule.epochs, epochs)
    own, steps = schedule.steps or own, schedule.steps or epochs * per_epoch
    follow_epochs: dict[Following, float] = {
        "schedule.warmup_epochs": schedule.warmup_epochs,
        "run.evaluate_epochs": recipe.run.evaluate_epochs,
        "run.checkpoint_epochs": recipe.run.checkpoint_epochs,
    }
    for key, length in follow_epochs.items():
        follow(key, length, round(length * epochs / schedule.epochs, 2))
    follow("schedule.warmup_steps", schedule.warmup_steps, round(schedule.warmup_steps * min(1.0, steps / own)))
    if recipe.model.from_ is not None:
        rate = recipe.optimizer.lr * min(LARGEST_RATE, max(1.0, math.sqrt(own / steps)))
        follow("optimizer.lr", recipe.optimizer.lr, float(f"{rate:.2g}"))
    if steps < own / SHORT and recipe.task not in TEXT_TASKS:
        follow("augment.rand_augment", augment.rand_augment, None)
        if augment.crop == "random-resized":
            low, high = augment.crop_scale
            follow("augment.crop_scale", augment.crop_scale, [max(low, min(0.5, high)), high])
    return change_recipe(recipe, values)


def fitted_like(recipe: Recipe, fitted: Recipe) -> Recipe:
    """Return a recipe with the settings that `fit_to_data` chose for a run that was started with it."""
    if recipe.schedule.made_for is None:
        return recipe
    own = fitted.to_dict()
    values: dict[str, Any] = {"schedule.made_for": None, "schedule.fixed": ()}
    for key in {*get_args(Following)} - {*recipe.schedule.fixed}:
        section, name = key.split(".")
        values[key] = own[section][name]
    return change_recipe(recipe, values)


def describe_fit(recipe: Recipe, fitted: Recipe, samples: int) -> str | None:
    """Return a sentence about the settings that `fit_to_data` changed; None if there are none."""
    before, after, changes = recipe.to_dict(), fitted.to_dict(), []
    for key in get_args(Following):
        section, name = key.split(".")
        old, new = before[section][name], after[section][name]
        if old != new:
            changes.append(f"{key}={_shown(new)} instead of {_shown(old)}")
    if not changes:
        return None
    return (
        f"{samples:,} training samples, {recipe.schedule.made_for:,} in the recipe: {', '.join(changes)}; "
        "set a key to keep it"
    )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)
