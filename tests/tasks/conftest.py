"""Data of the tasks: a cache of its own for the files that `datasets` writes, and a dataset of a few digits."""

from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)
from tests.runs.conftest import few  # noqa: F401
