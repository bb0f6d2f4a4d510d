"""Panels on the layers (4.2): rates, sparsity, and their change during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..._files import atomic_write
from ..._fonts import plot_label
from ...errors import CrateError
from ...models.config import CrateConfig
from ..measure.predictions import (
    FALLS,
    FALLS_BEFORE_LAST,
    RISES,
    RISES_BEFORE_LAST,
    Finding,
    Prediction,
    judge_training,
    judge_trend,
    standard_errors,
)
from ..measure.rates import THRESHOLDS, across_training
from .panel import BLUE, FEW, UNTRAINED, Curve, Panel, draw_plots, sentences


class Design(NamedTuple):
    """Parts of a model that decide what the paper predicts of its layers."""

    trained: bool = True
    compresses: bool = True  # its attention compresses tokens onto subspaces; that of a ViT does not
    sparsifies: bool = True  # its sparsifier makes tokens sparse; the MLP of a ViT does not

    @classmethod
    def of(cls, config: CrateConfig, trained: bool = True) -> Design:
        """Return the design of a model with this config."""
        return cls(trained, config.attention != "mhsa", config.sparsifier not in ("mlp", "none"))

    def predicts(self, prediction: Prediction, part: str) -> Prediction | None:
        """Return the prediction for this model, denied if it does not have the part; None before training."""
        return replace(prediction, denied=not getattr(self, part)) if self.trained else None


def layer_panels(tables: Mapping[str, pd.DataFrame], designs: Mapping[str, Design] | None = None) -> list[Panel]:
    """Build the panels on rates and sparsity of the layers, with a curve and verdicts for each model.

    `tables` are those of `layerwise` by the name of the model. Models without a design count as trained CRATEs.
    """
    if not tables:
        raise CrateError("layer_panels got no tables; give at least one, by the name of its model")
    built = {model: (designs or {}).get(model, Design()) for model in tables}
    unjudged = UNTRAINED if not next(iter(built.values())).trained else FEW

    def columns(*names: str) -> pd.DataFrame:
        """Join columns of all models with their deviations, and put the name of the model in front."""
        wanted = ["layer", *(f"{name}{end}" for name in names for end in ("", "_std")), "samples"]
        return pd.concat([table[wanted].assign(model=model)[["model", *wanted]] for model, table in tables.items()])

    def panel(
        name: str,
        title: str,
        expected: str,
        findings: Sequence[Finding],
        plots: dict[str, str],
        *others: str,
        **draw: Any,
    ) -> Panel:
        """Draw a plot per column of `plots`; the table has `others` too."""
        curves = {
            heading: [Curve(table, column, plot_label(model)) for model, table in tables.items()]
            for column, heading in plots.items()
        }
        draw_curves = partial(draw_plots, plots=curves, **draw)
        table = columns(*plots, *others)
        shown: Any = {"plots": curves, "from_zero": draw.get("from_zero", False)}
        return Panel(name, title, expected, sentences(findings), draw_curves, table, findings, unjudged, **shown)

    def trends(part: str, **named: tuple[str, Prediction]) -> list[Finding]:
        """Judge columns, each with its name and its prediction, for every model."""
        return [
            judge_trend(text, table, column, built[model].predicts(prediction, part), model)
            for model, table in tables.items()
            for column, (text, prediction) in named.items()
        ]

    step = {"before": "before attention", "compression": "after", "same_size": "after, at the norm before"}
    steps = {
        f"$R^c(\\cdot\\,|\\,U^\\ell)$ of {plot_label(model)}": [
            Curve(table, column, label) for column, label in step.items()
        ]
        for model, table in tables.items()
    }
    changes = [finding for model, table in tables.items() for finding in _judge_steps(table, built[model], model)]
    return [
        panel(
            "compression",
            "Compression: coding rate against each layer's own subspaces, after attention",
            "In a trained CRATE, R^c(Z^{ℓ+½} | U^ℓ) falls from layer to layer in most cases (4.2). The "
            "appendix finds that a ViT does not optimize the objective; it does not say against which subspaces. Here "
            "the value matrices of a ViT take the place of U.",
            trends("compresses", compression=("R^c", FALLS)),
            {"compression": "$R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$"},
        ),
        Panel(
            "attention-step",
            "Change of the coding rate by each layer's attention",
            "Attention is a gradient step on R^c(· | U^ℓ), so the rate is lower after it than before (2.3). The step "
            "also shrinks the tokens, which the layer leaves to its norm. The rate is therefore also measured with the "
            "tokens scaled to their norm before attention. The paper says nothing of a ViT here.",
            sentences(changes),
            partial(draw_plots, plots=steps, share_y=True),
            columns(*step),
            changes,
            unjudged,
            plots=steps,
        ),
        panel(
            "sparsity",
            "Sparsity: share of non-zero entries after each layer",
            "In a trained CRATE, the share of non-zero entries falls from layer to layer in most cases. It may rise in "
            "the last layer, which the head reads and which is not judged (4.2). The appendix finds that a ViT "
            "does not optimize the objective.",
            trends("sparsifies", nonzero=("the non-zero share", FALLS_BEFORE_LAST)),
            {"nonzero": "$\\|Z^{\\ell+1}\\|_0\\,/\\,(dn)$"},
            from_zero=True,
        ),
        panel(
            "small-entries",
            "Share of small entries",
            "The appendix plots the share of |z| < τ for τ = 1.0, 0.5 and 0.1 and states no trend. If the tokens of a "
            "trained CRATE become sparser with depth, the shares rise, except in the last layer; this is judged.",
            trends(
                "sparsifies",
                **{f"below_{tau:g}": (f"the share under {tau:g}", RISES_BEFORE_LAST) for tau in THRESHOLDS},
            ),
            {f"below_{tau:g}": f"|z| < {tau:g}" for tau in THRESHOLDS},
            from_zero=True,
        ),
        panel(
            "rates",
            "Coding rate of all tokens, rate reduction and effective rank",
            "The layers are built to raise ΔR = R − R^c (2.1), and a ViT is not. Tokens of deeper layers lie closer to "
            "linear subspaces and have a lower rank (4.2).",
            trends("compresses", reduction=("ΔR", RISES), effective_rank=("the effective rank", FALLS)),
            {"rate": "$R(Z^{\\ell+1})$", "reduction": "$\\Delta R$", "effective_rank": "effective rank"},
            "blocks",
        ),
    ]


def training_panels(metrics: Path, design: Design | None = None) -> list[Panel]:
    """Build a panel on the layers across training for each split in a run's metrics.jsonl with at least two epochs."""
    panels = []
    names = {"evaluation": ("across-training", ""), "training": ("across-training-train", ", training split")}
    design = design or Design()
    for split, (name, addition) in names.items():
        try:
            table = across_training(metrics, split)
        except (CrateError, OSError):
            continue
        epochs = sorted(table["epoch"].unique())
        if len(epochs) < 2:
            continue
        before, after = (table[table["epoch"] == epoch] for epoch in (epochs[0], epochs[-1]))
        white_box = design.compresses and design.sparsifies
        findings = judge_training(before, after, white_box=white_box)
        panel = Panel(
            name,
            f"Layers across training{addition}",
            "An untrained CRATE does not optimize the objective effectively. With training, R^c and the share of "
            "non-zero entries come to fall with depth, the latter except in the last layer, and by more than before "
            "(4.2).",
            f"Between epoch {epochs[0]:g} and epoch {epochs[-1]:g}: {sentences(findings)}",
            partial(draw_history, table=table),
            table,
            findings,
            FEW if white_box else "the prediction is for CRATE, and this model is a black box",
            plots=history_plots(table),
        )
        panels.append(panel)
    return panels


def draw_history(figure: Figure, table: pd.DataFrame) -> None:
    """Draw the paper's figure across training (4.2): R^c and the non-zero share, a curve per epoch, light to dark."""
    draw_plots(figure, history_plots(table))


def history_plots(table: pd.DataFrame) -> dict[str, list[Curve]]:
    """Return the curves of the figure across training, by title."""
    titles = {
        "compression": "$R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$ after attention",
        "nonzero": "share of non-zero entries after ISTA",
    }
    groups = list(table.groupby("epoch"))
    plots: dict[str, list[Curve]] = {title: [] for title in titles.values()}
    for index, (epoch, rows) in enumerate(groups):
        color = (*BLUE, 0.25 + 0.75 * index / max(1, len(groups) - 1))
        label = "untrained" if epoch == 0 else f"epoch {epoch:g}"
        for column, title in titles.items():
            plots[title].append(Curve(rows, column, label, color))
    return plots


def save_history_figure(table: pd.DataFrame, path: Path) -> None:
    """Write the figure across training as a PNG file; the table comes from `across_training`."""
    figure = Figure()
    draw_history(figure, table)
    with atomic_write(path) as draft:
        figure.savefig(draft, dpi=150, format="png")


def _judge_steps(table: pd.DataFrame, design: Design, model: str) -> list[Finding]:
    """Judge R^c after attention against R^c before it, as it is and with tokens at their norm before attention."""
    findings = []
    for column, name in (
        ("compression", "after attention, R^c"),
        ("same_size", "with tokens scaled to their norm before attention, it"),
    ):
        lower = int((table[column] < table["before"]).sum())
        change = float((table[column] / table["before"] - 1).mean())
        text = f"{name} is lower than before in {lower} of {len(table)} layers, {change:+.1%} on average"
        verdict = None
        if design.trained and design.compresses:
            after, before = (standard_errors(table, name) for name in (column, "before"))
            both = None if after is None or before is None else np.hypot(after, before).tolist()
            verdict = FALLS.judge_difference((table[column] - table["before"]).tolist(), both)
        expected = "" if verdict is None else "is lower than before"
        findings.append(Finding(name, text, verdict, model, expected))
    return findings
