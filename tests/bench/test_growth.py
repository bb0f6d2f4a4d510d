"""The growth suite: exponents of known powers, the stop rule, tables and picture."""

import math

import pytest

from benchmarks import growth
from benchmarks.growth import bench_growth, save_growth

SIZES = {"tokens": (8, 16), "width": (64, 128)}
FIXED = {"tokens": 7, "width": 64}


@pytest.fixture
def here(monkeypatch):
    """Measure memory in this process, which saves seconds of imports, and let all of it be free."""
    monkeypatch.setattr(growth, "in_new_process", lambda function, arguments: function(*arguments))
    monkeypatch.setattr(growth, "available_mib", lambda: math.inf)


@pytest.mark.parametrize("power", [1, 2, 2.5])
def test_an_exponent_is_the_power_of_the_largest_sizes(power):
    sizes = (2, 64, 128, 256)
    values = [5.0, *(3 * size**power for size in sizes[1:])]  # the smallest has a constant cost
    assert growth.fit_exponent(sizes, values) == pytest.approx(power)
    assert growth.fit_exponent(sizes, [None, None, 1.0, None]) is None


def test_every_size_is_measured(here, tmp_path):
    rounds = []
    result = bench_growth(SIZES, FIXED, repeats=1, progress=lambda: rounds.append(1))
    assert len(rounds) == growth.growth_rounds(SIZES)
    assert {mode: set(layers) for axis in SIZES for mode, layers in result["axes"][axis].items()} == {
        mode: set(growth.LAYERS) for mode in growth.MODES
    }
    for axis, sizes in SIZES.items():
        for one in (one for mode in growth.MODES for one in result["axes"][axis][mode].values()):
            assert (one["sizes"], bool(one["skipped"])) == (list(sizes), False)
            assert (min(one["seconds"]) > 0, min(one["mib"]) >= 0) == (True, True)
    for name in ("growth.png", "growth.svg"):
        assert save_growth(result, tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("limit", "room", "reason"), [(0.0, math.inf, "over 0 s"), (math.inf, -1.0, "over memory")], ids=["time", "memory"]
)
def test_sizes_that_would_take_too_long_or_would_not_fit_are_skipped(here, monkeypatch, limit, room, reason):
    monkeypatch.setattr(growth, "available_mib", lambda: room)
    result = bench_growth({"tokens": (8, 16, 32)}, FIXED, repeats=1, limit=limit)
    one = result["axes"]["tokens"]["training"]["mssa"]
    assert one["seconds"][0] > 0
    assert one["seconds"][1:] == one["mib"][1:] == [None, None]
    assert (one["exponents"], one["skipped"]) == ({"seconds": None, "mib": None}, {1: reason, 2: reason})


@pytest.mark.slow
def test_memory_of_tokens_is_seen_in_a_new_process():
    # The first size is large enough for its memory, times the square of the ratio, to be an estimate and not noise.
    result = bench_growth({"tokens": (4096, 16384)}, {"tokens": 64, "width": 64}, repeats=1, limit=math.inf)
    for one in result["axes"]["tokens"]["inference"].values():
        assert one["mib"][1] > 3 * 4  # MiB: at least three tensors of 16384 × 64 numbers
