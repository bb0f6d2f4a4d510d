"""Claims about diffusion: the mixture's reversal and probability flow, and ∇R^c as score (paper 3.1, 3.2, B.1, B.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from scipy.special import wrightomega
from torch import Tensor

from codingrate.objective import TokenSample, random_bases, subspace_coding_rate_gradient

from ..denoising import SubspaceMixture, codes, nearest_subspace, off_subspace
from ..diffusion import VarianceExploding, geometric_times, sliced_wasserstein, structured_solution
from .denoising import mixture
from .frame import Finding, Trial, claim, cosine, covariance_scores, critical, judge, power_law, tabulate, z_scores

LAST, FIRST = 1.0, 1e-4  # T and t_1: noise as large as the signal, and a hundredth of it


def times(kappa: float) -> Tensor:
    """Return the paper's geometric grid from T down to t_1, with the ratio closest to 1 + 2κ that fits."""
    steps = round(math.log(LAST / FIRST) / math.log1p(2 * kappa))
    ratio = (FIRST / LAST) ** (1 / steps)
    return geometric_times(LAST, (ratio - 1) / 2, steps + 1)


def in_parts(process: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Apply a process to points (n, d) in parts of some thousands, because it stores its whole path."""
    return torch.cat([process(part) for part in start.split(5_000)], dim=-2)


def data_scores(model: SubspaceMixture, points: Tensor) -> Tensor:
    """Return z-scores of all second moments of the data: share and code variances of each subspace, and E zz*.

    points (n, d) lie on the subspaces. The subspace of a token is the nearest one; given it, E(U_k*z)² = Λ.
    """
    K, label, squares = len(model.bases), nearest_subspace(points, model.bases), codes(points, model.bases).square()
    shares = z_scores(torch.nn.functional.one_hot(label, K).to(points.dtype), 1 / K)
    variances = [z_scores(squares[label == k, k], model.variances) for k in range(K)]
    return torch.cat([shares, *variances, covariance_scores(points, model.covariance())])


def compare_distributions(
    model: SubspaceMixture, points: Tensor, sigma: float, scores: Tensor, generator: torch.Generator
) -> Finding:
    """Compare points (n, d) with the model at noise σ by z-scores of their moments and sliced Wasserstein distance.

    The limit of the distance is the mean distance of two samples of the model plus five standard deviations.
    """

    def sample() -> Tensor:
        return model.sample(len(points), sigma, generator).tokens

    between = torch.tensor([sliced_wasserstein(sample(), sample(), 32, generator) for _ in range(10)])
    distance = sum(sliced_wasserstein(points, sample(), 32, generator) for _ in range(4)) / 4
    mean, deviation = float(between.mean()), float(between.std())
    limit, worst = critical(scores.numel()), float(scores.abs().max())
    return Finding(
        f"{scores.numel()} moments with |z| < {limit:.2f}; sliced W₂ of two samples, {mean:.3f} ± {deviation:.3f}",
        f"largest |z| {worst:.2f}; sliced W₂ {distance:.3f}",
        judge(worst < limit and distance < mean + 5 * deviation),
        numbers={"worst_z": worst, "limit_z": limit, "sliced_w2": distance, "sliced_w2_of_samples": mean},
    )


def judge_samples(trial: Trial, count: int, kappa: float, stochastic: bool) -> Finding:
    """Run the reverse SDE or the flow from q_T to t_1, take one last step of Tweedie, and compare with the data."""
    generator = trial.generator()
    model = mixture(generator, d=5)
    start = model.sample(count, math.sqrt(LAST), generator).tokens
    grid, process = times(kappa), VarianceExploding(model)

    def run(part: Tensor) -> Tensor:
        return (process.reverse(part, grid, generator) if stochastic else process.flow(part, grid))[-1]

    points = model.denoise(in_parts(run, start), math.sqrt(FIRST))
    return compare_distributions(model, points, 0.0, data_scores(model, points), trial.generator())


@claim(section="3.1", equation="eq:ve-bwd-decoder")
def reverse_sde(trial: Trial) -> Finding:
    """dz = ∇log q_{T−t}(z) dt + dw, started from z_T ~ q_T, reverses the diffusion and ends in the distribution of z♮.

    It starts at noise as large as the signal (T = 1). The result is compared with the data by every second moment and
    by sliced Wasserstein distance. The statement is exact, so the limits are those of sampling: Bonferroni at 0.1 % for
    the moments, mean plus five standard deviations of the distance between two samples. κ is chosen so that the bias of
    Euler-Maruyama, at most 0.43κ of a variance, is below a fifth of the standard error.

    Mutations: score = 0; score halved; score with the wrong sign.
    """
    return judge_samples(trial, *trial.choose((5_000, 0.015), (30_000, 0.006)), stochastic=True)


@claim(section="3.1", equation="eq:ve-bwd-decoder-pfode")
def probability_flow(trial: Trial) -> Finding:
    """dz = ½∇log q_{T−t}(z) dt, started from z_T ~ q_T, ends in the distribution of z♮ without adding noise.

    Test and limits are those of the stochastic process. Heun's method with κ = 0.05 is exact for the noise off the
    subspaces and has an error below 0.1 % on the rest.

    Mutations: denoiser = identity; Wiener factor 1.
    """
    return judge_samples(trial, trial.choose(4_000, 40_000), 0.05, stochastic=False)


@claim(section="B.1", equation="eq:ve-fwd-decoder, eq:general_diffusion_ode", expected="holds in a stated range")
def forward_marginals(trial: Trial) -> Finding:
    """The deterministic dz̄ = −½∇log q_t dt and the diffusion dz = dw, both from z(0) ~ P, agree in law at every t.

    The test compares all of E zz* = Σ̄ + tI at four times, and the sliced Wasserstein distance to the diffusion, with
    the limits of sampling (Bonferroni at 0.1 %, five standard deviations). From t_1 > 0 on this must hold. At t = 0 the
    distribution lies on the subspaces and has no density (the paper's A2 asks for one at t > 0 only) and no score. If a
    flow started there gets less than half of the expected off-support energy, the claim holds for t_1 > 0 only, the
    range of A2.

    Mutations: denoiser = identity; denoiser = 0; Wiener factor 1.
    """
    generator = trial.generator()
    model = mixture(generator, d=5)
    process, grid = VarianceExploding(model), times(0.05).flip(0)
    sample = model.sample(trial.choose(4_000, 40_000), math.sqrt(FIRST), generator)
    marks = [len(grid) * part // 4 - 1 for part in (1, 2, 3, 4)]
    states = in_parts(lambda part: process.flow(part, grid)[marks], sample.tokens)  # (4, n, d)
    levels = [math.sqrt(float(grid[mark])) for mark in marks]
    scores = torch.cat([covariance_scores(z, model.covariance(level)) for z, level in zip(states, levels, strict=True)])
    compared = compare_distributions(model, states[-1], levels[-1], scores, generator)
    stuck = in_parts(lambda part: process.flow(part, grid)[-1], sample.clean)
    expected = (model.bases.shape[1] - model.bases.shape[2]) * LAST
    share = float(off_subspace(stuck, model.bases, sample.labels).square().sum(-1).mean()) / expected
    inside = compared.verdict == "holds"
    return replace(
        compared,
        measured=f"from t₁ = {FIRST:g}: {compared.measured}; from the support: {share:.1%} of the expected noise",
        verdict=judge(inside and share > 0.5, ranged=inside),
        reason="t₁ > 0, as A2 assumes: on the support itself the flow has no score and does not leave it",
        numbers={**compared.numbers, "share_from_support": share},
    )


def uncorrelated(
    generator: torch.Generator, sigma: float, n: int = 16, K: int = 4, p: int = 32
) -> tuple[SubspaceMixture, TokenSample]:
    """Draw B.3's model (default n = d/8): orthogonal subspaces that fill R^d, α ~ N(0, I/p), noise N(0, σ²I/d)."""
    bases = random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    model = SubspaceMixture(bases, 1 / p)
    return model, model.sample(n, sigma / math.sqrt(K * p), generator)


def precision(beta: float, z: Tensor, bases: Tensor) -> float:
    """Return the ε of β = p/(nε²)."""
    return math.sqrt(bases.shape[-1] / (z.shape[-2] * beta))


@claim(section="3.2", equation="thm:informal_rate_score", expected="fails as stated, true in another form")
def compression_as_score(trial: Trial) -> Finding:
    """At low noise the negative compression gradient −∇R^c points from z_i to the nearest U_k, as the score does.

    By B.3, ∇R^c ≈ β P(Δ) + X♮/(1 + 1/β). Of the noise off the token's subspace, P keeps the part outside the images of
    other tokens, a share φ = 1 − n/d. So its cosine with the score is φ/√(φ + 1/((1 + β)σ')²) with σ'² = σ²(1 − 1/K).
    "Points to" is read as an angle below 45°, a cosine above √½. The theorem assumes C₁βσ ≤ ½; the claim holds if −∇R^c
    passes there. The other form is its part off the token's own subspace, which has a cosine of √φ with the score at
    every βσ. The mean over draws must be that, and the predicted cosine of the whole. The main term leaves out terms of
    relative order n/d; we allow half of that, n/2d, a choice that is not derived. The sizes, K = 4, p = 32 and n = 16
    or CRATE-Base's, are outside of the theorem's assumption, which no size that can be drawn quickly satisfies.

    Mutations: ∇R^c = 0; ∇R^c with the wrong sign; ∇R^c replaced by βZ.
    """
    generator, sigma, strengths = trial.generator(), 0.03, (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # strengths: βσ
    repetitions, (n, K, p) = trial.choose((8, (16, 4, 32)), (4, (196, 12, 64)))  # full: the paper's Base model
    cosines = torch.zeros(2, len(strengths), dtype=torch.float64)
    for _ in range(repetitions):
        model, sample = uncorrelated(generator, sigma, n, K, p)
        score = model.score(sample.tokens, sigma / math.sqrt(K * p))
        for at, strength in enumerate(strengths):
            eps = precision(strength / sigma, sample.tokens, model.bases)
            step = -subspace_coding_rate_gradient(sample.tokens, model.bases, eps)
            part = off_subspace(step, model.bases, sample.labels)
            cosines[:, at] += torch.tensor([cosine(step, score), cosine(part, score)]) / repetitions
    whole, across = cosines.tolist()
    phi, off = 1 - n / (K * p), sigma * math.sqrt(1 - 1 / K)
    predicted = [phi / math.sqrt(phi + ((1 + strength / sigma) * off) ** -2) for strength in strengths]
    passed = [s for s, value in zip(strengths, whole, strict=True) if value > math.sqrt(0.5)]
    gaps = [abs(a - b) for a, b in zip(whole, predicted, strict=True)] + [abs(a - math.sqrt(phi)) for a in across]
    other = all(gap <= n / (2 * K * p) for gap in gaps) and min(across) > math.sqrt(0.5)
    return Finding(
        f"cosine above 0.71 at βσ ≤ ½; by B.3's main term {predicted[0]:.2f} … {predicted[-1]:.2f} of the whole, "
        f"{math.sqrt(phi):.2f} off the token's subspace",
        f"βσ = {strengths[0]}: {whole[0]:.2f}, ½: {whole[2]:.2f}, {strengths[-1]:.0f}: {whole[-1]:.2f}; "
        f"off its own subspace {min(across):.2f} … {max(across):.2f}",
        judge(other and len(passed) == len(strengths), form=other),
        "the part of −∇R^c off the token's own subspace points to the nearest U_k; the whole points to 0 where the "
        f"theorem applies, and to the nearest U_k from βσ = {min(passed, default=math.inf):g}",
        {f"cosine_{s:g}": value for s, value in zip(strengths, whole, strict=True)}
        | {"worst_gap_to_prediction": max(gaps)},
        {"βσ": list(strengths), "cosine with the score": whole, "predicted": predicted, "off its own subspace": across},
    )


@claim(section="3.2", equation="eq:compression_ode", expected="fails as stated, true in another form")
def structured_limit(trial: Trial) -> Finding:
    """dZ = −∇R^c(Z)/2(T−t) dt carries noisy tokens to the signal model as t → T.

    In u = log T/(T−t) the ODE is −½∇R^c. It changes a singular value s of U_k*Z by y + log y = const − βu, y = βs²:
    noise (y ≪ 1) loses its energy as e^{−βu}, while signal (s ≈ 1, y = β) loses only 1 of s² per unit u. At
    u₀ = log(100)/β the noise off the tokens' subspaces must be reduced to the share in the images of other tokens, n/d,
    plus 1 %, within three standard deviations √(2(n/d)/(n(d−p))). The signal must keep the share
    ω(β + log β − log 100)/β, within the effect of three standard deviations √(2/np) of the mean s². That is the other
    form. As stated, the limit is u → ∞, and more than half of the signal must be left there.

    Mutations: structured solution = Z; structured solution = 0; β halved in the structured solution.
    """
    n, K, p = trial.choose((16, 4, 32), (96, 12, 64))
    sigma, beta, d = 0.03, 100.0, K * p
    model, sample = uncorrelated(trial.generator(), sigma, n, K, p)
    eps, unit = precision(beta, sample.tokens, model.bases), math.log(100) / beta
    clocks = [unit * step for step in (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)]

    def energies(z: Tensor) -> tuple[float, float]:
        """Return the energy off the subspaces of the tokens, and that on them."""
        off = off_subspace(z, model.bases, sample.labels)
        return float(off.square().sum()), float((z - off).square().sum())

    start = energies(sample.tokens)
    moved = [energies(structured_solution(sample.tokens, model.bases, math.exp(-clock), eps)) for clock in clocks]
    noise, signal = ([energy[at] / start[at] for energy in moved] for at in (0, 1))
    limit = n / d + 0.01 + 3 * math.sqrt(2 * (n / d) / (n * (d - p)))
    kept = float(wrightomega(beta + math.log(beta) - math.log(100))) / beta
    ok = noise[3] < limit and abs(signal[3] - kept) < 3 * math.sqrt(2 / (n * p)) * (1 - kept)
    return Finding(
        f"u₀ = {unit:.3f}: noise below {limit:.3f}, signal {kept:.3f}; signal remains as u → ∞",
        f"noise {noise[3]:.3f}, signal {signal[3]:.3f}; at u = {clocks[-1]:.1f} signal {signal[-1]:.1e}",
        judge(ok and signal[-1] > 0.5, form=ok),
        "up to a time with log(100)/β ≤ u ≪ 1 the noise vanishes (but for its share n/d) and the signal remains; "
        "as t → T the signal vanishes too, to Z = 0",
        {"noise_left": noise[3], "signal_left": signal[3], "signal_predicted": kept, "signal_at_end": signal[-1]},
        {"u = log T/(T − t)": clocks, "signal left": signal, "noise left": noise},
    )


@claim(section="B.4", equation="‖∇q_t(Z_t)‖ ∝ 1/σ_t²", expected="fails as stated, true in another form")
def score_magnitude(trial: Trial) -> Finding:
    """‖∇q_t(Z_t)‖ ∝ 1/σ_t² while ∇R^c(Z_t) is of constant size, so ∇R^c/σ_t² can replace the score.

    The paper writes ∇q_t for the score ∇log q_t. Slopes in σ must agree to 0.05 (corrections are (βσ)²/2 ≤ 0.02 of ∇R^c
    and σ² of the score). The slope of the score is −2 at a fixed point off the support, where σ²∇log q tends to
    projection − z ≠ 0. But Z_t itself is only σ_t away from the support, where σ²∇log q is of size σ_t, so the slope is
    −1. As stated it must be −2 there. The other form is a slope of −2 at fixed points and of −1 at Z_t.

    Mutations: score = 0; score × σ; ∇R^c = 0.
    """
    generator, beta = trial.generator(), 10.0
    model = mixture(generator)
    sample = model.sample(trial.choose(2_000, 50_000), 1.0, generator)
    dense, tokens = uncorrelated(generator, 1.0)
    eps = precision(beta, tokens.tokens, dense.bases)

    def sizes(sigma: float) -> dict[str, float]:
        fixed, moving = ((1 - s) * sample.clean + s * sample.tokens for s in (0.5, sigma))  # clean + s · noise
        z = (1 - sigma) * tokens.clean + sigma * tokens.tokens
        rows = {
            "score at fixed z": model.score(fixed, sigma),
            "score at Z_t": model.score(moving, sigma),
            "∇R^c at Z_t": subspace_coding_rate_gradient(z, dense.bases, eps),
        }
        return {"σ_t": sigma} | {name: float(torch.linalg.norm(row, dim=-1).mean()) for name, row in rows.items()}

    table = tabulate(map(sizes, (0.02, 0.01, 0.005, 0.002, 0.001)))
    sigmas, *columns = table.values()
    at_fixed, along, constant = (power_law(sigmas, column).exponent for column in columns)
    inside = abs(at_fixed + 2) < 0.05 and abs(constant) < 0.05
    return Finding(
        "slope −2 of the score, 0 of ∇R^c",
        f"score {at_fixed:.3f} at fixed z, {along:.3f} at Z_t; ∇R^c {constant:.3f}",
        judge(inside and abs(along + 2) < 0.05, form=inside and abs(along + 1) < 0.05),
        f"the score is ∝ 1/σ_t² at fixed z off the support; at Z_t it grows only as σ^{along:.2f}",
        {"slope_fixed": at_fixed, "slope_along": along, "slope_rate": constant},
        table,
    )
