"""Mutants of the objective: rates, gradients, the signal model, sparsity."""

from .mutant import mutants

MUTANTS = [
    *mutants(
        "objective/rates.py",
        "tests/objective",
        {
            "return dim / (n * float(eps) ** 2)": "return dim / (n * float(eps))",
            "return coding_rate(z, eps) - subspace": "return coding_rate(z, eps) + subspace",
            "eps) - weight * NORMS[norm](z)": "eps) + weight * NORMS[norm](z)",
            "(rates * counts[..., 0] / n).sum(-1) if weighted": "(rates / n).sum(-1) if weighted",
            "scale = rate_scale(1, d, eps)": "scale = rate_scale(n, d, eps)",
            "counts = pi.sum(-1, keepdim=True)": "counts = pi.amax(-1, keepdim=True)",
            "codes = beta * (w - beta": "codes = beta * (w + beta",
            "- beta**2 * ssa": "- beta * ssa",
            "9 * alpha / 4": "7 * alpha / 4",
            "gradient + beta * z if": "gradient + z if",
            "(half @ z.mT + gradient": "(half @ z.mT - gradient",
            "(z.mT @ half + direction.mT": "(z.mT @ half - direction.mT",
            "if n < d and not pi.requires_grad:": "if n < d:",
            "(w, w, w, scale=1.0)": "(w, w, w)",
            "log_size[..., None] + log_norms": "log_size[..., None] - log_norms",
        },
    ),
    *mutants(
        "objective/signal.py",
        "tests/objective",
        {
            "dim2=-1) < 0, -1.0, 1.0)": "dim2=-1) > 0, -1.0, 1.0)",
            "TokenSample(clean + sigma * noise": "TokenSample(clean + sigma**2 * noise",
            "(overlaps * (1 - torch.eye": "(overlaps * (0 + torch.eye",
            "labels = torch.randint(count,": "labels = torch.randint(1,",
            "matrix_norm(gram - eye)": "matrix_norm(gram + eye)",
        },
    ),
    *mutants(
        "objective/sparsity.py",
        "tests/objective",
        {
            "(size - tau).sign().clamp(max=0)": "((size - tau).sign() - 1).clamp(min=-1)",
            "(z != 0).sum(dim).to(z.dtype) + _not_finite(z, dim)": "(z != 0).sum(dim).to(z.dtype)",
            "squares.where(squares > rounding, 0).sqrt()": "squares.where(squares > rounding, 0)",
            "sigma[..., -1] != 0, 0)": "sigma[..., -1] != 0, 1)",
            "return check_overflow(z.abs().sum(dim), z)": "return check_overflow(z.sum(dim), z)",
        },
    ),
    *mutants(
        "objective/_tensors.py",
        "tests/objective",
        {
            "unit * 10.0**step": "unit * 0.0",
            "cross, alpha=-1)": "cross, alpha=1)",
            "2 * (log_size[..., None] + sigma": "(log_size[..., None] + sigma",
            "(exponents.sigmoid() /": "(exponents.tanh() /",
            "softplus(exponents).where(large, 0)": "softplus(exponents).where(large, 1)",
        },
    ),
]
