"""Claims about denoising: the mixture's score, Tweedie's formula, and the attention form (paper 3.1, B.2)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad

from codingrate.objective import random_bases

from ..denoising import SubspaceMixture, attention_denoise, codes, project_nearest
from . import reference
from .frame import EXACT, Finding, Trial, claim, critical, judge, power_law, tabulate, z_scores


def mixture(generator: torch.Generator, K: int = 3, d: int = 7, p: int = 2) -> SubspaceMixture:
    """Draw subspaces in general position (not orthogonal), with Λ = diag(1, ½, ⅓, …)."""
    bases = random_bases(K, d, p, "incoherent", generator, torch.float64)
    return SubspaceMixture(bases, 1 / torch.arange(1, p + 1, dtype=torch.float64))


def automatic_score(model: SubspaceMixture, z: Tensor, sigma: float) -> Tensor:
    """Return ∇ log q(z) by automatic differentiation, (n, d) → (n, d)."""
    return grad(lambda z: model.log_density(z, sigma).sum())(z)


@claim(section="B.2", equation="thm:score_multi_subspaces")
def score_closed_form(trial: Trial) -> Finding:
    """∇ log q(z) = −Σ_k softmax(−½‖M_k*z‖²)_k M_k M_k*z with M_k = (Σ_k + σ²I)^{-1/2}.

    It is an identity. The right side is formed as the paper writes it, from eigendecompositions of the dense
    covariances Σ_k + σ²I. The score of the code and automatic differentiation of its log q must both equal it up to
    rounding, √ε of float64 = 1.5e-8 of the score's norm, at noise far above, near and far below the signal.

    Mutations: score = 0; affinity halved; log q × 0.9; Wiener factor 1.
    """
    generator, worst = trial.generator(), 0.0
    model = mixture(generator)
    for sigma in (10.0, 1.0, 0.1, 0.01):
        z = model.sample(trial.choose(200, 5000), sigma, generator).tokens
        truth = reference.mixture_score(z, model.bases, model.variances, sigma)
        for score in (model.score(z, sigma), automatic_score(model, z, sigma)):
            error = torch.linalg.norm(score - truth, dim=-1) / torch.linalg.norm(truth, dim=-1)
            worst = max(worst, float(error.max()))
    return Finding(
        "score and autograd of log q equal the dense form, relative error < 1.5e-8",
        f"largest relative error {worst:.1e}, σ = 0.01 … 10",
        judge(worst < EXACT),
        numbers={"worst_relative_error": worst},
    )


@claim(section="3.1", equation="eq:tweedie")
def tweedie(trial: Trial) -> Finding:
    """E[z♮ | z] = z + σ² ∇ log q(z).

    The left side is a Monte Carlo average without any closed form: signals drawn from the model, weighted by the
    likelihood exp(−‖z − z♮‖²/2σ²) of the observation. The right side comes from automatic differentiation of log q.
    Every coordinate of every z gives a z-score; all must lie within the Bonferroni limit at 0.1 %.

    Mutations: log q = 0; log q × 0.9; affinity halved.
    """
    generator, sigma = trial.generator(), 0.5
    model = mixture(generator, d=5)
    z = model.sample(20, sigma, generator).tokens
    right = z + sigma**2 * automatic_score(model, z, sigma)
    signal = model.sample(trial.choose(100_000, 500_000), generator=generator).clean
    weights = (-torch.cdist(z, signal).square() / (2 * sigma**2)).softmax(-1)  # (20, draws)
    left = weights @ signal
    # Standard error of a self-normalized mean: √Σ w²(x − mean)².
    squares = weights.square()
    spread = squares @ signal.square() - 2 * left * (squares @ signal) + left.square() * squares.sum(-1, keepdim=True)
    scores = (left - right) / spread.clamp_min(0).sqrt()
    limit, worst = critical(scores.numel()), float(scores.abs().max())
    moved = float(torch.linalg.norm(right - z, dim=-1).mean())
    error = float(torch.linalg.norm(left - right, dim=-1).mean())
    return Finding(
        f"{scores.numel()} z-scores all below {limit:.2f}",
        f"largest {worst:.2f}; the sides differ by {error:.4f} where the denoiser moves by {moved:.2f}",
        judge(worst < limit),
        numbers={"worst_z": worst, "limit_z": limit, "mean_error": error, "mean_move": moved},
    )


@claim(section="3.1", equation="eq:tweedie")
def denoiser_minimises_error(trial: Trial) -> Finding:
    """In the mean-square sense the optimal estimate is D(z) = E[z♮ | z].

    Then E‖f(z) − z♮‖² = E‖D(z) − z♮‖² + E‖f(z) − D(z)‖² for every other estimate f, that is E⟨f − D, z♮ − D⟩ = 0. The
    test takes no denoising, the attention form, the nearest projection, the best linear map, D scaled and D perturbed.
    All cross terms must vanish within the Bonferroni limit at 0.1 %, and every other estimate must have a larger error.

    Mutations: denoiser = 0; denoiser = identity; Wiener factor 1.
    """
    generator, sigma = trial.generator(), 0.5
    model = mixture(generator)
    sample = model.sample(trial.choose(20_000, 500_000), sigma, generator)
    z, best = sample.tokens, model.denoise(sample.tokens, sigma)
    rivals = {
        "none": z,
        "attention": attention_denoise(z, model.bases, sigma),
        "projection": project_nearest(z, model.bases),
        "linear": z @ torch.linalg.solve(model.covariance(sigma), model.covariance()),
        "scaled": 0.9 * best,
        "bent": best + 0.1 * z.sin(),
    }
    cross = torch.stack([((rival - best) * (sample.clean - best)).sum(-1) for rival in rivals.values()], dim=-1)
    limit, worst = critical(len(rivals)), float(z_scores(cross).abs().max())
    least = float((best - sample.clean).square().sum(-1).mean())
    errors = {name: float((rival - sample.clean).square().sum(-1).mean()) for name, rival in rivals.items()}
    nearest = min(errors, key=errors.__getitem__)
    return Finding(
        f"smallest error of all; {len(rivals)} cross terms with |z| below {limit:.2f}",
        f"error {least:.3f}, next best {errors[nearest]:.3f} ({nearest}); largest |z| {worst:.2f}",
        judge(worst < limit and least < errors[nearest]),
        numbers={"worst_z": worst, "error": least} | {f"error_{name}": value for name, value in errors.items()},
    )


def near_zero(model: SubspaceMixture, sigma: float, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw noisy tokens (n, d) with importance weights (n,), half of them with codes of size σ.

    Only tokens with α as small as the noise are ambiguous, and plain sampling would draw one in σ^{-p}. The weights
    are those of the balance heuristic for the proposal ½N(0, I) + ½N(0, c²I) of the codes, c = 4σ.
    """
    p, c = model.bases.shape[-1], min(1.0, 4 * sigma)
    sample = model.sample(n, 1.0, generator)
    shrink = torch.where(torch.arange(n) % 2 == 0, 1.0, c).to(sample.clean.dtype).unsqueeze(-1)
    squared = (sample.codes * shrink).square().sum(-1)
    narrow = (1 - c**-2) / 2 * squared - p * math.log(c)  # log N(α; 0, c²I)/N(α; 0, I)
    weights = 2 / (1 + narrow.exp())
    return sample.clean * shrink + sigma * (sample.tokens - sample.clean), weights


SIGMAS = (0.05, 0.03, 0.02, 0.01, 0.005)


def error_by_noise(
    trial: Trial, squared_error: Callable[[SubspaceMixture, Tensor, float], Tensor]
) -> list[tuple[int, SubspaceMixture, list[float]]]:
    """Measure a root mean square error at every σ for p = 1, 2, 3; return p, the model and the errors.

    squared_error(model, z, sigma) maps tokens (n, d) to (n,). All σ use the same draws.
    """
    generator, results = trial.generator(), []

    def error(model: SubspaceMixture, sigma: float, state: Tensor) -> float:
        z, weights = near_zero(model, sigma, trial.choose(10_000, 100_000), generator.set_state(state))
        return float((weights * squared_error(model, z, sigma)).mean().sqrt())

    for p in (1, 2, 3):
        model = mixture(generator, d=31, p=p)
        state = generator.get_state()
        results.append((p, model, [error(model, sigma, state) for sigma in SIGMAS]))
    return results


@claim(section="B.2", equation="eq:mog-score-as-attention, thm:opt_denoiser_multi_subspaces")
def attention_order(trial: Trial) -> Finding:
    """E[z♮ | z] ≈ Σ_k softmax(‖U_k*z‖²/2σ²)_k U_k U_k*z, asymptotically as σ → 0.

    The paper gives no order. With s = Λ/(Λ + σ²) = 1 − σ²/Λ + …, the value has an error of σ²Λ⁻¹α. The softmax has a
    relative error of σ² where it is undecided (‖α‖ of size σ). So the root mean square error is σ²√(Σ_j 1/λ_j) for
    every p. The statement is about the limit, so slope and constant are tested. The next terms are a relative σ²/λ_min,
    at most 0.0075 here, and a mean over 10,000 tokens is known to about 1 %, so they must agree to 0.05, five times as
    much. (Away from the limit, at σ² = λ, the value is already twice too long.)

    Mutations: attention form = 0; attention form at σ√2; denoiser = 0.
    """

    def squared_error(model: SubspaceMixture, z: Tensor, sigma: float) -> Tensor:
        return (attention_denoise(z, model.bases, sigma) - model.denoise(z, sigma)).square().sum(-1)

    results = []
    for p, model, errors in error_by_noise(trial, squared_error):
        constant = math.sqrt(float((1 / model.variances).sum()))
        ratio = errors[-1] / (constant * SIGMAS[-1] ** 2)
        results.append((p, errors, constant, power_law(SIGMAS, errors).exponent, ratio))
    return Finding(
        "slope 2 in σ, constant √Σ 1/λ_j, for p = 1, 2, 3",
        "; ".join(f"p = {p}: slope {slope:.3f}, constant × {ratio:.3f}" for p, _, _, slope, ratio in results),
        judge(all(abs(slope - 2) < 0.05 and abs(ratio - 1) < 0.05 for *_, slope, ratio in results)),
        "at finite σ the relative error is σ²/λ, 100 % at σ² = λ",
        {f"slope_p{p}": slope for p, *_, slope, _ in results} | {f"constant_p{p}": ratio for p, *_, ratio in results},
        {"σ": list(SIGMAS)} | {f"root mean square error, p = {p}": errors for p, errors, *_ in results},
    )


@claim(section="3.1", equation="eq:mog-score-as-attention")
def attention_projects(trial: Trial) -> Finding:
    """In the small-noise limit σ → 0 the attention form becomes the projection of z onto the nearest subspace.

    With gap_k = ‖U_*z‖² − ‖U_k*z‖² to the nearest subspace *, softmax_k ≤ exp(−gap_k/2σ²). So at every z the distance
    is at most Σ_k exp(−gap_k/2σ²)‖(U_kU_k* − U_*U_**)z‖, which is exponentially small. In the mean over noisy tokens
    only those with ‖α‖ of size σ matter, a share σ^p with distance σ: root mean square order 1 + p/2. Both maps scale
    with σ, so corrections are σ²‖α/σ‖² with ‖α/σ‖ ≲ 5, at most 0.06 here. The slope must agree to 0.1.

    Mutations: attention form = 0; attention form at σ√2; nearest projection = 0.
    """
    excess = 0.0

    def squared_distance(model: SubspaceMixture, z: Tensor, sigma: float) -> Tensor:
        nonlocal excess
        difference = attention_denoise(z, model.bases, sigma) - project_nearest(z, model.bases)
        distance = torch.linalg.norm(difference, dim=-1)
        excess = max(excess, float((distance - softmax_bound(z, model.bases, sigma)).max() / sigma))
        return distance.square()

    measured = error_by_noise(trial, squared_distance)
    results = [(p, errors, power_law(SIGMAS, errors).exponent) for p, _, errors in measured]
    return Finding(
        "within the exponential bound at every z; in the mean order 1 + p/2: 1.5, 2, 2.5",
        f"above the bound by {max(excess, 0.0):.0e} σ; slopes " + ", ".join(f"{slope:.2f}" for *_, slope in results),
        judge(excess < EXACT and all(abs(slope - (1 + p / 2)) < 0.1 for p, _, slope in results)),
        numbers={"excess_over_bound": excess} | {f"slope_p{p}": slope for p, _, slope in results},
        table={"σ": list(SIGMAS)} | {f"root mean square distance, p = {p}": errors for p, errors, _ in results},
    )


def softmax_bound(z: Tensor, bases: Tensor, sigma: float) -> Tensor:
    """Return Σ_k exp(−gap_k/2σ²) ‖(U_kU_k* − U_*U_**)z‖ for z (n, d) → (n,), with * the nearest subspace."""
    w = codes(z, bases)
    energy = w.square().sum(-1)  # (n, K)
    projections = torch.einsum("nkp,kdp->nkd", w, bases)
    difference = torch.linalg.norm(projections - project_nearest(z, bases).unsqueeze(-2), dim=-1)
    return (difference * ((energy - energy.amax(-1, keepdim=True)) / (2 * sigma**2)).exp()).sum(-1)


@claim(section="3.1", equation="eq:tweedie")
def one_step_denoising(trial: Trial) -> Finding:
    """One step z + σ²∇log q(z) brings the observation closer to its signal, up to statistical limits.

    The limit: an oracle that knows the subspace still has an error of Σ_j λ_jσ²/(λ_j + σ²). So the remaining error, as
    a share of the noise dσ², is at least that on average (up to a chance of 0.1 %) and tends to p/d as σ → 0. Below
    σ = 0.02 ambiguous tokens add a share of order σ^p, 0.0004, so p/d must lie within the error bar there.

    Mutations: denoiser = 0; denoiser = identity.
    """
    generator, d, p = trial.generator(), 7, 2
    model = mixture(generator, d=d, p=p)

    def measure(sigma: float) -> dict[str, float]:
        sample = model.sample(trial.choose(10_000, 200_000), sigma, generator)
        error, before = (
            (z - sample.clean).square().sum(-1) for z in (model.denoise(sample.tokens, sigma), sample.tokens)
        )
        oracle = float((model.variances / (model.variances + sigma**2)).sum()) / d
        above, off = (float(z_scores((error / (d * sigma**2)).unsqueeze(-1), share)) for share in (oracle, p / d))
        left, nearer = float(error.mean()) / (d * sigma**2), float((error < before).double().mean())
        return {"σ": sigma, "left": left, "oracle": oracle, "above": above, "off": off, "nearer": nearer}

    table = tabulate(map(measure, (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02)))
    sigmas, left, oracle, above, off, nearer = table.values()
    limit = critical(len(sigmas) + 1)
    return Finding(
        f"less noise at every σ, never below the oracle, p/d = {p / d:.4f} as σ → 0",
        f"{left[0]:.3f} at σ = 2, {left[-1]:.4f} at σ = 0.02, where {nearer[-1]:.2%} of tokens are closer",
        judge(max(left) < 1 and all(score > -limit for score in above) and abs(off[-1]) < limit),
        numbers={f"left_{s}": value for s, value in zip(sigmas, left, strict=True)} | {"nearer": nearer[-1]},
        table={"σ": sigmas, "share of the noise left": left, "with a known subspace": oracle},
    )
