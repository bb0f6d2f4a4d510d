"""The benchmarks that guard this package: every one measures what it says, on small data."""

import pytest

from benchmarks import inspection, parts

from .conftest import shrink


def test_costs_of_inspection_are_relative_to_their_forward_passes(monkeypatch):
    shrink(monkeypatch, inspection)
    rounds = []
    result = inspection.bench_inspection(batch=3, repeats=2, probed=(60, 20), progress=lambda: rounds.append(1))
    assert len(rounds) == 9  # models, probes and measures, 1 + 2 rounds each
    forward = result["seconds"]["forward"] / 3
    for key, count in result["images"].items():
        assert result["ratio"][key] == pytest.approx(result["seconds"][key] / count / forward)
    assert result["images"]["knn"] == 80
    assert set(result["measures"]) == set(inspection.MEASURES)


def test_probes(monkeypatch):
    shrink(monkeypatch, parts)
    result = parts.bench_probe((211, 53, 61), (211, 53, 59))
    assert [(name, row["train"], row["width"]) for name, row in result.items()] == [
        ("knn", 211, 61),
        ("logistic", 211, 59),
    ]
    for row in result.values():
        assert row["seconds"] > 0
        assert 0.2 < row["top1"] < 1, "neither chance nor trivial"


def test_both_cuts_have_one_eigenvector():
    result = parts.bench_maskcut(side=17, repeats=2)
    assert result["tokens"] == 289
    assert result["difference"] < 1e-6
    assert result["speedup"] == pytest.approx(result["seconds"]["dense"] / result["seconds"]["ours"])


def test_the_loader_reads_every_photograph(monkeypatch):
    shrink(monkeypatch, parts, image_size=224)
    result = parts.bench_loader(images=5, workers=0, repeats=1)
    speed = result["images_per_second"]
    assert result["ratio"] == pytest.approx(speed["loader"] / speed["training"])
