"""Panels on the layers (4.2): rates, sparsity, and their change during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
    rate_column,
    standard_errors,
)
from ..measure.rates import across_training
from ..measure.steps import THRESHOLDS
from .panel import BLUE, FEW, NO_CONTROLS, UNTRAINED, Curve, Panel, draw_plots, sentences

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

    def panel(
        name: str,
        title: str,
        expected: str,
        judge: Callable[[pd.DataFrame, Design, str], list[Finding]],
        plots: dict[str, dict[str, str]],
        *others: str,
        **draw: Any,
    ) -> Panel:
        """Draw a plot for each title of `plots`, with a curve per column and model; the table has `others` too."""
        curves = {
            heading: [
                Curve(table, column, " ".join(filter(None, (plot_label(model), label))), reference=bool(label))
                for model, table in tables.items()
                for column, label in columns.items()
                if column in table and not (label and model in names)
            ]
            + [
                Curve(drawn, column, "untrained", reference=True)
                for column, label in columns.items()
                if drawn is not None and column in drawn and not label
            ]
            for heading, columns in plots.items()
        }
        curves = {heading: lines for heading, lines in curves.items() if lines}
        findings = [finding for model, table in tables.items() for finding in judge(table, built[model], model)]
        wanted = [*(column for columns in plots.values() for column in columns), *others]
        kept = ["layer", *(f"{one}{end}" for one in dict.fromkeys(wanted) for end in ("", "_std")), "samples"]
        rows = [table.reindex(columns=kept).assign(model=model)[["model", *kept]] for model, table in tables.items()]
        shown: Any = {"plots": curves, "from_zero": draw.get("from_zero", False)}
        draw_curves = partial(draw_plots, plots=curves, **draw)
        table = pd.concat(rows).dropna(axis="columns", how="all")
        return Panel(name, title, expected, sentences(findings), draw_curves, table, findings, unjudged, **shown)

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
                "$R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$, unit tokens, orthonormal $U_k$": {
                    "compression_normalized": "",
                    "compression_subspaces": "random subspaces",
                },
                "as printed: raw tokens, raw $U_k$": {"compression": ""},
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
                "$R^c$ after attention": {"compression_normalized": "", "before_normalized": "before", **controls},
                "cosine with $-\\nabla R^c$": {"alignment": "", "alignment_uniform": "with uniform attention"},
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
            {"$\\|Z^{\\ell+1}\\|_0\\,/\\,(dn)$": {"nonzero": ""}, "Hoyer's sparsity": {"hoyer": ""}},
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
                "$\\Delta R$, unit tokens, orthonormal $U_k$": {
                    "reduction_normalized": "",
                    "reduction_subspaces": "random subspaces",
                },
                "$\\Delta R-\\lambda\\|Z\\|_1$ as printed": {"objective": ""},
                "effective rank": {"effective_rank": ""},
            },
            "rate_normalized",
            "rate",
            "reduction",
            "blocks",
        ),
    ]
    return [panel for panel in panels if panel.plots]  # fmt: skip


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
        rate_column(table): "$R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$ after attention",
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
        verdict = (
            None if prediction is None else prediction.judge_control([own - change], [math.hypot(error, uncertainty)])
        )
        expected = "" if prediction is None else f"{prediction.direction} by more than {where}"
        text = f"it changes by {own:+.3g} over depth, {where} by {change:+.3g}"
        findings.append(Finding("it", text, verdict, model, expected))
    return findings


def _end_to_end(table: pd.DataFrame, column: str, prediction: Prediction | None) -> tuple[float, float]:
    """Return the change of a column from the first layer to the last that counts, and its standard error."""
    rows = table.iloc[:-1] if prediction is not None and prediction.except_last and len(table) > 2 else table
    errors = standard_errors(rows, column)
    ends = (0.0, 0.0) if errors is None else (float(errors[0]), float(errors[-1]))
    return float(rows[column].iloc[-1] - rows[column].iloc[0]), math.hypot(*ends)


def judge_attention(table: pd.DataFrame, design: Design, model: str) -> list[Finding]:
    """Judge whether attention lowers the normalized R^c, by more than its controls, along −∇R^c."""
    if "change" not in table:
        return []
    judged = design.trained and design.compresses and "gap_random" in table
    change = float((table["change"] / table["before_normalized"]).mean())
    before = f"R^c is lower after attention than before in {_lower(table, 'change')}, {change:+.1%} on average"
    findings = [_judge_gap(table, "change", before, "is lower after the step than before", judged, model)]
    for name, text in CONTROL_NAMES.items():
        if (column := f"gap_{name}") in table and table[column].notna().any():
            words = f"lower than after {text} in {_lower(table, column)}"
            findings.append(_judge_gap(table, column, words, f"than after {text}", judged, model))
    cosines = table["alignment"]
    text = f"its update has the cosine {cosines.min():.2f} to {cosines.max():.2f} with −∇R^c"
    others = [table[name] for name in ("alignment_uniform", "alignment_random", "alignment_permuted") if name in table]
    if not judged:
        return [*findings, Finding("the update", text, None, model)]
    best = pd.concat([*others, 0 * cosines], axis=1).max(axis=1)
    above = int((cosines > best).sum())
    errors = standard_errors(table, "alignment")
    verdict = RISES.judge_control((cosines - best).tolist(), None if errors is None else list(errors))
    text += f", above 0 and that of uniform attention, a random vector and permuted updates in {_of(above, table)}"
    return [
        *findings,
        Finding("the update", text, verdict, model, "points along −∇R^c by more than that of its controls"),
    ]


def judge_ista(table: pd.DataFrame, design: Design, model: str) -> list[Finding]:
    """Judge whether ISTA lowers its own objective by more than its controls."""
    if "lasso" not in table or table["lasso"].isna().all():
        return []
    judged = design.trained and design.sparsifies and "lasso_gap_permuted" in table
    values = table.assign(lasso_change=table["lasso"] - 1, lasso_change_std=table["lasso_std"])
    text = f"the objective is lower than before in {_lower(values, 'lasso_change')}, at {table['lasso'].mean():.0%}"
    findings = [_judge_gap(values, "lasso_change", text, "is lower after the step than before", judged, model)]
    for name, control in LASSO_NAMES.items():
        if (column := f"lasso_gap_{name}") in table:
            text = f"lower than with {control} in {_lower(table, column)}"
            findings.append(_judge_gap(table, column, text, f"than with {control}", judged, model))
    return findings


def _judge_gap(table: pd.DataFrame, column: str, text: str, expected: str, judged: bool, model: str) -> Finding:
    """Judge whether a difference to a control is negative by more than its error, in most layers and on average."""
    errors = standard_errors(table, column)
    verdict = FALLS.judge_control(table[column].tolist(), None if errors is None else list(errors)) if judged else None
    return Finding("it", text, verdict, model, expected if judged else "")


def _lower(table: pd.DataFrame, column: str) -> str:
    return _of(int((table[column] < 0).sum()), table)


def _of(count: int, table: pd.DataFrame) -> str:
    return f"{count} of {len(table)} layers"
