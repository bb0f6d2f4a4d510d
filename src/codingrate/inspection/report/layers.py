"""Panels on the layers (4.2): rates, sparsity, and their change during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ..._chart import Series
from ..._fonts import short_name
from ..._page import save_figure
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
    rate_column,
    standard_errors,
)
from ..measure.rates import across_training
from ..measure.steps import THRESHOLDS
from .panel import FEW, NO_CONTROLS, UNTRAINED, Panel, Plots, curve, sentences, shade

CONTROL_NAMES = {
    "uniform": "uniform attention", "random": "one random vector", "permuted": "permuted updates",
    "mean": "the mean token",
}  # fmt: skip
"""Controls of attention in words, each of the size of the layer's own update."""
LASSO_NAMES = {"permuted": "a permuted dictionary", "threshold": "the threshold alone"}
"""Controls of ISTA in words."""


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
        """Return the prediction for this model; None before training and for a black box, which is a control."""
        return prediction if self.trained and getattr(self, part) else None


def layer_panels(
    tables: Mapping[str, pd.DataFrame],
    designs: Mapping[str, Design] | None = None,
    untrained: pd.DataFrame | None = None,
) -> list[Panel]:
    """Build the panels on rates, sparsity and steps of the layers, with curves and verdicts for each model.

    `tables` are those of `layerwise` by the name of the model. Models without a design count as trained CRATEs. There
    is a verdict only where there is a control: the columns of `controls=True`, or the first model before training,
    whose table is `untrained` or one of the tables.
    """
    if not tables:
        raise CrateError("layer_panels got no tables; give at least one, by the name of its model")
    built = {model: (designs or {}).get(model, Design()) for model in tables}
    names = [model for model, design in built.items() if not design.trained]
    drawn = untrained
    if untrained is None and names and len(tables) > 1:
        untrained = tables[names[0]]
    first = next((model for model in tables if model not in names), None)
    unjudged = UNTRAINED if not next(iter(built.values())).trained else NO_CONTROLS

    def curves(column: str, label: str) -> list[Series]:
        """Return a curve for each model; a label makes it a reference, without one the untrained model is beside it."""
        shown = {model: table for model, table in tables.items() if column in table and not (label and model in names)}
        many = len(tables) > 1 or not label
        lines = [
            curve(table, column, f"{short_name(model)} {label}".strip() if many else label, reference=bool(label))
            for model, table in shown.items()
        ]
        if drawn is not None and column in drawn and not label:
            lines.append(curve(drawn, column, "untrained", reference=True))
        return lines

    def panel(
        name: str,
        title: str,
        expected: str,
        judge: Callable[[pd.DataFrame, Design, str], list[Finding]],
        plots: dict[str, dict[str, str]],
        *others: str,
        from_zero: bool = False,
    ) -> Panel:
        """Draw a plot for each title of `plots`, with a curve per column and model; the table has `others` too."""
        lines = {
            heading: [line for column, label in columns.items() for line in curves(column, label)]
            for heading, columns in plots.items()
        }
        lines = {heading: drawn for heading, drawn in lines.items() if drawn}
        findings = [finding for model, table in tables.items() for finding in judge(table, built[model], model)]
        wanted = dict.fromkeys([*(column for columns in plots.values() for column in columns), *others])
        kept = ["layer", *(f"{one}{end}" for one in wanted for end in ("", "_std")), "samples"]
        rows = [table.reindex(columns=kept).assign(model=model)[["model", *kept]] for model, table in tables.items()]
        table = pd.concat(rows).dropna(axis="columns", how="all")
        draw = Plots(lines, from_zero) if lines else None
        return Panel(name, title, expected, sentences(findings), draw, table, findings, unjudged)

    def over_depth(part: str, **named: tuple[str, Prediction]) -> Callable[..., list[Finding]]:
        """Return a function that judges how columns change over depth, each against its controls."""

        def judge(table: pd.DataFrame, design: Design, model: str) -> list[Finding]:
            return [
                finding
                for column, (text, prediction) in named.items()
                for finding in judge_depth(
                    text, table, column, design.predicts(prediction, part), model, untrained if model == first else None
                )
            ]

        return judge

    controls = {f"compression_{name}": f"after {text}" for name, text in CONTROL_NAMES.items()}
    panels = [
        panel(
            "compression",
            "Compression: coding rate against each layer's own subspaces, after attention",
            "In a trained CRATE, R^c(Z^{ℓ+½} | U^ℓ) falls from layer to layer in most cases (4.2). The "
            "appendix finds that a ViT does not optimize the objective; it does not say against which subspaces. Here "
            "the value matrices of a ViT take the place of U. What is judged is R^c of unit tokens on orthonormal "
            "bases, because the printed R^c follows the norms of tokens. Controls: random orthonormal subspaces, and "
            "the untrained model.",
            over_depth("compresses", compression_normalized=("R^c of unit tokens on orthonormal bases", FALLS)),
            {
                "R^c(Z^{ℓ+½} | U^ℓ), unit tokens, orthonormal U_k": {
                    "compression_normalized": "",
                    "compression_subspaces": "random subspaces",
                },
                "as printed: raw tokens, raw U_k": {"compression": ""},
                "norm of tokens": {"token_norm": ""},
            },
        ),
        panel(
            "attention-step",
            "Change of the coding rate by each layer's attention",
            "Attention is a gradient step on R^c(· | U^ℓ), so the rate is lower after it than before (2.3), by more "
            "than after updates of the same size that have nothing to do with the gradient: uniform attention, one "
            "random vector for all tokens, the updates of other tokens, the mean token. Its update points along −∇R^c. "
            "Rates are those of unit tokens on orthonormal bases. Hu et al. (2024) show why the step with a skip can "
            "raise R^c. The paper says nothing of a ViT here.",
            judge_attention,
            {
                "R^c after attention": {"compression_normalized": "", "before_normalized": "before", **controls},
                "cosine with −∇R^c": {"alignment": "", "alignment_uniform": "with uniform attention"},
            },
            "compression_steepest",
            "change",
            *(f"gap_{name}" for name in CONTROL_NAMES),
            *(f"alignment_{name}" for name in CONTROL_NAMES),
            "alignment_whole",
            "before",
        ),
        panel(
            "sparsity",
            "Sparsity: share of non-zero entries after each layer",
            "In a trained CRATE, the share of non-zero entries falls from layer to layer in most cases. It may rise in "
            "the last layer, which the head reads and which is not judged (4.2). The appendix finds that a ViT "
            "does not optimize the objective. After a ReLU about half of the entries are zero in any model, so Hoyer's "
            "sparsity, which ignores norms, is judged too. Control: the untrained model.",
            over_depth(
                "sparsifies",
                nonzero=("the non-zero share", FALLS_BEFORE_LAST),
                hoyer=("Hoyer's sparsity", RISES_BEFORE_LAST),
            ),
            {"‖Z^{ℓ+1}‖₀ / (dn)": {"nonzero": ""}, "Hoyer's sparsity": {"hoyer": ""}},
            *(f"below_{tau:g}" for tau in THRESHOLDS),
            from_zero=True,
        ),
        panel(
            "ista-step",
            "Change of the LASSO objective by each layer's ISTA",
            "ISTA is a proximal step on ½‖X − ZDᵀ‖² + λ‖Z‖₁ over non-negative codes (2.4), so this objective is lower "
            "after it than at ReLU(X). Controls: the same step with a dictionary whose atoms are permuted, and the "
            "threshold without a dictionary.",
            judge_ista,
            {
                "LASSO objective, share of that of ReLU(X)": {
                    "lasso": "",
                    **{f"lasso_{name}": text for name, text in LASSO_NAMES.items()},
                },
            },
            "lasso_alignment",
            *(f"lasso_gap_{name}" for name in LASSO_NAMES),
        ),
        panel(
            "rates",
            "Coding rate of all tokens, rate reduction and effective rank",
            "The layers are built to raise ΔR = R − R^c (2.1), and a ViT is not. ΔR of unit tokens on orthonormal "
            "bases is judged, against random orthonormal subspaces and the untrained model. Tokens of deeper layers "
            "lie closer to linear subspaces and have a lower rank (4.2).",
            over_depth(
                "compresses",
                reduction_normalized=("ΔR of unit tokens on orthonormal bases", RISES),
                effective_rank=("the effective rank", FALLS),
            ),
            {
                "ΔR, unit tokens, orthonormal U_k": {
                    "reduction_normalized": "",
                    "reduction_subspaces": "random subspaces",
                },
                "ΔR − λ‖Z‖₁ as printed": {"objective": ""},
                "effective rank": {"effective_rank": ""},
            },
            "rate_normalized",
            "rate",
            "reduction",
            "blocks",
        ),
    ]
    return [panel for panel in panels if panel.draw is not None]


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
            history_plots(table),
            table,
            findings,
            FEW if white_box else "the prediction is for CRATE, and this model is a black box",
        )
        panels.append(panel)
    return panels


def history_plots(table: pd.DataFrame) -> Plots:
    """Return the paper's figure across training (4.2): R^c and the non-zero share, a curve per epoch, light to dark."""
    titles = {
        rate_column(table): "R^c(Z^{ℓ+½} | U^ℓ) after attention",
        "nonzero": "share of non-zero entries after ISTA",
    }
    epochs = [("untrained" if epoch == 0 else f"epoch {epoch:g}", rows) for epoch, rows in table.groupby("epoch")]
    colors = [shade(0.25 + 0.75 * index / max(1, len(epochs) - 1)) for index in range(len(epochs))]
    return Plots(
        {
            title: [curve(rows, column, label, color) for (label, rows), color in zip(epochs, colors, strict=True)]
            for column, title in titles.items()
        }
    )


def save_history_figure(table: pd.DataFrame, path: Path) -> None:
    """Write the figure across training as a PNG file; the table comes from `across_training`."""
    save_figure(history_plots(table), path, "across-training")


def judge_depth(
    name: str,
    table: pd.DataFrame,
    column: str,
    prediction: Prediction | None,
    model: str,
    untrained: pd.DataFrame | None,
) -> list[Finding]:
    """Judge how a column changes over depth, and whether it changes by more than its controls do.

    The controls are the column on random subspaces, if the table has it, and that of the untrained model.
    """
    trend = judge_trend(name, table, column, prediction, model)
    references = {}
    if (other := f"{column.removesuffix('_normalized')}_subspaces") in table:
        references["on random subspaces"] = _end_to_end(table, other, prediction)
    if untrained is not None and column in untrained and len(untrained) == len(table):
        references["in the untrained model"] = _end_to_end(untrained, column, prediction)
    if not references or len(table) < 2:
        return [replace(trend, verdict=None, expected="")]
    own, error = _end_to_end(table, column, prediction)
    findings = [trend]
    for where, (change, uncertainty) in references.items():
        text = f"it changes by {own:+.3g} over depth, {where} by {change:+.3g}"
        finding = Finding("it", text, model=model)
        if prediction is not None:
            verdict = prediction.judge_control([own - change], math.hypot(error, uncertainty))
            finding = replace(finding, verdict=verdict, expected=f"{prediction.direction} by more than {where}")
        findings.append(finding)
    return findings


def _end_to_end(table: pd.DataFrame, column: str, prediction: Prediction | None) -> tuple[float, float]:
    """Return the change of a column from the first layer to the last that counts, and its standard error."""
    rows = table.iloc[:-1] if prediction is not None and prediction.except_last and len(table) > 2 else table
    errors = standard_errors(rows, column)
    return float(rows[column].iloc[-1] - rows[column].iloc[0]), math.hypot(errors[0], errors[-1])


def judge_attention(table: pd.DataFrame, design: Design, model: str) -> list[Finding]:
    """Judge whether attention lowers the normalized R^c, by more than its controls, along −∇R^c."""
    if "change" not in table:
        return []
    judged = design.trained and design.compresses and "gap_random" in table
    change = float((table["change"] / table["before_normalized"]).mean())
    before = f"R^c is lower after attention than before in {{}}, {change:+.1%} on average"
    gaps = {"change": (before, "is lower after the step than before")}
    gaps |= {
        f"gap_{name}": (f"lower than after {text} in {{}}", f"than after {text}")
        for name, text in CONTROL_NAMES.items()
    }
    findings = _judge_gaps(table, gaps, judged, model)
    cosines = table["alignment"]
    text = f"its update has the cosine {cosines.min():.2f} to {cosines.max():.2f} with −∇R^c"
    if not judged:
        return [*findings, Finding("the update", text, model=model)]
    others = table.filter(["alignment_uniform", "alignment_random", "alignment_permuted"])
    margin = cosines - others.assign(zero=0 * cosines).max(axis=1)
    text += f", above 0 and that of uniform attention, a random vector and permuted updates in {_count(margin > 0)}"
    verdict = RISES.judge_control(margin.tolist(), standard_errors(table, "alignment"))
    expected = "points along −∇R^c by more than that of its controls"
    return [*findings, Finding("the update", text, verdict, model, expected)]


def judge_ista(table: pd.DataFrame, design: Design, model: str) -> list[Finding]:
    """Judge whether ISTA lowers its own objective by more than its controls."""
    if "lasso" not in table or table["lasso"].isna().all():
        return []
    judged = design.trained and design.sparsifies and "lasso_gap_permuted" in table
    before = f"the objective is lower than before in {{}}, at {table['lasso'].mean():.0%}"
    gaps = {"lasso_change": (before, "is lower after the step than before")}
    gaps |= {
        f"lasso_gap_{name}": (f"lower than with {text} in {{}}", f"than with {text}")
        for name, text in LASSO_NAMES.items()
    }
    table = table.assign(lasso_change=table["lasso"] - 1, lasso_change_std=table["lasso_std"])
    return _judge_gaps(table, gaps, judged, model)


def _judge_gaps(table: pd.DataFrame, gaps: Mapping[str, tuple[str, str]], judged: bool, model: str) -> list[Finding]:
    """Judge whether differences to controls are negative by more than their errors, in most layers and on average.

    `gaps` has for each column the measurement in words, with a place for the number of layers, and the expectation.
    """
    findings = []
    for column, (text, expected) in gaps.items():
        if column in table and table[column].notna().any():
            finding = Finding("it", text.format(_count(table[column] < 0)), model=model)
            if judged:
                verdict = FALLS.judge_control(table[column].tolist(), standard_errors(table, column))
                finding = replace(finding, verdict=verdict, expected=expected)
            findings.append(finding)
    return findings


def _count(layers: pd.Series[bool]) -> str:
    """Say in how many layers a condition holds."""
    return f"{int(layers.sum())} of {len(layers)} layers"
