"""What a report says of the layers follows the numbers, whichever way they go."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from codingrate.inspection import layerwise
from codingrate.inspection.report.layers import Design, layer_panels, save_history_figure, training_panels
from codingrate.operators import ATTENTION, SPARSIFIERS
from tests.models import toys
from tests.refusals import refused


def table(**columns):
    """A table as `layerwise` gives it, with columns of our own."""
    model = toys.CrateForImageClassification(toys.vision(num_hidden_layers=3))
    whole = layerwise(model, [toys.pixels()], controls=True)
    return whole.assign(**columns)


def exactly(**columns):
    """A table with columns of our own that have no error."""
    return table(**columns, **{f"{name}_std": 0.0 for name in columns})


def by_name(tables):
    return {panel.name: panel for panel in layer_panels(tables)}


VIT = Design(compresses=False, sparsifies=False)


FLAT = [5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("design", "compression", "control", "verdict"),
    [
        (Design(), [9.0, 8.0, 7.0], FLAT, "agrees"),
        (Design(), [9.0, 8.0, 7.0], [9.0, 8.0, 7.0], "agrees in part"),  # it falls as much on random subspaces
        (Design(), [7.0, 8.0, 9.0], FLAT, "does not agree"),
        (Design(), [7.0, 8.0, 9.0], [7.0, 8.0, 99.0], "agrees in part"),
        (VIT, [9.0, 8.0, 7.0], FLAT, None),
        (Design(trained=False), [9.0, 8.0, 7.0], FLAT, None),
    ],
)
def test_the_verdict_follows_the_prediction_and_the_control(design, compression, control, verdict):
    values = exactly(compression_normalized=compression, compression_subspaces=control)
    panel = layer_panels({"it": values}, {"it": design})[0]
    assert panel.name == "compression"
    assert panel.verdict == verdict
    assert ("No verdict" if verdict is None else f"verdict: {verdict}.") in panel.verdict_text
    if design.trained and design.compresses:
        assert "on random subspaces by" in panel.measured


def test_the_untrained_model_is_a_control_of_sparsity():
    ours, untrained = (exactly(nonzero=values, hoyer=[1 - value for value in values]) for values in (
        [0.5, 0.3, 0.4], [0.5, 0.45, 0.4]))  # fmt: skip
    for reference, verdict in ((None, None), (untrained, "agrees"), (ours, "agrees in part")):
        panel = next(p for p in layer_panels({"ours": ours}, untrained=reference) if p.name == "sparsity")
        assert panel.verdict == verdict
    panels = layer_panels({"ours": ours, "random": untrained}, {"random": Design(trained=False)})
    assert dict(next(p for p in panels if p.name == "sparsity").verdicts) == {"ours": "agrees", "random": None}


def test_what_is_predicted_follows_the_operators_of_the_model():
    for attention, sparsifier in itertools.product(ATTENTION.names(), SPARSIFIERS.names()):
        design = Design.of(toys.vision(attention=attention, sparsifier=sparsifier))
        expected = (True, attention != "mhsa", sparsifier in ("ista", "ista-soft", "odl", "prox"))
        assert design == expected, (attention, sparsifier)
        assert not Design.of(toys.vision(attention=attention, sparsifier=sparsifier), trained=False).trained


def test_a_rise_is_not_described_as_a_fall():
    panel = by_name({"ours": exactly(reduction_normalized=[1.0, 3.0, 2.0])})["rates"]
    assert "ΔR of unit tokens on orthonormal bases rises in every layer but the last, where it falls" in panel.measured


def test_models_are_judged_each_by_its_own_prediction():
    falling = exactly(compression_normalized=[3.0, 2.0, 1.0], compression_subspaces=FLAT)
    panel = layer_panels({"ours": falling, "twin": falling}, {"twin": VIT})[0]
    assert list(panel.verdicts.items()) == [("ours", "agrees"), ("twin", None)]
    assert panel.verdict_text.endswith("verdict: agrees.")
    assert "twin" not in panel.verdict_text
    assert {finding.model for finding in panel.findings} == {"ours", "twin"}


def test_a_verdict_stands_after_the_measurement_and_the_prediction_for_the_model():
    sparse = exactly(nonzero=[0.5, 0.3, 0.4], hoyer=[0.1, 0.5, 0.4])
    panels = layer_panels({"ours": sparse}, untrained=exactly(nonzero=FLAT, hoyer=FLAT))
    (line,) = next(panel.judgements() for panel in panels if panel.name == "sparsity")
    parts = ("falls in every layer but the last", "in the untrained model by", "expected: the non-zero share falls",
             "falls by more than in the untrained model", "verdict: agrees")  # fmt: skip
    places = [line.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_ticks_are_whole_layers(count):
    rows = pd.concat([table()] * 4).iloc[:count].assign(layer=range(1, count + 1))
    figure = Figure()
    by_name({"ours": rows})["rates"].draw(figure)
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert shown
        assert all(tick == round(tick) for tick in shown)


def test_the_average_change_by_attention_counts_every_layer_alike():
    values = {"change": [-1.0, 2.0, -1.0], "before_normalized": [2.0, 4.0, 2.0]}
    findings = by_name({"a": table(**values)})["attention-step"].findings
    assert "-16.7%" in findings[0].measured  # of −½, ½ and −½


def test_attention_is_said_to_lower_the_rate_where_it_does():
    own = {"change": [-1.0, 1.0, -1.0], "before_normalized": [2.0, 2.0, 2.0], "alignment": [0.5, 0.2, 0.4]}
    beaten = {f"gap_{name}": [-1.0, -1.0, -1.0] for name in ("uniform", "random", "permuted", "mean")}
    others = {f"alignment_{name}": [0.1, 0.3, 0.1] for name in ("uniform", "random", "permuted")}
    panel = by_name({"a": exactly(**own, **beaten, **others)})["attention-step"]
    assert "R^c is lower after attention than before in 2 of 3 layers, -16.7% on average" in panel.measured
    assert "lower than after one random vector in 3 of 3 layers" in panel.measured
    assert "cosine 0.20 to 0.50 with −∇R^c, above 0 and that of" in panel.measured
    assert panel.verdict == "agrees"
    lost = by_name({"a": exactly(**own, **beaten | {"gap_mean": [1.0, 1.0, -1.0]}, **others)})["attention-step"]
    assert lost.verdict == "agrees in part"


def test_each_model_has_its_curve_and_its_rows():
    tables = {"ours": table(), "twin": table(nonzero=[1.0, 1.0, 1.0])}
    panels = layer_panels(tables)
    assert len({panel.name for panel in panels}) == len(panels)
    for panel in panels:
        assert panel.measured.startswith("Ours: ") or "ours:" in panel.measured
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
        "change",
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
    assert training_panels(tmp_path / "metrics.jsonl") == []
    lines = [
        {"kind": "layerwise", "step": step, "epoch": epoch, "layers": [
            {"layer": n, "compression": value * n, "compression_std": 0.1, "nonzero": 1 / n, "nonzero_std": 0.0}
            for n in (1, 2)
        ]}
        for step, epoch, value in ((0, None, 1.0), (9, 3.0, -2.0))
    ]  # fmt: skip
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(lines[0]) + "\n")
    assert training_panels(metrics) == [], "a single time is no comparison"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (panel,) = training_panels(metrics)
    assert "Between epoch 0 and epoch 3" in panel.measured
    assert "R^c falls in every layer (-2 in the first layer, -4 in the last)" in panel.measured
    assert "its change from the first to the last layer is +100%, and was +100% before training" in panel.measured
    assert panel.verdict == "agrees in part"
    assert isinstance(panel.table, pd.DataFrame)
    figure = Figure()
    panel.draw(figure)
    assert len(figure.axes) == 2
    save_history_figure(panel.table, tmp_path / "layers.png")
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
    both = [*lines, *({**line, "kind": "layerwise-train"} for line in lines)]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in both))
    assert [panel.name for panel in training_panels(metrics)] == ["across-training", "across-training-train"]
