"""The scaling suite: counts of a small model by hand, and predictions that follow the stated formulas."""

import pytest
import torch
from torch import nn

from benchmarks import scaling
from benchmarks.scaling import bench_scaling
from codingrate import create_model

from .conftest import SMALL, shrink


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    shrink(monkeypatch, scaling)


def test_predictions_follow_the_formulas():
    models = {"crate-tiny-patch16-224": 4, "crate-gpt-base": 2}
    result = bench_scaling(models, counts=(1, 8, 64), utilization=0.5, check=("crate-tiny-patch16-224", 2))
    for name, batch in models.items():
        one = result["models"][name]
        assert (one["batch"], len(one["predictions"])) == (batch, 2 * 3)
        for row in one["predictions"]:
            gpu, n = scaling.GPUS[row["gpu"]], row["gpus"]
            compute, sent = one["flops"] / (0.5 * gpu.flops), 8 * one["parameters"] * (n - 1) / n
            communication = sent / (gpu.network if n == 64 else gpu.link)
            expected = {
                "compute_seconds": compute,
                "sent_bytes": sent,
                "communication_seconds": communication,
                "memory_bytes": 16 * one["parameters"] + one["activation_bytes"] / 2,
                "samples_per_second": n * batch / max(compute, communication),
            }
            assert {key: row[key] for key in expected} == pytest.approx(expected)


def test_kept_bytes_are_those_of_autograd():
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = create_model("crate-tiny-patch16-224", **SMALL).config
            self.device = torch.device("cpu")
            self.weight = nn.Parameter(torch.ones(3, 32, 32))

        def forward(self, pixel_values, labels):
            output = pixel_values * self.weight  # keeps the pixels, and the weight, which does not count
            return type("Output", (), {"loss": output.square().sum()})  # keeps the product

    assert scaling.kept_bytes(Square(), 5) == 2 * 5 * 3 * 32 * 32 * 4
