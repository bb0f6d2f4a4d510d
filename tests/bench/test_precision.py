"""The precision suite: every precision is timed and has a loss, and the setting of attention is put back."""

from benchmarks import precision
from benchmarks.precision import bench_precision
from codingrate.operators import attention

from .conftest import shrink


def test_every_precision_is_measured(monkeypatch):
    shrink(monkeypatch, precision)
    monkeypatch.setattr(precision, "COSTS", {"crate-shakespeare-gpt": "cross_entropy"})
    longest, turns = attention.LONGEST_PRODUCT, []
    result = bench_precision(new_tokens=5, batch=2, repeats=2, progress=lambda: turns.append(1))
    assert longest == attention.LONGEST_PRODUCT
    assert len(turns) == 6
    for mode in ("decoding", "training"):
        seconds = result[mode]["seconds"]
        assert result[mode]["speedup"] == {key: seconds["float32"] / value for key, value in seconds.items()}
    losses = result["loss"]["crate-shakespeare-gpt"]
    assert len(set(losses.values())) == len(precision.PRECISIONS)  # three roundings
    assert max(losses.values()) < 1.005 * min(losses.values())
