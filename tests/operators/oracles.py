"""Every operator once more, straight from its equation: loops over samples, heads and tokens, float64.

`weights` are the operator's parameters by name. Vectors of one token are columns, as in the paper.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def softmax(scores: list[Tensor]) -> list[Tensor]:
    top = max(s.item() for s in scores)
    exponentials = [torch.exp(s - top) for s in scores]
    total = sum(exponentials)
    return [e / total for e in exponentials]


def visible(t: int, n: int, causal: bool, mask: Tensor | None) -> list[int]:
    """The tokens that token t attends to; itself always."""
    return [s for s in range(n) if s == t or ((mask is None or bool(mask[s])) and (not causal or s < t))]


def head(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, mask: Tensor | None):
    """One head of one sample: outputs (n, p) and attention (n, n)."""
    n = len(query)
    rows, attention = [], torch.zeros(n, n, dtype=query.dtype)
    for t in range(n):
        seen = visible(t, n, causal, mask)
        shares = softmax([scale * (query[t] * key[s]).sum() for s in seen])
        rows.append(sum(share * value[s] for share, s in zip(shares, seen, strict=True)))
        for share, s in zip(shares, seen, strict=True):
            attention[t, s] = share.detach()
    return torch.stack(rows), attention


def rotated(x: Tensor) -> Tensor:
    """Rotary positions by complex numbers: entries i and i + p/2 of row t are multiplied by exp(i·t·10000^(-2i/p))."""
    p = x.shape[-1]
    rows = []
    for t, row in enumerate(x):
        angles = torch.tensor([t * 10000 ** (-2 * i / p) for i in range(p // 2)], dtype=x.dtype)
        turned = torch.complex(row[: p // 2], row[p // 2 :]) * torch.polar(torch.ones_like(angles), angles)
        rows.append(torch.cat([turned.real, turned.imag]))
    return torch.stack(rows)


def scored(spec, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key as the scores read them."""
    return (rotated(query), rotated(key), value) if spec.rotary else (query, key, value)


def measured(weights, w: Tensor, k: int) -> Tensor:
    """The query of head k in its metric: row t is M_kᵀ w_t."""
    return torch.stack([weights["metric"][k].T @ row for row in w]) if "metric" in weights else w


def block(matrix: Tensor, k: int, p: int) -> Tensor:
    """Rows of head k."""
    return matrix[k * p : (k + 1) * p]


def gram_schmidt(rows: Tensor) -> Tensor:
    """Rows made orthonormal one after another."""
    done: list[Tensor] = []
    for row in rows:
        for other in done:
            row = row - (row @ other) * other
        done.append(row / row.norm())
    return torch.stack(done)


def heads(project, scale, spec, z: Tensor, mask: Tensor | None):
    """Every head of one sample (n, d), side by side: (n, K·p) and attention (K, n, n)."""
    results = [head(*project(k), scale, spec.causal, mask) for k in range(spec.num_heads)]
    return torch.cat([out for out, _ in results], dim=-1), torch.stack([a for _, a in results])


def output_map(weights, out: Tensor) -> Tensor:
    bias = weights.get("output.bias")
    return torch.stack([weights["output.weight"] @ row + (0 if bias is None else bias) for row in out])


def mssa(weights, spec, z, mask):
    scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale

    def project(k):
        w = z @ block(weights["project.weight"], k, spec.head_dim).T
        return scored(spec, measured(weights, w, k), w, w)

    out, attention = heads(project, scale, spec, z, mask)
    return output_map(weights, out), attention


def mssa_tied(weights, spec, z, mask, transposed=False):
    scale = 1.0 if spec.scale is None else spec.scale
    n, p = len(z), spec.head_dim
    update, attentions = torch.zeros_like(z), []
    for k in range(spec.num_heads):
        U = block(weights["project.weight"], k, p).T  # (d, p)
        w = z @ U
        ssa, attention = head(*scored(spec, measured(weights, w, k), w, w), scale, spec.causal, mask)
        columns = weights["project.weight"][:, k * p : (k + 1) * p]  # those that head k meets in a second projection
        update = update + ssa @ (columns.T if transposed else U.T)
        attentions.append(attention)
    rows = []
    for t in range(n):
        counted = range(t + 1) if spec.causal else range(n)
        count = max(1, sum(1 for s in counted if mask is None or bool(mask[s])))
        rows.append(p / (count * spec.eps**2) * update[t])
    return torch.stack(rows), torch.stack(attentions)


def mhsa(weights, spec, z, mask):
    scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
    inner = spec.num_heads * spec.head_dim

    def project(k):
        maps = []
        for part in range(3):
            rows = slice(part * inner + k * spec.head_dim, part * inner + (k + 1) * spec.head_dim)
            bias = weights.get("project.bias")
            maps.append(z @ weights["project.weight"][rows].T + (0 if bias is None else bias[rows]))
        return scored(spec, *maps)

    out, attention = heads(project, scale, spec, z, mask)
    return output_map(weights, out), attention


def tssa(weights, spec, z, mask):
    n, K, p = len(z), spec.num_heads, spec.head_dim
    real = [1.0 if mask is None or bool(mask[t]) else 0.0 for t in range(n)]
    w = z @ weights["project.weight"].T
    if "project.bias" in weights:
        w = w + weights["project.bias"]

    def seen(t):
        return [s for s in (range(t + 1) if spec.causal else range(n)) if real[s]]

    def column(k, j):
        return k * p + j

    membership = [[None] * n for _ in range(K)]
    for t in range(n):
        scores = []
        for k in range(K):
            score = torch.zeros((), dtype=z.dtype)
            for j in range(p):
                total = sum(w[s, column(k, j)] ** 2 for s in seen(t))
                score = score + (w[t, column(k, j)] ** 2 / total if real[t] else 0.0)
                if "position_bias" in weights:
                    score = score + weights["position_bias"][k, t, 0]
            scores.append(weights["temperature"][k, 0] * score)
        for k, share in enumerate(softmax(scores)):
            membership[k][t] = share * real[t]
    rows = []
    for t in range(n):
        row = []
        for k in range(K):
            total = sum(membership[k][s] for s in seen(t))
            for j in range(p):
                moment = sum(membership[k][s] * w[s, column(k, j)] ** 2 for s in seen(t)) / (total + 1e-8)
                row.append(-membership[k][t] * w[t, column(k, j)] / (1 + moment))
        rows.append(torch.stack([torch.as_tensor(x, dtype=z.dtype) for x in row]))
    diagonal = torch.tensor([[float(x.detach()) for x in row] for row in membership], dtype=z.dtype)
    return output_map(weights, torch.stack(rows)), torch.diag_embed(diagonal)


def rate_gradient(weights, spec, z, mask):
    """Token by token, with the n × n inverse of the paper's equation turned to rows: (I + βWWᵀ)⁻¹W."""
    n, p, s = len(z), spec.head_dim, torch.exp(weights["log_step"])
    rows, leverage = [], torch.zeros(spec.num_heads, n, dtype=z.dtype)
    for t in range(n):
        real = [i for i in (range(t + 1) if spec.causal else range(n)) if mask is None or bool(mask[i])]
        if t not in real:
            rows.append(torch.zeros_like(z[t]))
            continue
        beta, update = p / (len(real) * spec.eps**2), torch.zeros_like(z[t])
        for k in range(spec.num_heads):
            U = block(weights["project.weight"], k, p).T  # (d, p)
            W = torch.stack([(z[i] / z[i].norm()) @ U for i in real])
            gram = W @ W.T
            if spec.order is None:
                inverse = torch.linalg.inv(torch.eye(len(real), dtype=z.dtype) + beta * gram)
            else:
                inverse = sum(torch.linalg.matrix_power(-beta * gram, j) for j in range(spec.order + 1))
            own = (inverse @ W)[real.index(t)]
            update = update + own @ U.T
            leverage[k, t] = beta * (W[real.index(t)] * own).sum().detach()
        rows.append(-s * z[t].norm() * update)
    return torch.stack(rows), torch.diag_embed(leverage)


def mssa_negative(*args):
    update, attention = mssa_tied(*args)
    return -update, attention


def mssa_transposed(*args):
    return mssa_tied(*args, transposed=True)


ATTENTION = {
    "mssa": mssa, "mssa-tied": mssa_tied, "mssa-negative": mssa_negative, "mssa-transposed": mssa_transposed,
    "mhsa": mhsa, "tssa": tssa, "rate-gradient": rate_gradient,
}  # fmt: skip


def attention(name: str, weights, spec, z: Tensor, mask: Tensor | None = None):
    """Update (batch, n, d) and attention (batch, K, n, n), sample by sample."""
    masks = [None] * len(z) if mask is None else mask
    if spec.orthonormal == "per-head":
        blocks = [block(weights["project.weight"], k, spec.head_dim) for k in range(spec.num_heads)]
        weights = {**weights, "project.weight": torch.cat([gram_schmidt(U) for U in blocks])}
    results = [ATTENTION[name](weights, spec, *sample) for sample in zip(z, masks, strict=True)]
    return torch.stack([out for out, _ in results]), torch.stack([a for _, a in results])


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def proximal_steps(weights, spec, z: Tensor, proximal) -> Tensor:
    """Steps on ½‖z − Da‖² + λ‖a‖₁ from a = z."""
    D, a = weights["dictionary"], z
    for _ in range(spec.steps):
        a = proximal(a - spec.step_size * (D.T @ (D @ a - z)), spec.step_size * spec.sparsity)
    return a


def ista(weights, spec, z):
    return proximal_steps(weights, spec, z, lambda x, threshold: relu(x - threshold))


def ista_soft(weights, spec, z):
    return proximal_steps(weights, spec, z, lambda x, threshold: torch.sign(x) * relu(x.abs() - threshold))


def prox(weights, spec, z):
    growth = 1 + 4 / (9 * (1 + spec.alpha))
    return relu(growth * (weights["dictionary"].T @ z) - 4 * spec.sparsity / (9 * spec.alpha))


def odl(weights, spec, z):
    D, eta, shift = weights["dictionary"], spec.step_size, spec.step_size * spec.sparsity
    first = relu(eta * (D.T @ z) - shift)
    second = relu(first - eta * (D.T @ (D @ first - z)) - shift)
    return weights["synthesis"] @ second


def mlp(weights, spec, z):
    hidden = weights["expand.weight"] @ z + weights["expand.bias"]
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return weights["contract.weight"] @ hidden + weights["contract.bias"]


def keep(weights, spec, z):
    return z


SPARSIFIERS = {"ista": ista, "ista-soft": ista_soft, "prox": prox, "odl": odl, "mlp": mlp, "none": keep}


def sparsifier(name: str, weights, spec, z: Tensor) -> Tensor:
    """Tokens (..., d), one column at a time."""
    tokens = [SPARSIFIERS[name](weights, spec, token) for token in z.reshape(-1, z.shape[-1])]
    return torch.stack(tokens).reshape(z.shape)
