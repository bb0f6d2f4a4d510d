"""The bench: its rivals compute the same thing, its figures are consistent, its memory probe sees memory."""

from __future__ import annotations

import pytest
import torch

from codingrate import create_model
from codingrate.bench import bench_rate, suites, timing
from codingrate.bench.naive import NaiveClassifier

SMALL = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "num_labels": 7}


def test_naive_transcription_has_our_logits_and_gradients():
    model = create_model("crate-tiny-patch16-224", **SMALL).double()
    naive = NaiveClassifier(create_model("crate-tiny-patch16-224", **SMALL)).double()
    naive.embedding.load_state_dict(model.crate.embedding.state_dict())
    naive.layers.load_state_dict(model.crate.layers.state_dict())
    naive.head[0].load_state_dict(model.head_norm.state_dict())
    naive.head[1].load_state_dict(model.head.state_dict())
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    ours, theirs = model(pixels).logits, naive(pixels)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    wanted = dict(naive.layers.named_parameters())
    for name, parameter in model.crate.layers.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-9, atol=1e-9)


def test_medians_take_turns_and_skip_the_warm_up():
    order = []
    seconds = timing.medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warmup=1)
    assert order == ["a", "b"] * 4
    assert set(seconds) == {"a", "b"}
    assert min(seconds.values()) >= 0


def test_rate_bench_compares_equal_values():
    result = bench_rate((2, 3, 17, 5), repeats=2)
    assert result["difference"] < 1e-5
    assert result["speedup"]["naive"] == pytest.approx(result["seconds"]["naive"] / result["seconds"]["ours"])


def allocate(mib: int) -> None:
    torch.ones(mib * 2**18).sum()


@pytest.mark.slow
def test_memory_probe_sees_what_a_task_holds():
    small, large = (timing.peak_memory(allocate, (mib,)) for mib in (8, 208))
    assert 180 < large - small < 230


@pytest.mark.slow
def test_image_bench_fills_every_figure(monkeypatch):
    build = suites.create_model
    monkeypatch.setattr(suites, "create_model", lambda name: build(name, **SMALL))
    monkeypatch.setattr(suites, "peak_memory", lambda task, arguments: 1.0)
    result = suites.bench_image("crate-tiny-patch16-224", batch=2, repeats=2)
    assert result["logits_difference"] < 1e-5
    for mode in ("inference", "training"):
        figures = result[mode]
        assert set(figures["seconds"]) == set(suites.RIVALS)
        for rival in ("naive", "vit"):
            assert figures["speedup"][rival] == figures["seconds"][rival] / figures["seconds"]["ours"]
    assert result["parameters"]["ours"] == result["parameters"]["naive"] < result["parameters"]["vit"]


def test_probe_bench_measures_both(monkeypatch):
    from codingrate.bench import probe

    monkeypatch.setattr(probe, "peak_memory", lambda task, arguments: 1.0)
    result = probe.bench_probe((211, 53, 61), (211, 53, 59))
    assert {name: (row["train"], row["width"]) for name, row in result.items()} == {
        "knn": (211, 61),
        "logistic": (211, 59),
    }
    for row in result.values():
        assert row["seconds"] > 0
        assert 0.2 < row["top1"] < 1, "neither chance nor trivial"
