"""Panels on the layers (4.2): rates, sparsity, change during training, and the subspaces and dictionaries learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch

from ..._files import atomic_write
from ...errors import CrateError
from ...models.base import CratePreTrainedModel
from ..measure.rates import THRESHOLDS
from ..measure.subspaces import DIRECTIONS, gram, random_directions, subspace_coherence
from ..measure.tracing import bases_of, encoder_layers
from ..measure.training_history import across_training, describe_training, describe_trend
from .panel import BLUE, Curve, Panel, draw_grid, draw_plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tables = Mapping[str, pd.DataFrame]  # tables of `layerwise` by the name of the model


def layer_panels(tables: Tables) -> list[Panel]:
    """Build the panels on rates and sparsity of the layers, with a curve for each model."""
    if not tables:
        raise CrateError("layer_panels got no tables; give at least one, by the name of its model")
    step = {"before": "before attention", "compression": "after", "same_size": "after, at the norm before"}
    steps = {
        f"$R^c(\\cdot\\,|\\,U^\\ell)$ of {model}": [Curve(table, column, label) for column, label in step.items()]
        for model, table in tables.items()
    }
    below = {f"below_{tau:g}": f"|z| < {tau:g}" for tau in THRESHOLDS}
    rates = {"rate": "$R(Z^{\\ell+1})$", "reduction": "$\\Delta R$", "effective_rank": "effective rank"}
    return [
        Panel(
            "compression",
            "Compression: coding rate against each layer's own subspaces, after attention",
            "R^c(Z^{ℓ+½} | U^ℓ) falls from layer to layer in a trained CRATE (4.2), and does not in a ViT (appendix). "
            "For a ViT its value matrices take the place of U.",
            _trends(tables, compression="R^c"),
            _curves(tables, {"compression": "$R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$"}),
            _columns(tables, "compression"),
        ),
        Panel(
            "attention-step",
            "Change of the coding rate by each layer's attention",
            "Attention is a gradient step on R^c(· | U^ℓ), so the rate is lower after it than before (2.3). The step "
            "also shrinks the tokens, which the layer leaves to its norm. The rate is therefore also measured with the "
            "tokens scaled to their norm before attention.",
            _sentences({model: _describe_step(table) for model, table in tables.items()}),
            lambda figure: draw_plots(figure, steps, share_y=True),
            _columns(tables, *step),
        ),
        Panel(
            "sparsity",
            "Sparsity: share of non-zero entries after each layer",
            "The share of non-zero entries falls from layer to layer and rises in the last, which the classifier reads "
            "(4.2). In a ViT no entry is exactly zero (appendix).",
            _trends(tables, nonzero="the non-zero share"),
            _curves(tables, {"nonzero": "$\\|Z^{\\ell+1}\\|_0\\,/\\,(dn)$"}, from_zero=True),
            _columns(tables, "nonzero"),
        ),
        Panel(
            "small-entries",
            "Share of small entries",
            "The appendix counts |z| < τ for τ = 1.0, 0.5 and 0.1, because entries of a ViT are never exactly zero. "
            "The shares of CRATE rise with depth.",
            _trends(tables, **{"below_0.1": "the share under 0.1"}),
            _curves(tables, below, from_zero=True),
            _columns(tables, *below),
        ),
        Panel(
            "rates",
            "Coding rate of all tokens, rate reduction and effective rank",
            "The objective is to raise ΔR = R − R^c (2.1). Tokens of deeper layers lie closer to linear subspaces and "
            "have a lower rank (4.2).",
            _trends(tables, reduction="ΔR", effective_rank="the effective rank"),
            _curves(tables, rates),
            _columns(tables, *rates, "blocks"),
        ),
    ]


def training_panel(metrics: Path) -> Panel | None:
    """Build the panel on the layers across training from a run's metrics.jsonl; None for fewer than two epochs."""
    try:
        table = across_training(metrics)
    except (CrateError, OSError):
        return None
    epochs = sorted(table["epoch"].unique())
    if len(epochs) < 2:
        return None
    before, after = (table[table["epoch"] == epoch].to_dict("records") for epoch in (epochs[0], epochs[-1]))
    return Panel(
        "across-training",
        "Layers across training",
        "An untrained model does not optimize the objective. With training, both terms come to fall with depth (4.2).",
        f"Between epoch {epochs[0]:g} and epoch {epochs[-1]:g}: {describe_training(before, after)}",
        lambda figure: draw_history(figure, table),
        table,
    )


def draw_history(figure: Figure, table: pd.DataFrame) -> None:
    """Draw the paper's figure across training (4.2): R^c and the non-zero share, a curve per epoch, light to dark."""
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
    draw_plots(figure, plots)


def save_history_figure(table: pd.DataFrame, path: Path) -> None:
    """Write the figure across training as a PNG file; the table comes from `across_training`."""
    from matplotlib.figure import Figure

    figure = Figure()
    draw_history(figure, table)
    with atomic_write(path) as draft:
        figure.savefig(draft, dpi=150, format="png")


def subspace_panels(model: CratePreTrainedModel) -> list[Panel]:
    """Build the panels on the subspaces and the dictionaries that the model's layers have."""
    table = subspace_coherence(model)
    bases = [each for each in map(bases_of, encoder_layers(model)) if each is not None]
    panels = _basis_panels(bases, table) if bases else []
    if table["dictionary_gap"].isna().all():
        return panels
    largest = table.iloc[int(table["dictionary_max"].argmax())]
    dictionaries = _coherence_panel(
        "dictionaries",
        "Coherence of the dictionaries over depth",
        "The derivation of ISTA assumes D with DᵀD ≈ I, that is orthogonal atoms of length one (2.4). Training does "
        "not enforce it.",
        f"{describe_trend('The mean |cosine| between atoms', table['dictionary_mean'].tolist())}, where random "
        f"directions have {table['random'].iloc[0]:.3g}. The mutual coherence is at most "
        f"{largest['dictionary_max']:.3g}, in layer {largest['layer']:.0f}. "
        f"{describe_trend('‖DᵀD − I‖_F/√m', table['dictionary_gap'].tolist())}.",
        table[["layer", "dictionary_mean", "dictionary_max", "dictionary_gap", "random"]],
        ("mean |cosine| of two atoms", "dictionary_mean", "random"),
        ("mutual coherence", "dictionary_max"),
        ("$\\|D^T D - I\\|_F/\\sqrt{m}$", "dictionary_gap"),
    )
    return [*panels, dictionaries]


def _basis_panels(bases: Sequence[torch.Tensor], table: pd.DataFrame) -> list[Panel]:
    K, d, p = bases[0].shape
    coherence = ""
    if not table["across_mean"].isna().all():
        largest = table.iloc[int(table["across_max"].argmax())]
        coherence = (
            f"Over all layers, two columns of different heads have a |cosine| of {table['across_mean'].mean():.3g} on "
            f"average and of {largest['across_max']:.3g} at most, in layer {largest['layer']:.0f}. "
        )
    columns = Panel(
        "subspaces",
        "Cosines between the columns of each layer's subspaces",
        "In |[U_1 … U_K]ᵀ[U_1 … U_K]| with columns of length one, the blocks off the diagonal are nearly dark, and "
        "darker in later layers: the learned subspaces are approximately incoherent (4.2).",
        f"{K} {'heads' if K > 1 else 'head'} of {p} columns in {d} dimensions, so K·p = {K * p} "
        f"{'fits' if K * p <= d else 'does not fit'} into d. {coherence}The figure shows {min(DIRECTIONS, p)} random "
        "columns of each head.",
        lambda figure: _draw_grams(figure, bases),
    )
    if K == 1:
        return [columns]  # coherence needs a second head
    below = int((table["across_mean"] < table["random"]).sum())
    where = f"in {below} of {len(table)} layers" if below else "in no layer"
    where = "in every layer" if below == len(table) else where
    smallest = table.iloc[int(table["angle_min"].argmin())]
    return [
        columns,
        _coherence_panel(
            "coherence",
            "Coherence of the subspaces over depth",
            "Columns of different heads are nearly orthogonal, more so in later layers (4.2). Random directions are "
            "nearly orthogonal too, so only values below theirs were learned.",
            describe_trend("The mean |cosine| between columns of different heads", table["across_mean"].tolist())
            + f". It is below that of random directions, {table['random'].iloc[0]:.3g}, {where}.",
            table[["layer", "across_mean", "across_max", "within_mean", "within_max", "random"]],
            ("mean |cosine| of two columns", "across_mean", "within_mean", "random"),
            ("largest |cosine|", "across_max", "within_max"),
        ),
        _coherence_panel(
            "principal-angles",
            "Principal angles between the subspaces of two heads",
            "Incoherent subspaces (2.3) are orthogonal in all directions, with every cosine 0, which is possible if "
            "K·p ≤ d. The paper shows no angles; they do not depend on the basis chosen within a subspace.",
            describe_trend("The largest cosine, averaged over pairs of heads,", table["cosine_max"].tolist())
            + f", where random subspaces of these sizes have {table['random_cosine_max'].iloc[0]:.3g}. The smallest "
            f"angle of all is {smallest['angle_min']:.1f}°, in layer {smallest['layer']:.0f}.",
            table[["layer", "cosine_max", "cosine_mean", "angle_min", "random_cosine_max", "random_cosine_mean"]],
            ("largest cosine, mean over pairs", "cosine_max", "random_cosine_max"),
            ("mean cosine", "cosine_mean", "random_cosine_mean"),
            ("smallest angle, degrees", "angle_min"),
        ),
    ]


def _coherence_panel(
    name: str, title: str, expected: str, measured: str, table: pd.DataFrame, *plots: tuple[str, ...]
) -> Panel:
    """Build a panel with plots of one table, each given as its title and its columns."""
    labels = {"across": "different heads", "within": "same head", "dictionary": "atoms", "random": "random"}
    curves = {
        heading: [Curve(table, column, labels.get(column.split("_")[0], "learned")) for column in columns]
        for heading, *columns in plots
    }
    return Panel(name, title, expected, measured, lambda figure: draw_plots(figure, curves, from_zero=True), table)


def _sentences(texts: Mapping[str, str]) -> str:
    """Join what is said of each model, with the name of the model if there are several."""
    if len(texts) == 1:
        (text,) = texts.values()
        return f"{text[0].upper()}{text[1:]}."
    return " ".join(f"{model}: {text}." for model, text in texts.items())


def _trends(tables: Tables, **columns: str) -> str:
    """Describe the trend of columns over depth, given their names in prose."""
    trends = (
        {model: describe_trend(name, table[column].tolist()) for model, table in tables.items()}
        for column, name in columns.items()
    )
    return " ".join(map(_sentences, trends))


def _describe_step(table: pd.DataFrame) -> str:
    parts = []
    for column in ("compression", "same_size"):
        lower = int((table[column] < table["before"]).sum())
        change = float((table[column] / table["before"] - 1).mean())
        parts.append(f"in {lower} of {len(table)} layers, {change:+.1%} on average")
    return f"lower after attention {parts[0]}; with tokens scaled to their norm before attention, {parts[1]}"


def _columns(tables: Tables, *columns: str) -> pd.DataFrame:
    """Join the columns of all models with their deviations, and put the name of the model in front."""
    wanted = ["layer", *(f"{column}{end}" for column in columns for end in ("", "_std"))]
    return pd.concat([table[wanted].assign(model=model)[["model", *wanted]] for model, table in tables.items()])


def _curves(tables: Tables, columns: Mapping[str, str], from_zero: bool = False) -> Callable[[Figure], None]:
    """Return a function that draws a plot per column, by its title, with a curve for each model."""
    plots = {
        title: [Curve(table, column, model) for model, table in tables.items()] for column, title in columns.items()
    }
    return lambda figure: draw_plots(figure, plots, from_zero=from_zero)


def _draw_grams(figure: Figure, bases: Sequence[torch.Tensor]) -> None:
    pictures = [gram(random_directions(each)).abs().cpu().numpy() for each in bases]
    captions = [f"layer {number}" for number in range(1, len(bases) + 1)]
    draw_grid(figure, pictures, captions, scale="|cosine|", vmin=0, vmax=1, cmap="viridis")
