"""What every test shares: no network, one seed, one thread, and cheap garbage collections."""

import gc
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before any test imports huggingface_hub
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# Sizes are tiny, and threads of several workers would get in each other's way: BLAS, and processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Some virtual machines announce AMX but do not allow it, and a bfloat16 product then ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep what collection imports out of every garbage collection.

    None of these objects is ever garbage, and to go through them takes most of the time of a short training, which
    ends with a garbage collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def _frozen():
    """Names of the modules that garbage collections leave out."""
    return set()


@pytest.fixture(scope="module", autouse=True)
def _frozen_modules(_frozen):
    """Leave out what tests of other files have imported since, too."""
    imported = sys.modules.keys() - _frozen
    if len(imported) > 100:
        gc.collect()
        gc.freeze()
        _frozen |= imported


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Use one thread in PyTorch too, which may have been imported before."""
    import torch  # here and not above, because the process that starts the workers needs no torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    torch.manual_seed(0)
