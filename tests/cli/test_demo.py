"""`crate demo`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

import codingrate
from codingrate.cli import demo
from codingrate.cli.output import emit

from .conftest import check_refusal, crate_json


@pytest.mark.slow
def test_demo_trains_both_models_and_measures_every_layer(capsys, tmp_path):
    result = crate_json(capsys, "demo", "--epochs", 1, "--output", tmp_path / "demo")
    assert 0.1 < result["models"]["crate"]["accuracy"] <= 1
    assert result["models"]["crate"]["parameters"] < result["models"]["vit"]["parameters"]
    layers = result["layers"]["crate"]
    assert [row["layer"] for row in layers if row["epoch"] == 0] == list(range(1, 7))
    assert {row["epoch"] for row in layers} == {0, 1}
    assert all(0 < row["nonzero"] < 1 and row["compression_normalized"] > 0 for row in layers)
    with Image.open(result["picture"]) as picture:
        assert picture.width > 500
    left = sorted(path.name for path in (tmp_path / "demo").iterdir())
    assert left == ["crate-cifar10", "layers.png"], "nothing else is left behind"
    shipped = result["shipped"]
    depth = codingrate.Run("crate-cifar10").model().config.num_hidden_layers
    assert [row["layer"] for row in shipped["layers"]] == list(range(1, depth + 1))
    for picture in (shipped["report"], shipped["attention"]):
        assert (tmp_path / "demo" / "crate-cifar10") in Path(picture).parents
        assert Path(picture).stat().st_size > 10_000
    emit(False, result, demo.describe(result))
    text = capsys.readouterr().out
    assert f"{layers[0]['compression_normalized']:.1f}" in text, "the table shows what was measured"
    measured, verdict = re.search(r"^Measured here: (.*)\.\nVerdict: (.*)\.$", text, re.M).groups()
    assert measured.count("in the first layer") == measured.count("before training") == 2, "R^c and non-zero entries"
    assert verdict in ("agrees", "agrees in part", "does not agree")
    assert len(shipped["samples"]) == 6
    for sample in shipped["samples"]:
        assert sample["caption"] in text
    assert f"{shipped['layers'][0]['compression_normalized']:.1f}" in text
    assert shipped["report"] in text


def test_demo_refuses_a_negative_length(capsys, tmp_path):
    check_refusal(capsys, ["demo", "--epochs", -1, "--output", tmp_path / "demo"], 1, "schedule.epochs is -1")
