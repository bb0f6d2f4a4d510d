"""What a report shows of the layers: rates, sparsity and rank over depth, of several models, and across training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CrateError
from .across import across_training, draw_epochs, trend, verdict
from .layerwise import THRESHOLDS
from .overlay import COLORS
from .panel import Panel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    Tables = Mapping[str, pd.DataFrame]

STEP = {"before": "before attention", "compression": "after", "same_size": "after, at the size before"}
BELOW = tuple(f"below_{tau:g}" for tau in THRESHOLDS)


def layer_panels(tables: Tables) -> list[Panel]:
    """A panel per question about the layers, each with a curve per model; `tables` come from `layerwise`."""
    if not tables:
        raise CrateError("layer_panels got no tables; give at least one, by the model's name")
    return [
        Panel(
            "compression",
            "Compression: the rate against each layer's own subspaces, after attention",
            "R^c(Z^{ℓ+½} | U^ℓ) falls from layer to layer in a trained CRATE (4.2), and does not in a ViT (appendix). "
            "A ViT has its value maps in the place of U.",
            _said(tables, "R^c", "compression"),
            _curves(tables, {"compression": "$R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$"}),
            _columns(tables, "compression"),
        ),
        Panel(
            "attention-step",
            "What attention does to the rate of its own layer",
            "Each attention is a gradient step on R^c(· | U^ℓ), so that the rate is lower after it than before (2.3). "
            "The step shrinks tokens, which the layer leaves to its norm: hence also at the size tokens had before.",
            _lowered(tables),
            _curves(tables, STEP, together=True),
            _columns(tables, *STEP),
        ),
        Panel(
            "sparsity",
            "Sparsity: entries that are not zero after each layer",
            "The share of non-zero entries falls from layer to layer and rises in the last, where the classifier reads "
            "(4.2); in a ViT nothing is exactly zero (appendix).",
            _said(tables, "the non-zero share", "nonzero"),
            _curves(tables, {"nonzero": "$\\|Z^{\\ell+1}\\|_0\\,/\\,(dn)$"}, bottom=0.0),
            _columns(tables, "nonzero"),
        ),
        Panel(
            "small-entries",
            "Entries that are small, whether zero or not",
            "The appendix counts |z| < τ for τ = 1.0, 0.5 and 0.1, since a ViT's entries are never zero; CRATE's "
            "shares rise with depth.",
            _said(tables, "the share under 0.1", "below_0.1"),
            _curves(tables, {name: f"|z| < {name.removeprefix('below_')}" for name in BELOW}, bottom=0.0),
            _columns(tables, *BELOW),
        ),
        Panel(
            "rates",
            "Rate of all tokens, rate reduction and effective rank",
            "The objective is to raise ΔR = R − R^c (2.1); deeper tokens are nearer to linear subspaces, of lower rank "
            "(4.2).",
            _said(tables, "ΔR", "reduction") + " " + _said(tables, "the effective rank", "effective_rank"),
            _curves(
                tables, {"rate": "$R(Z^{\\ell+1})$", "reduction": "$\\Delta R$", "effective_rank": "effective rank"}
            ),
            _columns(tables, "rate", "reduction", "effective_rank", "blocks"),
        ),
    ]


def training_panel(metrics: Path) -> Panel | None:
    """The layers across training, from the measures a run wrote down; None where it did not do so twice."""
    try:
        table = across_training(metrics)
    except (CrateError, OSError):
        return None
    epochs = sorted(table["epoch"].unique())
    if len(epochs) < 2:
        return None
    before, after = (table[table["epoch"] == epoch].to_dict("records") for epoch in (epochs[0], epochs[-1]))
    said = f"Between epoch {epochs[0]:g} and epoch {epochs[-1]:g}: {verdict(before, after)}"
    return Panel(
        "across-training",
        "The same layers across training",
        "An untrained model does not optimise the objective; with training both terms come to fall with depth (4.2).",
        said,
        lambda figure: draw_epochs(figure, table),
        table,
    )


def _said(tables: Tables, name: str, column: str) -> str:
    """A sentence for each model on what a measure does over depth."""
    return _each(tables, lambda table: trend(name, table[column].tolist()))


def _each(tables: Tables, say: Callable[[pd.DataFrame], str]) -> str:
    """A sentence for each model, with its name where there are several."""
    if len(tables) == 1:
        (words,) = (say(table) for table in tables.values())
        return f"{words[0].upper()}{words[1:]}."
    return " ".join(f"{model}: {say(table)}." for model, table in tables.items())


def _lowered(tables: Tables) -> str:
    def say(table: pd.DataFrame) -> str:
        said = []
        for column in ("compression", "same_size"):
            lower = int((table[column] < table["before"]).sum())
            change = float((table[column] / table["before"] - 1).mean())
            said.append(f"in {lower} of {len(table)} layers, {change:+.1%} on average")
        return f"lower after attention {said[0]}; with tokens scaled to the size they had before, {said[1]}"

    return _each(tables, say)


def _columns(tables: Tables, *columns: str) -> pd.DataFrame:
    """The columns of all models, with their deviations, and the model's name in front."""
    import pandas as pd

    wanted = ["layer", *(f"{column}{end}" for column in columns for end in ("", "_std"))]
    return pd.concat([table[wanted].assign(model=model)[["model", *wanted]] for model, table in tables.items()])


def _curves(
    tables: Tables, columns: Mapping[str, str], *, bottom: float | None = None, together: bool = False
) -> Callable[[Figure], None]:
    """Draws a plot per column side by side, or `together` one per model: a curve with its deviation for each."""

    def draw(figure: Figure) -> None:
        plots = len(tables) if together else len(columns)
        figure.set_size_inches(min(9.5, 1.4 + 2.7 * max(2, plots)), 3.2)
        figure.set_layout_engine("constrained")
        places = figure.subplots(1, plots, squeeze=False, sharey=together)[0]
        for own, (model, table) in enumerate(tables.items()):
            for number, (column, label) in enumerate(columns.items()):
                axes, color = places[own if together else number], _COLORS[(number if together else own) % len(_COLORS)]
                axes.errorbar(
                    table["layer"], table[column], table[f"{column}_std"],
                    color=color, label=label if together else model, marker="o", markersize=3, capsize=2,
                )  # fmt: skip
                axes.set_title(f"$R^c(\\cdot\\,|\\,U^\\ell)$ of {model}" if together else label)
        for axes in places:
            axes.set_xlabel("layer")
            axes.grid(alpha=0.3)
            axes.xaxis.get_major_locator().set_params(integer=True)
            if bottom is not None:
                axes.set_ylim(bottom=bottom)
        places[-1].legend(fontsize="small", frameon=False)

    return draw


_COLORS = [tuple(part / 255 for part in COLORS[place]) for place in (1, 0, 2, 3, 4, 5)]  # blue first
