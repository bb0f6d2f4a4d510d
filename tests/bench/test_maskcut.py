"""The bench of the cut compares equal eigenvectors and fills its figures."""

from __future__ import annotations

import pytest

from codingrate.bench import bench_maskcut
from codingrate.cli import bench as verb


def test_rivals_find_one_eigenvector(capsys):
    turns = []
    result = bench_maskcut(side=17, repeats=2, progress=lambda: turns.append(1))
    assert result["tokens"] == 289
    assert result["difference"] < 1e-6
    assert result["speedup"] == pytest.approx(result["seconds"]["dense"] / result["seconds"]["ours"])
    assert len(turns) == 2
    verb.show({"maskcut": result, "machine": {"threads": 1}})
    assert "289 patches" in capsys.readouterr().out
