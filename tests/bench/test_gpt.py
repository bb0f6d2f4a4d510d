"""The GPT suite: both models generate texts of full length, and every metric is filled."""

import pytest

from codingrate.bench import bench_gpt, describe, models
from codingrate.cli.output import emit
from tests.models.test_transformers import compiler
from tests.refusals import refused

from .conftest import shrink


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    shrink(monkeypatch, models)


def test_every_metric_is_filled(capsys):
    turns = []
    result = bench_gpt(new_tokens=7, batch=2, length=11, repeats=2, progress=lambda: turns.append(1))
    assert len(turns) == 6
    for mode in ("decoding", "training"):
        seconds = result[mode]["seconds"]
        assert result[mode]["speedup"] == seconds["gpt2"] / seconds["ours"]
    held, parameters = result["cache_bytes_per_token"], result["parameters"]
    assert held["gpt2"] == 2 * held["ours"] == 2 * 3 * 30 * 4
    assert parameters["ours"] < parameters["gpt2"]
    assert result["cache_difference"] < 1e-5
    emit(False, None, describe({"gpt": result, "machine": {"threads": 1}}))
    assert "speedup" in capsys.readouterr().out  # a narrow terminal folds the rest of the heading


@compiler
def test_training_is_also_timed_compiled(capsys):
    result = bench_gpt(new_tokens=2, batch=2, length=11, repeats=1, compiler="eager")
    assert "compiled" not in result["decoding"]
    seconds = result["training"]["seconds"]
    assert result["training"]["compiled"] == {
        "ours": seconds["ours"] / seconds["ours compiled"],
        "gpt2": seconds["gpt2"] / seconds["gpt2 compiled"],
        "speedup": seconds["gpt2 compiled"] / seconds["ours compiled"],
    }
    emit(False, None, describe({"gpt": result, "machine": {"threads": 1}}))
    assert "Compiling makes ours" in capsys.readouterr().out


def test_both_models_generate_every_token(monkeypatch):
    shapes = []

    def run_once(cases, repeats, warmup, progress):
        shapes.extend(getattr(run(), "shape", None) for run in cases.values())
        return dict.fromkeys(cases, 1.0)

    monkeypatch.setattr(models, "medians", run_once)
    bench_gpt(new_tokens=19, batch=2, length=11)
    assert shapes == [(1, models.PROMPT + 19)] * 2 + [None] * 3


def test_another_kind_of_model_is_refused():
    refused("crate-bert-base", bench_gpt, "crate-bert-base")
