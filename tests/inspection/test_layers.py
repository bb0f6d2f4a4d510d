"""What a report says of the layers follows the numbers, whichever way they go."""

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from codingrate.inspection import layerwise
from codingrate.inspection.measure.training_history import describe_trend
from codingrate.inspection.report.layers import layer_panels, save_history_figure, training_panel
from tests.models import toys
from tests.refusals import refused


def table(**columns):
    """A table as `layerwise` gives it, with columns of our own."""
    model = toys.CrateForImageClassification(toys.vision(num_hidden_layers=3))
    whole = layerwise(model, [toys.pixels()])
    return whole.assign(**columns)


def by_name(tables):
    return {panel.name: panel for panel in layer_panels(tables)}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([3.0, 2.0, 1.0], "R^c falls in every layer (3 in the first layer, 1 in the last)"),
        ([1.0, 2.0, 3.0], "R^c rises in every layer"),
        ([3.0, 1.0, 2.0], "R^c falls in 1 of 2 steps"),
        ([2.0, 2.0, 1.0], "R^c falls in 1 of 2 steps"),
        ([1.0, 1.0, 2.0], "R^c falls in 0 of 2 steps"),
        ([1.0, 1.0, 1.0], "R^c is 1 in every layer"),
    ],
)
def test_the_sentence_follows_the_numbers(values, words):
    assert words in describe_trend("R^c", values)
    assert words in by_name({"ours": table(compression=values)})["compression"].measured


def test_attention_is_said_to_lower_the_rate_where_it_does():
    tables = {"a": table(before=[2.0, 2.0, 2.0], compression=[1.0, 3.0, 1.0], same_size=[1.0, 1.0, 1.0])}
    measured = by_name(tables)["attention-step"].measured
    assert "Lower after attention in 2 of 3 layers, -16.7% on average" in measured
    assert "before attention, in 3 of 3 layers, -50.0% on average" in measured


def test_each_model_has_its_curve_and_its_rows():
    tables = {"ours": table(), "twin": table(nonzero=[1.0, 1.0, 1.0])}
    panels = layer_panels(tables)
    assert len({panel.name for panel in panels}) == len(panels)
    for panel in panels:
        assert "ours:" in panel.measured
        assert "twin:" in panel.measured
        assert panel.table["model"].tolist() == ["ours"] * 3 + ["twin"] * 3
        figure = Figure()
        panel.draw(figure)
        legend = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
        shown = " ".join([*legend, *(axes.get_title() for axes in figure.axes)])
        assert "ours" in shown
        assert "twin" in shown
    for column in (
        "compression",
        "before",
        "same_size",
        "nonzero",
        "below_0.1",
        "reduction",
        "effective_rank",
        "blocks",
    ):
        assert any(column in panel.table for panel in panels), column
    sparsity = by_name(tables)["sparsity"]
    assert np.allclose(sparsity.table["nonzero"], [*tables["ours"]["nonzero"], 1, 1, 1])


def test_one_layer_has_no_trend():
    one = table().iloc[:1]
    assert "in the only layer" in by_name({"ours": one})["compression"].measured


def test_nothing_to_show_is_refused():
    refused("no tables", layer_panels, {})


def test_across_training_comes_from_what_the_run_wrote(tmp_path):
    assert training_panel(tmp_path / "metrics.jsonl") is None
    lines = [
        {"kind": "layerwise", "step": step, "epoch": epoch, "layers": [
            {"layer": n, "compression": value * n, "compression_std": 0.1, "nonzero": 1 / n, "nonzero_std": 0.0}
            for n in (1, 2)
        ]}
        for step, epoch, value in ((0, None, 1.0), (9, 3.0, -2.0))
    ]  # fmt: skip
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(lines[0]) + "\n")
    assert training_panel(metrics) is None, "a single time is no comparison"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    panel = training_panel(metrics)
    assert "Between epoch 0 and epoch 3" in panel.measured
    assert "R^c falls in every layer (-2 in the first layer, -4 in the last)" in panel.measured
    assert "R^c is lower after training in 2 of 2 layers" in panel.measured
    assert isinstance(panel.table, pd.DataFrame)
    figure = Figure()
    panel.draw(figure)
    assert len(figure.axes) == 2
    save_history_figure(panel.table, tmp_path / "layers.png")
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
