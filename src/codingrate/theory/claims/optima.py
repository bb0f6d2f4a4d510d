"""A claim about the optima of the objective, over tokens and subspaces (paper 1.2, 2.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from codingrate import objective as ob

from . import figures as fig
from . import reference
from .frame import Finding, Trial, claim, judge

EPS, WEIGHT = 0.5, 0.1  # ε and λ


def ascend(bases: Tensor, n: int, generator: torch.Generator, steps: int, *, learned: bool) -> tuple[Tensor, Tensor]:
    """Maximize ΔR − λ‖Z‖₁ by Adam over unit-norm tokens (n, d) from random ones, and over U_k (K, d, p) if `learned`.

    Learned bases stay orthonormal for each k by a QR decomposition. The step falls linearly to 0.
    """
    free = torch.randn(n, bases.shape[1], generator=generator, dtype=torch.float64).requires_grad_()
    frames = bases.clone().requires_grad_(learned)
    optimizer = torch.optim.Adam([free, frames] if learned else [free], lr=0.05)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        current = torch.linalg.qr(frames)[0] if learned else bases
        optimizer.zero_grad()
        (-ob.sparse_rate_reduction(normalize(free, dim=-1), current, EPS, WEIGHT)).backward()
        optimizer.step()
        decay.step()
    return normalize(free.detach(), dim=-1), torch.linalg.qr(frames.detach())[0] if learned else bases


def value(z: Tensor, bases: Tensor) -> float:
    """Return ΔR − λ‖Z‖₁, written out densely."""
    return float(reference.rate(z, EPS) - reference.compression(z, bases, EPS) - WEIGHT * z.abs().sum())


@claim(section="2.1", equation="fig:sparse_rr_optima", expected="fails as stated, true in another form")
def objective_optima(trial: Trial) -> Finding:
    """The optima of the sparse rate reduction are tokens on incoherent subspaces along the axes, with np non-zeros.

    The objective ΔR − λ‖Z‖₁ is maximized from random tokens of unit norm and random U_k, orthonormal for each k. As
    stated the subspaces must end incoherent (‖U_k*U_l‖ < ½), every token with 90 % of its energy on one of them, and
    0.8 … 1.2 of np entries above 10⁻².

    Nothing in the objective keeps U near the tokens. If all U_k are one subspace and the tokens are outside, R^c is 0,
    and one-hot tokens spread evenly over the other d − p axes have ½(d − p) log(1 + d/((d − p)ε²)) − λn. If subspaces
    are kept orthogonal with Kp = d, ΔR ≤ ½d log((1 + ε⁻²)/(1 + ε⁻²/K)) for unit-norm tokens, because R and R^c depend
    on the second moments ZZ* only and the difference is concave in their eigenvalues; and ‖Z‖₁ ≥ n. Both bounds are
    attained by one-hot tokens spread evenly, with n non-zeros and not np. The other form: ascent over U too ends with
    one subspace without tokens (coherence above 0.9, energy on it below 0.1) and a higher value than any tokens on
    orthogonal subspaces can have. With U on the axes it ends within 3 % of d log(…)/2 and of ‖Z‖₁ = n, with 90 % of the
    energy of each token on one subspace. Values are computed densely.

    Mutations: R = 0; R^c = 0; R^c halved.
    """
    generator, K, p = trial.generator(), 3, 4
    d, n, steps = K * p, 2 * K * p, trial.choose(300, 600)
    bound = d / 2 * math.log((1 + EPS**-2) / (1 + EPS**-2 / K))
    axes = torch.eye(d, dtype=torch.float64).view(d, K, p).transpose(0, 1)
    stated, form, rows = True, True, []
    for _ in range(trial.choose(2, 5)):
        random = ob.random_bases(K, d, p, "incoherent", generator, torch.float64)
        z, bases = ascend(random, n, generator, steps, learned=True)
        overlap = torch.linalg.matrix_norm(torch.einsum("kdp,ldq->klpq", bases, bases), 2).triu(1)
        coherence, own = float(overlap.max()), float((z @ bases).square().sum(-1).max(0).values.mean())
        entries = float((z.abs() > 1e-2).sum()) / n
        stated = stated and coherence < 0.5 and own > 0.9 and 0.8 < entries / p < 1.2
        on_axes, _ = ascend(axes, n, generator, steps, learned=False)
        energy = float((on_axes @ axes).square().sum(-1).max(0).values.mean())
        reached = (value(on_axes, axes) + WEIGHT * float(on_axes.abs().sum())) / bound
        length = float(on_axes.abs().sum()) / n
        form = form and coherence > 0.9 and own < 0.1 and value(z, bases) > bound - WEIGHT * n
        form = form and energy > 0.9 and 0.97 <= reached <= 1 + 1e-9 and 1 - 1e-9 <= length <= 1.03
        rows.append((coherence, own, value(z, bases), reached, length, energy, float((on_axes.abs() > 1e-2).sum()) / n))
    coherence, own, best, reached, length, energy, entries = torch.tensor(rows).mean(0).tolist()
    return Finding(
        f"coherence < ½, energy on one subspace > 0.9, {p} non-zeros in a token; or one subspace without tokens, and "
        "1 non-zero if U is on the axes",
        f"U learned: coherence {coherence:.2f}, energy on it {own:.2f}, value {best:.2f} (on orthogonal subspaces at "
        f"most {bound - WEIGHT * n:.2f}); U on the axes: ΔR {reached:.3f} of its bound, ‖Z‖₁ {length:.3f} n, "
        f"{entries:.1f} non-zeros in a token, energy on one subspace {energy:.2f}",
        judge(stated, form=form),
        "with U kept orthogonal and on the axes, tokens end on one subspace each, and on one axis rather than p; "
        "without a term that keeps U near the tokens they avoid it",
        {"coherence": coherence, "own": own, "value": best, "reached": reached, "length": length, "energy": energy},
        fig.figure(
            fig.lines(
                ("|Z| in ascending order, U on the axes", "entry", "size"),
                (range(n * d), on_axes.abs().flatten().sort().values, None),
                scale="plot",
                style="-",
            )
        ),
    )
