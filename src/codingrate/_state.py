"""Context managers that keep library calls from changing global state: random generators and logging."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from .errors import CrateError, shown


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore the global random generators of Python, NumPy and PyTorch when the block ends."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers from `seed` inside the block, and restore the global generators when it ends."""
    if not 0 <= seed < 2**32:
        raise CrateError(f"the seed is {shown(seed)}; it must be at least 0 and less than 2³²")
    with preserved_random_state():
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        yield


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' warnings and progress bars inside the block."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
