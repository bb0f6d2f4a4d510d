"""Data of the runs: a cache of its own for the files that `datasets` writes, and a dataset of a few digits."""

import gc

import pytest

from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)

from .toys import few_digits


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """Return the changes of the toy recipe that train it on a few digits."""
    return few_digits(tmp_path_factory.mktemp("few") / "digits")


@pytest.fixture(scope="package", autouse=True)
def _frozen_modules():
    """Keep imported modules out of the garbage collections that end every training."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
