"""A cache of its own for the files that `datasets` writes."""

from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)
