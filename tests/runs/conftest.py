"""A cache of its own for the files that `datasets` writes, a dataset of a few digits, and runs that are interrupted."""

import shutil

import pytest

from codingrate.runs.trainer import CrateTrainer
from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)

from .resuming import FIVE, StoppedError
from .toys import few_digits, train_toy


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """Return the changes of the toy recipe that train it on a few digits."""
    return few_digits(tmp_path_factory.mktemp("few") / "digits")


@pytest.fixture(scope="module")
def train_few(few):
    """Return a function that trains the toy recipe on a few digits: twelve steps, four per epoch."""
    return lambda folder, changes=None, **options: train_toy(folder, {**few, **(changes or {})}, **options)


@pytest.fixture
def interrupt(train_few, monkeypatch):
    """Return a function that trains until the step after a given one, and stops there."""

    def until(folder, changes, step):
        plain = CrateTrainer.training_step

        def training_step(self, *args, **kwargs):
            if self.state.global_step == step:
                raise StoppedError
            return plain(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(CrateTrainer, "training_step", training_step)
            with pytest.raises(StoppedError):
                train_few(folder, changes)

    return until


@pytest.fixture(scope="module")
def uninterrupted(train_few, tmp_path_factory):
    """Return a function that trains a recipe without interruption, once, and returns the folder of the run."""
    folders = {}

    def folder(changes):
        key = repr(sorted(changes.items()))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("whole") / "run"
            train_few(folders[key], changes)
        return folders[key]

    return folder


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory, train_few):
    """A run of twelve steps with the checkpoints of steps 5 and 10, as a kill leaves it."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    train_few(folder, {**FIVE, "run.save_total_limit": 3})
    shutil.rmtree(folder / "checkpoints" / "checkpoint-12")
    shutil.rmtree(folder / "model")
    return folder
