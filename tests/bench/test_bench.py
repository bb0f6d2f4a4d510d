"""The suites: compared implementations agree, metrics are consistent, and the memory measurement sees memory."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch

from codingrate import create_model
from codingrate.bench import bench_image, bench_rate, count_rounds, describe, models, run_suites, suites, timing
from codingrate.bench.models import NaiveClassifier
from codingrate.cli.output import emit
from tests.refusals import refused

from .conftest import SMALL, shrink


def test_naive_transcription_has_our_logits_and_gradients():
    model = create_model("crate-tiny-patch16-224", **SMALL).double()
    naive = NaiveClassifier(deepcopy(model))
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    ours, theirs = model(pixels).logits, naive(pixels)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    expected = dict(naive.model.crate.layers.named_parameters())
    for name, parameter in model.crate.layers.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-9, atol=1e-9)


def test_medians_take_turns_and_skip_the_warm_up():
    order = []
    cases = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = timing.medians(cases, repeats=3, warmup=1)
    assert (order, set(seconds), min(seconds.values()) >= 0) == (["a", "b"] * 4, {"a", "b"}, True)


def test_suites_run_by_name_with_the_announced_number_of_rounds_and_leave_the_global_seed_alone(monkeypatch):
    monkeypatch.setattr(suites, "machine", lambda: {"threads": 1})
    monkeypatch.setattr(suites, "bench_rate", partial(bench_rate, (2, 3, 17, 5)))
    state, turns = torch.get_rng_state(), []
    result = run_suites(["rate"], repeats=3, progress=lambda: turns.append(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert list(result) == ["coding_rate", "machine"]
    assert len(turns) == count_rounds(["rate"], 3) == 10
    rate, gradient = result["coding_rate"], result["coding_rate"]["gradient"]
    assert max(rate["difference"], gradient["difference"]) < 1e-5, "equal values are compared"
    assert rate["speedup"]["naive"] == pytest.approx(rate["seconds"]["naive"] / rate["seconds"]["ours"])
    assert set(gradient["seconds"]) == {"exact", "attention", "inverse"}
    assert gradient["speedup"]["inverse"] == gradient["seconds"]["inverse"] / gradient["seconds"]["exact"]
    refused("'image'", run_suites, ["imgae"])


def allocate(mib: int) -> None:
    torch.ones(mib * 2**18).sum()


@pytest.mark.slow
def test_memory_measurement_sees_what_a_task_allocates():
    small, large = (timing.peak_memory(allocate, (mib,)) for mib in (8, 208))
    assert 180 < large - small < 230


@pytest.mark.slow
def test_image_suite_fills_every_metric(monkeypatch, capsys):
    shrink(monkeypatch, models)
    result = bench_image("crate-tiny-patch16-224", batch=2, repeats=2)
    assert result["logits_difference"] < 1e-5
    for mode in ("inference", "training"):
        metrics = result[mode]
        assert set(metrics["seconds"]) == {*models.RIVALS, "products"}
        assert metrics["efficiency"] == metrics["seconds"]["products"] / metrics["seconds"]["ours"]
        for rival in ("naive", "vit"):
            assert metrics["speedup"][rival] == metrics["seconds"][rival] / metrics["seconds"]["ours"]
    assert result["parameters"]["ours"] == result["parameters"]["naive"] < result["parameters"]["vit"]
    emit(False, None, describe({"image": result, "machine": {"threads": 1, "peak_gflops": 100.0}}))
    assert "pseudocode" in capsys.readouterr().out
