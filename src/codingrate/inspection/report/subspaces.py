"""Panels on the subspaces and the dictionaries that the layers have learned (4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pandas as pd
from torch import Tensor

from ...models.base import CratePreTrainedModel
from ..measure.predictions import FALLS, Finding, describe_trend, judge_reference, judge_trend
from ..measure.subspaces import (
    DIRECTIONS,
    gram,
    random_cosine_error,
    random_directions,
    random_principal_error,
    subspace_coherence,
)
from ..measure.tracing import bases_of, dictionary_of, encoder_layers
from .panel import FEW, UNTRAINED, Panel, Plots, curve, draw_grid, sentences


def subspace_panels(model: CratePreTrainedModel, trained: bool = True) -> list[Panel]:
    """Build the panels on the subspaces and the dictionaries that the model's layers have."""
    whole = subspace_coherence(model)
    bases = [each for each in map(bases_of, encoder_layers(model)) if each is not None]
    labels = {"across": "different heads", "within": "same head", "dictionary": "atoms", "random": "random"}
    falls = FALLS if trained else None
    panels: list[Panel] = []

    def add(name: str, title: str, expected: str, findings: list[Finding], more: str, *plots: tuple[str, ...]) -> None:
        """Add a panel with plots, each given as its title and its columns."""
        used = {"layer", *(column for _, *columns in plots for column in columns)}
        table = whole[[column for column in whole if column in used]]
        curves = {
            heading: [curve(table, column, labels.get(column.split("_")[0], "learned")) for column in columns]
            for heading, *columns in plots
        }
        measured = f"{sentences(findings)} {more}".strip()
        unjudged = FEW if trained else UNTRAINED
        panels.append(Panel(name, title, expected, measured, Plots(curves, from_zero=True), table, findings, unjudged))

    def below(name: str, column: str, reference: str, error: float = 0.0) -> Finding:
        """Judge if a column lies below that of random directions."""
        where = f"random directions have {whole[reference].iloc[0]:.3g}"
        return judge_reference(name, whole, column, reference, where, falls, error)

    if bases:
        panels.append(_gram_panel(bases, whole))
    if bases and len(bases[0]) > 1:  # coherence needs a second head
        error = _coherence_error(bases[0])
        smallest = whole.iloc[int(whole["angle_min"].argmin())]
        add(
            "coherence",
            "Coherence of the subspaces over depth",
            "Columns of different heads are nearly orthogonal, more so in later layers (4.2). Random directions are "
            "nearly orthogonal too, so only values below theirs were learned.",
            [
                judge_trend(
                    "the mean |cosine| of columns of different heads", whole, "across_mean", falls, error=error
                ),
                below("it", "across_mean", "random", error),
            ],
            "",
            ("mean |cosine| of two columns", "across_mean", "within_mean", "random"),
            ("largest |cosine|", "across_max", "within_max"),
        )
        add(
            "principal-angles",
            "Principal angles between the subspaces of two heads",
            "Incoherent subspaces (2.3) are orthogonal in all directions, with every cosine 0, which is possible if "
            "K·p ≤ d. Learned subspaces are therefore further apart than random ones. The paper shows no angles; they "
            "do not depend on the basis chosen within a subspace.",
            [
                below(
                    "the largest cosine, averaged over pairs of heads,",
                    "cosine_max",
                    "random_cosine_max",
                    math.sqrt(2) * random_principal_error(*bases[0].shape),  # of the learned mean and of the random one
                )
            ],
            f"The smallest angle of all is {smallest['angle_min']:.1f}°, in layer {smallest['layer']:.0f}.",
            ("largest cosine, mean over pairs", "cosine_max", "random_cosine_max"),
            ("mean cosine", "cosine_mean", "random_cosine_mean"),
            ("smallest angle, degrees", "angle_min"),
        )
    if not whole["dictionary_gap"].isna().all():
        largest = whole.iloc[int(whole["dictionary_max"].argmax())]
        d, columns = next(each.shape for each in map(dictionary_of, encoder_layers(model)) if each is not None)
        atoms = columns * (columns - 1) // 2
        add(
            "dictionaries",
            "Coherence of the dictionaries over depth",
            "The derivation of ISTA assumes D with DᵀD ≈ I, that is orthogonal atoms of length one (2.4). Training "
            "does not enforce it. If it learns it, atoms are closer to orthogonal than random directions.",
            [below("the mean |cosine| between atoms", "dictionary_mean", "random", random_cosine_error(d, atoms))],
            f"The mutual coherence is at most {largest['dictionary_max']:.3g}, in layer {largest['layer']:.0f}; "
            f"{describe_trend('‖DᵀD − I‖_F/√m', whole['dictionary_gap'])}.",
            ("mean |cosine| of two atoms", "dictionary_mean", "random"),
            ("mutual coherence", "dictionary_max"),
            ("‖DᵀD − I‖_F/√m", "dictionary_gap"),
        )
    return panels


def _coherence_error(bases: Tensor) -> float:
    """Return the error of the mean |cosine| between columns of different heads, as random columns would have it."""
    K, d, p = bases.shape
    return random_cosine_error(d, K * (K - 1) // 2 * p**2)


def _gram_panel(bases: Sequence[Tensor], table: pd.DataFrame) -> Panel:
    K, d, p = bases[0].shape
    coherence, findings = "", []
    if K > 1:
        largest = table.iloc[int(table["across_max"].argmax())]
        coherence = (
            f"Over all layers, two columns of different heads have a |cosine| of {table['across_mean'].mean():.3g} on "
            f"average and of {largest['across_max']:.3g} at most, in layer {largest['layer']:.0f}. "
        )
        error = _coherence_error(bases[0])
        findings = [judge_trend("the mean |cosine| of different heads", table, "across_mean", error=error)]
        coherence += f"{sentences(findings)} "
    pictures = [gram(random_directions(each)).abs().cpu().numpy() for each in bases]
    captions = [f"layer {number}" for number in range(1, len(bases) + 1)]
    return Panel(
        "subspaces",
        "Cosines between the columns of each layer's subspaces",
        "In |[U_1 … U_K]ᵀ[U_1 … U_K]| with columns of length one, the blocks off the diagonal are nearly dark, and "
        "darker in later layers: the learned subspaces are approximately incoherent (4.2).",
        f"{K} {'heads' if K > 1 else 'head'} of {p} columns in {d} dimensions, so K·p = {K * p} "
        f"{'fits' if K * p <= d else 'does not fit'} into d. {coherence}The figure shows {min(DIRECTIONS, p)} random "
        "columns of each head.",
        partial(draw_grid, pictures=pictures, captions=captions, scale="|cosine|", vmin=0, vmax=1, cmap="viridis"),
        findings=findings,
        unjudged="one head has no other to compare with" if K == 1 else "the panel on coherence has the control",
    )
