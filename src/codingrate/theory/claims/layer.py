"""Claims about the layer as it is built, Z + MSSA(Z | U): does it compress, and does it denoise (paper 2.5, 3.3)?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codingrate.objective import random_bases, sample_tokens, subspace_coding_rate

from ..unrolled import mssa, unit
from . import _figures as fig
from .frame import Finding, Trial, claim
from .operators import near_subspaces

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@claim(section="2.5", equation="eq:encoder_layer", expected="holds in range")
def residual_layer(trial: Trial) -> Finding:
    """The layer's Z^{ℓ+½} = Z^ℓ + MSSA(Z^ℓ | U) compresses: R^c(Z^{ℓ+½} | U) < R^c(Z^ℓ | U).

    The derivation has (1 − κβ)Z + κβ MSSA; the layer drops the shrinkage, so tokens grow. R^c must fall: as it stands,
    and with tokens at unit norm before and after, as LayerNorm keeps them. The claim holds if both do in every draw,
    and in a range if the second does.
    """
    generator = trial.generator()
    raw, kept = [], []
    for _ in range(trial.choose(3, 20)):
        bases, z = near_subspaces(generator, 4, 64, 16, 64)
        for eps in (0.1, 0.3, 0.5, 1.0, 2.0):
            before = float(subspace_coding_rate(z, bases, eps))
            after = z + mssa(z, bases, eps)
            raw.append(float(subspace_coding_rate(after, bases, eps)) / before)
            kept.append(float(subspace_coding_rate(unit(after), bases, eps)) / before)

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["R^c / R^c at the start, the same layer again, ε = 0.5"])
        for colour, name, keep in ((fig.BLUE, "unit norm kept", True), (fig.ORANGE, "as it stands", False)):
            tokens, rates = z, []
            for _ in range(9):
                rates.append(float(subspace_coding_rate(tokens, bases, 0.5)))
                tokens = tokens + mssa(tokens, bases, 0.5)
                tokens = unit(tokens) if keep else tokens
            axes.plot([rate / rates[0] for rate in rates], "o-", color=colour, markersize=4, label=name)
        fig.name(axes, "layers", "")

    return Finding(
        "R^c falls",
        f"× {min(raw):.3f} … {max(raw):.3f} as it stands, × {min(kept):.3f} … {max(kept):.4f} at unit norm",
        "fails" if max(kept) >= 1 else "holds" if max(raw) < 1 else "holds in range",
        "with tokens brought back to unit norm; as it stands the layer raises R^c"
        if max(kept) < 1
        else "R^c rises even at unit norm",
        {"raw_least": min(raw), "raw_most": max(raw), "unit_least": min(kept), "unit_most": max(kept)},
        draw,
    )


def off_share(z: Tensor, bases: Tensor, labels: Tensor) -> float:
    """Root mean square share of the norm of tokens (n, d) that lies outside their own subspaces."""
    own = bases[labels]
    inside = torch.linalg.norm((own.mT @ unit(z).unsqueeze(-1)).squeeze(-1), dim=-1)
    return float((1 - inside.square()).mean().sqrt())


@claim(section="3.3", equation="eq:compression_structured_denoising", expected="holds in range")
def layer_denoises(trial: Trial) -> Finding:
    """Z^{ℓ+½} = Z^ℓ + MSSA(Z^ℓ | U) is a step of structured denoising: it brings tokens nearer to their subspaces.

    The share of tokens outside their own subspaces must fall, at β = 1 and every norm of the tokens. By
    softmax-membership a head keeps its own tokens better than what strays into it once e^q > K with q = ‖z‖⁴/2p, norms
    above (2p log K)^¼ = 2.6 here; so a range is accepted if the share falls there. It must have an upper end too:
    long tokens make the softmax choose one token of the wrong subspace. Equal layers are also repeated eight times.
    """
    generator, K, p, n = trial.generator(), 4, 16, 64
    norms, eps = (0.5, 1.0, 2.0, 2.6, 3.0, 4.0, 6.0, 8.0), math.sqrt(p / n)
    once, again = [], []
    for _ in range(trial.choose(3, 20)):
        bases = random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
        sample = sample_tokens(bases, n, 0.1, generator)
        shares = []
        for norm in norms:
            z = norm * unit(sample.tokens)
            shares.append(off_share(z + mssa(z, bases, eps), bases, sample.labels))
        start = off_share(sample.tokens, bases, sample.labels)
        once.append([share / start for share in shares])
        path, z = [1.0], 3 * unit(sample.tokens)
        for _ in range(8):
            z = 3 * unit(z + mssa(z, bases, eps))
            path.append(off_share(z, bases, sample.labels) / start)
        again.append(path)
    mean, repeated = (torch.tensor(rows).mean(0).tolist() for rows in (once, again))
    good = [norm for norm, value in zip(norms, mean, strict=True) if value < 1]
    inside = {2.6, 3.0} <= set(good)

    def draw(figure: Figure) -> None:
        left, right = fig.panels(figure, ["one layer", "equal layers, norm 3 kept"])
        left.semilogx(norms, mean, "o-", color=fig.BLUE, markersize=4)
        left.axvline((2 * p * math.log(K)) ** 0.25, color=fig.GREY, linewidth=0.8, linestyle="--")
        right.plot(repeated, "o-", color=fig.BLUE, markersize=4)
        for axes, name in ((left, "norm of the tokens"), (right, "layers")):
            axes.axhline(1, color=fig.GREY, linewidth=0.8)
            fig.name(axes, name, "share outside, after / before")

    return Finding(
        "share outside its subspace × less than 1",
        f"× {min(mean):.2f} at norm {norms[mean.index(min(mean))]:g}, × {mean[1]:.2f} at norm 1, × {mean[-1]:.2f} at "
        f"norm {norms[-1]:g}; × {repeated[-1]:.1f} after 8 equal layers",
        ("holds" if len(good) == len(norms) else "holds in range") if inside else "fails",
        f"norms {min(good):g} … {max(good):g}, a layer or two; then tokens gather on few directions"
        if inside
        else "tokens leave their subspaces",
        {f"share_{norm:g}": value for norm, value in zip(norms, mean, strict=True)} | {"repeated": repeated[-1]},
        draw,
    )
