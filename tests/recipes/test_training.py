"""Every shipped recipe whose data need no download trains two steps at its own size, and its model is written."""

import math

import pytest

from codingrate.data import dataset_names, text_names
from codingrate.recipes import recipe_names
from codingrate.recipes.schema import MUST_GIVE
from codingrate.runs import train

from .values import load

OFFLINE = {"digits", "pydoc"}  # data that come with scikit-learn and with Python
NAMES = [name for name in recipe_names() if load(name).data.name in OFFLINE]
SHORT = ("schedule.steps=2", "run.layerwise_epochs=0")


def test_all_of_them_are_known():
    assert NAMES == ["digits", "digits-dino", "digits-mae", "pydoc-bert", "pydoc-gpt"]
    assert set(dataset_names()) | set(text_names()) >= OFFLINE
    assert MUST_GIVE not in OFFLINE


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_steps_at_the_recipes_own_size(name, tmp_path):
    run = train(name, tmp_path / "run", overrides=SHORT, quiet=True)
    assert run.recipe.model == load(name).model
    assert run.recipe.schedule.batch_size == load(name).schedule.batch_size
    assert run.finished
    assert math.isfinite(run.metrics["loss"])
    assert run.model().num_parameters() > 10_000
