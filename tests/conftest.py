"""What every test shares: no network, one seed, one thread."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before any test imports huggingface_hub
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# Some virtual machines announce AMX but do not allow it, and a bfloat16 product then ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch

torch.set_num_threads(1)  # sizes are tiny; threads of several workers would only get in each other's way


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
