"""The precision suite: every precision is timed and has a loss, and the setting of attention is put back."""

from functools import partial

from benchmarks import precision
from benchmarks.precision import bench_precision
from codingrate.models.presets import create_model
from codingrate.operators import attention

from .test_bench import SMALL
from .test_gpt import SMALL as SMALL_TEXT


def test_every_precision_is_measured(monkeypatch):
    def build(name, **fields):
        return create_model(name, **{**fields, **(SMALL_TEXT if "gpt" in name else SMALL)})

    monkeypatch.setattr(precision, "create_model", build)
    monkeypatch.setattr(precision, "COSTS", {"crate-shakespeare-gpt": "cross_entropy"})
    longest, turns = attention.LONGEST_PRODUCT, []
    result = partial(bench_precision, new_tokens=5, batch=2)(repeats=2, progress=lambda: turns.append(1))
    assert longest == attention.LONGEST_PRODUCT
    assert len(turns) == 6
    for mode in ("decoding", "training"):
        seconds = result[mode]["seconds"]
        assert result[mode]["speedup"] == {key: seconds["float32"] / value for key, value in seconds.items()}
    losses = result["loss"]["crate-shakespeare-gpt"]
    assert len(set(losses.values())) == len(precision.PRECISIONS)  # three roundings
    assert max(losses.values()) < 1.005 * min(losses.values())
