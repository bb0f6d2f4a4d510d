"""The paper's equations transcribed naively: one sample, tokens as COLUMNS, full matrices, float64."""

import torch

# ruff: noqa: N803 - the paper's letters


def rate(Z, eps):  # Z (d, n)
    d, n = Z.shape
    return 0.5 * torch.logdet(torch.eye(n, dtype=Z.dtype) + d / (n * eps**2) * Z.T @ Z)


def class_rate(Z, Pi, eps, weighted=False):  # Pi (K, n)
    d, n = Z.shape
    total = torch.zeros((), dtype=Z.dtype)
    for row in Pi:
        if row.sum() > 0:
            gamma = d / (row.sum() * eps**2)
            share = row.sum() / n if weighted else 1.0
            total = total + share * 0.5 * torch.logdet(torch.eye(d, dtype=Z.dtype) + gamma * Z @ torch.diag(row) @ Z.T)
    return total


def subspace_rate(Z, bases, eps):
    n, p = Z.shape[1], bases.shape[2]
    total = torch.zeros((), dtype=Z.dtype)
    for U in bases:
        W = U.T @ Z
        total = total + 0.5 * torch.logdet(torch.eye(n, dtype=Z.dtype) + p / (n * eps**2) * W.T @ W)
    return total


def neumann(Z, bases, eps):
    n, p = Z.shape[1], bases.shape[2]
    beta = p / (n * eps**2)
    eye = torch.eye(n, dtype=Z.dtype)
    return beta * sum(U @ (U.T @ Z) @ (eye - beta * (U.T @ Z).T @ (U.T @ Z)) for U in bases)


def attention(Z, bases, eps, identity_projection):
    n, p = Z.shape[1], bases.shape[2]
    beta = p / (n * eps**2)
    ssa = []
    for U in bases:
        W = U.T @ Z
        logits = W.T @ W
        columns = [torch.exp(v) / torch.exp(v).sum() for v in logits.T]  # softmax of each column
        ssa.append(W @ torch.stack(columns, 1))
    mssa = beta * torch.cat(list(bases), 1) @ torch.cat(ssa, 0)
    projected = Z if identity_projection else sum(U @ U.T @ Z for U in bases)
    return beta * projected - beta * mssa


def hessian_vector(Z, Delta, eps):
    d, n = Z.shape
    alpha = d / (n * eps**2)
    M = torch.linalg.inv(torch.eye(n, dtype=Z.dtype) + alpha * Z.T @ Z)
    return alpha * Delta @ M - alpha**2 * Z @ M @ (Z.T @ Delta + Delta.T @ Z) @ M


def over_batch(oracle, z, *rest):
    """Apply a column oracle to each sample of z (..., n, d); matrices come back as rows."""
    flat = z.reshape(-1, *z.shape[-2:])
    results = [oracle(sample.T, *rest) for sample in flat]
    results = [r.T if r.ndim == 2 else r for r in results]
    return torch.stack(results).reshape(z.shape[:-2] + results[0].shape)
