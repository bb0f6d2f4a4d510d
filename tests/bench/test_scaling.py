"""The scaling suite: counts of a small model by hand, and predictions that follow the stated formulas."""

import pytest
import torch
from torch import nn

from benchmarks import scaling
from benchmarks.scaling import bench_scaling
from codingrate import create_model

from .test_bench import SMALL
from .test_gpt import SMALL as SMALL_TEXT


@pytest.fixture(autouse=True)
def small(monkeypatch):
    build = scaling.create_model
    sizes = {"text": SMALL_TEXT, "image": SMALL}
    monkeypatch.setattr(
        scaling, "create_model", lambda name: build(name, **sizes["text" if "gpt" in name else "image"])
    )
    monkeypatch.setattr(scaling, "peak_memory", lambda task, arguments: 1.0)


def test_predictions_follow_the_formulas():
    models = {"crate-tiny-patch16-224": 4, "crate-gpt-base": 2}
    result = bench_scaling(models, counts=(1, 8, 64), utilization=0.5, check=("crate-tiny-patch16-224", 2))
    for name, batch in models.items():
        one = result["models"][name]
        assert one["batch"] == batch
        assert len(one["predictions"]) == 2 * 3
        for row in one["predictions"]:
            gpu, n = scaling.GPUS[row["gpu"]], row["gpus"]
            assert row["compute_seconds"] == pytest.approx(one["flops"] / (0.5 * gpu.flops))
            assert row["sent_bytes"] == pytest.approx(8 * one["parameters"] * (n - 1) / n)
            link = gpu.network if n == 64 else gpu.link
            assert row["communication_seconds"] == pytest.approx(row["sent_bytes"] / link)
            assert row["memory_bytes"] == 16 * one["parameters"] + one["activation_bytes"] / 2
            slower = max(row["compute_seconds"], row["communication_seconds"])
            assert row["samples_per_second"] == pytest.approx(n * batch / slower)


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
