"""The suites: compared implementations agree, metrics are consistent, and the memory measurement sees memory."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch

from codingrate import CrateError, create_model
from codingrate.bench import (
    bench_image,
    bench_maskcut,
    bench_probe,
    bench_rate,
    count_rounds,
    models,
    run_suites,
    suites,
    timing,
)
from codingrate.bench.models import NaiveClassifier
from codingrate.cli.bench import print_result

SMALL = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "num_labels": 7}


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
    seconds = timing.medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warmup=1)
    assert order == ["a", "b"] * 4
    assert set(seconds) == {"a", "b"}
    assert min(seconds.values()) >= 0


def test_rate_suite_compares_equal_values_and_leaves_the_global_seed_alone():
    state = torch.get_rng_state()
    result = bench_rate((2, 3, 17, 5), repeats=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert result["difference"] < 1e-5
    assert result["speedup"]["naive"] == pytest.approx(result["seconds"]["naive"] / result["seconds"]["ours"])
    gradient = result["gradient"]
    assert gradient["difference"] < 1e-5
    assert set(gradient["seconds"]) == {"exact", "attention", "inverse"}
    assert gradient["speedup"]["inverse"] == gradient["seconds"]["inverse"] / gradient["seconds"]["exact"]


def allocate(mib: int) -> None:
    torch.ones(mib * 2**18).sum()


@pytest.mark.slow
def test_memory_measurement_sees_what_a_task_allocates():
    small, large = (timing.peak_memory(allocate, (mib,)) for mib in (8, 208))
    assert 180 < large - small < 230


@pytest.mark.slow
def test_image_suite_fills_every_metric(monkeypatch, capsys):
    build = models.create_model
    monkeypatch.setattr(models, "create_model", lambda name: build(name, **SMALL))
    monkeypatch.setattr(models, "peak_memory", lambda task, arguments: 1.0)
    result = bench_image("crate-tiny-patch16-224", batch=2, repeats=2)
    assert result["logits_difference"] < 1e-5
    for mode in ("inference", "training"):
        metrics = result[mode]
        assert set(metrics["seconds"]) == {*models.RIVALS, "products"}
        assert metrics["efficiency"] == metrics["seconds"]["products"] / metrics["seconds"]["ours"]
        for rival in ("naive", "vit"):
            assert metrics["speedup"][rival] == metrics["seconds"][rival] / metrics["seconds"]["ours"]
    assert result["parameters"]["ours"] == result["parameters"]["naive"] < result["parameters"]["vit"]
    print_result({"image": result, "machine": {"threads": 1, "peak_gflops": 100.0}})
    assert "pseudocode" in capsys.readouterr().out


def test_probe_suite_measures_both(monkeypatch, capsys):
    monkeypatch.setattr(suites, "peak_memory", lambda task, arguments: 1.0)
    result = bench_probe((211, 53, 61), (211, 53, 59))
    assert {name: (row["train"], row["width"]) for name, row in result.items()} == {
        "knn": (211, 61),
        "logistic": (211, 59),
    }
    for row in result.values():
        assert row["seconds"] > 0
        assert 0.2 < row["top1"] < 1, "neither chance nor trivial"
    print_result({"probe": result, "machine": {"threads": 1}})
    assert "logistic" in capsys.readouterr().out


def test_maskcut_suite_compares_equal_eigenvectors(capsys):
    turns = []
    result = bench_maskcut(side=17, repeats=2, progress=lambda: turns.append(1))
    assert result["tokens"] == 289
    assert result["difference"] < 1e-6
    assert result["speedup"] == pytest.approx(result["seconds"]["dense"] / result["seconds"]["ours"])
    assert len(turns) == 2
    print_result({"maskcut": result, "machine": {"threads": 1}})
    assert "289 patches" in capsys.readouterr().out


def test_loader_suite_reads_every_photograph(monkeypatch, capsys):
    build = suites.create_model
    monkeypatch.setattr(suites, "create_model", lambda name: build(name, **(SMALL | {"image_size": 224})))
    result = suites.bench_loader(images=5, workers=0, repeats=1)
    assert result["ratio"] == pytest.approx(
        result["images_per_second"]["loader"] / result["images_per_second"]["training"]
    )
    print_result({"loader": result, "machine": {"threads": 1}})
    assert "times as many images" in capsys.readouterr().out


def test_suites_run_by_name_with_the_announced_number_of_rounds(monkeypatch):
    monkeypatch.setattr(suites, "machine", lambda: {"threads": 1})
    monkeypatch.setattr(suites, "bench_rate", partial(bench_rate, (2, 3, 17, 5)))
    monkeypatch.setattr(suites, "bench_maskcut", partial(bench_maskcut, 17))
    turns = []
    result = run_suites(["maskcut", "rate"], repeats=3, progress=lambda: turns.append(1))
    assert list(result) == ["coding_rate", "maskcut", "machine"]
    assert len(turns) == count_rounds(["maskcut", "rate"], 3) == 13
    with pytest.raises(CrateError, match=r"unknown suite 'imgae'; did you mean 'image'\?"):
        run_suites(["imgae"])
