"""A cache of its own for the files that `datasets` writes, a dataset of a few digits, and runs that are interrupted."""

import contextlib
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
def before_step(monkeypatch):
    """Return a context in which a function is called with the trainer before each of its steps."""

    @contextlib.contextmanager
    def patched(act):
        plain = CrateTrainer.training_step

        def training_step(self, *args, **kwargs):
            act(self)
            return plain(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(CrateTrainer, "training_step", training_step)
            yield

    return patched


@pytest.fixture
def interrupt(train_few, before_step):
    """Return a function that trains until the step after a given one, and stops there."""

    def until(folder, changes, step):
        def stop(trainer):
            if trainer.state.global_step == step:
                raise StoppedError

        with before_step(stop), pytest.raises(StoppedError):
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
