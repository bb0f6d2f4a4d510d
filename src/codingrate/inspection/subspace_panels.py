"""What a report shows of the parameters: UᵀU of every layer, coherence, principal angles, dictionaries (paper 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ..models.base import CratePreTrainedModel
from .across import trend
from .grids import WIDTH, draw_grid
from .overlay import COLORS
from .panel import Panel
from .subspaces import DIRECTIONS, gram, layer_bases, random_directions, subspace_coherence

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ORANGE, BLUE, GREEN = (tuple(part / 255 for part in color) for color in COLORS[:3])
PLOT = Mapping[str, str]
"""Columns of a table in one plot, with their labels; those named random… are references."""


def subspace_panels(model: CratePreTrainedModel) -> list[Panel]:
    """Panels of the subspaces and of the dictionaries, as far as the model's layers have any."""
    table = subspace_coherence(model)
    return [*_of_subspaces(model, table), *_of_dictionaries(table)]


def _of_subspaces(model: CratePreTrainedModel, table: pd.DataFrame) -> list[Panel]:
    bases = [each for each in layer_bases(model) if each is not None]
    if not bases:
        return []
    panels = [
        Panel(
            "subspaces",
            "Columns of each layer's subspaces against each other",
            "In |[U_1 … U_K]ᵀ[U_1 … U_K]| with columns of length one, the blocks off the diagonal are nearly dark, and "
            "darker in later layers: the learned subspaces are approximately incoherent (4.2).",
            f"{_sizes(bases[0])}. {_overall(table)}Drawn are {min(DIRECTIONS, bases[0].shape[-1])} columns of each, "
            "at random.",
            lambda figure: _draw_grams(figure, bases),
        )
    ]
    if len(bases[0]) == 1:
        return panels  # a single head has no other to be coherent with
    panels.append(
        Panel(
            "coherence",
            "Coherence of the subspaces over depth",
            "Columns of different heads are nearly orthogonal, more so in later layers (4.2). Random directions are "
            "nearly orthogonal too: only what lies under their value was learned.",
            trend("The mean |cosine| between columns of different heads", table["across_mean"].tolist())
            + f". It is below that of random directions, {table['random'].iloc[0]:.3g}, {_where_below(table)}.",
            _curves(
                table,
                {"across_mean": "different heads", "within_mean": "same head", "random": "random directions"},
                {"across_max": "different heads", "within_max": "same head"},
                titles=("mean |cosine| of two columns", "largest |cosine|"),
            ),
            table[["layer", "across_mean", "across_max", "within_mean", "within_max", "random"]],
        )
    )
    smallest = table.iloc[int(table["angle_min"].argmin())]
    panels.append(
        Panel(
            "principal-angles",
            "Principal angles between the subspaces of two heads",
            "Incoherent subspaces (2.3) are at right angles in all directions, every cosine 0, which is possible where "
            "K·p ≤ d. The paper shows no angles; these do not depend on the columns chosen within a subspace.",
            trend("The largest cosine, averaged over pairs of heads,", table["cosine_max"].tolist())
            + f", where random subspaces of these sizes have {table['random_cosine_max'].iloc[0]:.3g}. The smallest "
            f"angle of all is {smallest['angle_min']:.1f}°, in layer {smallest['layer']:.0f}.",
            _curves(
                table,
                {"cosine_max": "largest cosine", "random_cosine_max": "random subspaces"},
                {"cosine_mean": "mean cosine", "random_cosine_mean": "random subspaces"},
                {"angle_min": "smallest of all"},
                titles=("largest cosine, mean over pairs", "mean cosine", "smallest angle, degrees"),
            ),
            table[["layer", "cosine_max", "cosine_mean", "angle_min", "random_cosine_max", "random_cosine_mean"]],
        )
    )
    return panels


def _of_dictionaries(table: pd.DataFrame) -> list[Panel]:
    if table["dictionary_gap"].isna().all():
        return []
    largest = table.iloc[int(table["dictionary_max"].argmax())]
    return [
        Panel(
            "dictionaries",
            "Coherence of the dictionaries over depth",
            "The derivation of ISTA takes D with DᵀD ≈ I, atoms at right angles and of length one (2.4); training does "
            "not enforce it.",
            trend("The mean |cosine| between atoms", table["dictionary_mean"].tolist())
            + f", where random directions have {table['random'].iloc[0]:.3g}; the mutual coherence is at most "
            f"{largest['dictionary_max']:.3g}, in layer {largest['layer']:.0f}. "
            + trend("‖DᵀD − I‖_F/√m", table["dictionary_gap"].tolist())
            + ".",
            _curves(
                table,
                {"dictionary_mean": "atoms", "random": "random directions"},
                {"dictionary_max": "atoms"},
                {"dictionary_gap": "$D$"},
                titles=("mean |cosine| of two atoms", "mutual coherence", "$\\|D^T D - I\\|_F/\\sqrt{m}$"),
            ),
            table[["layer", "dictionary_mean", "dictionary_max", "dictionary_gap", "random"]],
        )
    ]


def _sizes(bases: torch.Tensor) -> str:
    K, d, p = bases.shape
    room = "fits" if K * p <= d else "does not fit"
    return f"{K} {'heads' if K > 1 else 'head'} of {p} columns in {d} dimensions, so K·p = {K * p} {room} into d"


def _overall(table: pd.DataFrame) -> str:
    if table["across_mean"].isna().all():
        return ""
    largest = table.iloc[int(table["across_max"].argmax())]
    return (
        f"Over all layers two columns of different heads have a |cosine| of {table['across_mean'].mean():.3g} on "
        f"average and of {largest['across_max']:.3g} at most, in layer {largest['layer']:.0f}. "
    )


def _where_below(table: pd.DataFrame) -> str:
    below = int((table["across_mean"] < table["random"]).sum())
    if below == len(table):
        return "in every layer"
    return f"in {below} of {len(table)} layers" if below else "in no layer"


def _draw_grams(figure: Figure, bases: Sequence[torch.Tensor]) -> None:
    pictures = [gram(random_directions(each)).abs().cpu().numpy() for each in bases]
    captions = [f"layer {number}" for number in range(1, len(bases) + 1)]
    draw_grid(figure, pictures, captions, scale="|cosine|", vmin=0, vmax=1, cmap="viridis")


def _curves(table: pd.DataFrame, *plots: PLOT, titles: Sequence[str]) -> Callable[[Figure], None]:
    """Draws plots side by side over the layers, references dashed and in the colour of the text."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        figure.set_size_inches(min(WIDTH, 3.4 * len(plots)), 3)
        figure.set_layout_engine("constrained")
        for axes, plot, title in zip(figure.subplots(1, len(plots)), plots, titles, strict=True):
            for (column, label), color in zip(plot.items(), (BLUE, ORANGE, GREEN), strict=False):
                reference = column.startswith("random")
                style = {"color": "black", "linestyle": "--"} if reference else {"color": color, "marker": "o"}
                axes.plot(table["layer"], table[column], label=label, markersize=3, **style)
            axes.set(xlabel="layer", title=title)
            axes.set_ylim(0, 1.1 * float(table[list(plot)].max().max()) or 1)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.3)
            if len(plot) > 1:
                axes.legend(fontsize="small", frameon=False)

    return draw
