"""The inspect suite: every cost is in units of the forward passes of as many images."""

import pytest

from codingrate.bench import bench_inspection, inspecting
from codingrate.cli.bench import print_result

from .test_bench import SMALL


def test_every_cost_is_relative_to_its_forward_passes(monkeypatch, capsys):
    build = inspecting.create_model
    monkeypatch.setattr(inspecting, "create_model", lambda name: build(name, **SMALL))
    rounds = []
    result = bench_inspection(batch=3, repeats=2, probed=(60, 20), progress=lambda: rounds.append(1))
    assert len(rounds) == 9  # models, probes and measures, 1 + 2 rounds each
    forward = result["seconds"]["forward"] / 3
    for key, count in result["images"].items():
        assert result["ratio"][key] == pytest.approx(result["seconds"][key] / count / forward)
    assert result["images"]["knn"] == 80
    assert set(result["measures"]) == set(inspecting.MEASURES)
    print_result({"inspect": result, "machine": {"threads": 1}})
    assert "layer-wise measures" in capsys.readouterr().out
