"""Argument checks and linear algebra that rates and gradients share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from codingrate.errors import CrateError

JITTER_STEPS = 8


def check_floating(z: Tensor, name: str = "z") -> None:
    """Raise an error unless `z` is a dense floating-point tensor of at least 16 bits with values."""
    if not isinstance(z, Tensor) or not z.is_floating_point():
        kind = z.dtype if isinstance(z, Tensor) else type(z).__name__
        raise CrateError(f"{name} must be a floating-point tensor, got {kind}; convert it with .float()")
    if z.layout is not torch.strided or z.is_meta or z.is_nested or z.dtype.itemsize < 2:
        form = f"{z.dtype}, {z.layout} on {z.device}"
        raise CrateError(f"{name} must be a dense tensor with values in at least 16 bits, got {form}")


def check_tokens(z: Tensor, name: str = "z") -> Tensor:
    """Check the shape of tokens (..., n, d); return them in float32 or float64, half precision as float32."""
    check_floating(z, name)
    if z.ndim < 2 or 0 in z.shape[-2:]:
        raise CrateError(f"{name} must be tokens (..., n, d) with n, d ≥ 1, got shape {tuple(z.shape)}")
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) else z


def check_bases(bases: Tensor, z: Tensor | None = None, *, batched: bool = False) -> Tensor:
    """Check that bases are (K, d, p), with the d of the tokens z if given; return them.

    With `batched` they may be (..., K, d, p), whose leading axes broadcast with those of z.
    """
    check_floating(bases, "bases")
    if bases.ndim < 3 or (bases.ndim > 3 and not batched) or 0 in bases.shape:
        raise CrateError(f"bases must be (K, d, p), got shape {tuple(bases.shape)}")
    if z is not None and bases.shape[-2] != z.shape[-1]:
        raise CrateError(f"bases have d = {bases.shape[-2]} but the tokens z have d = {z.shape[-1]}")
    if z is not None and bases.ndim > 3:
        try:
            torch.broadcast_shapes(bases.shape[:-3], z.shape[:-2])
        except RuntimeError:
            axes = f"{tuple(bases.shape[:-3])} but the tokens z have {tuple(z.shape[:-2])}"
            raise CrateError(f"bases have leading axes {axes}; they must broadcast") from None
    return bases


def full_precision(z: Tensor) -> torch.autocast:
    """Disable autocast: from a Gram matrix in bfloat16 a rate would have only three digits."""
    return torch.autocast(z.device.type, enabled=False)


def shifted_gram(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Compute I + scale · left right, (..., m, k) and (..., k, m) → (..., m, m), as batched GEMMs.

    It is one GEMM if the leading axes can be merged without a copy. Otherwise the last of them, such as heads that are
    a view of joined ones, is taken in turn: a copy would take as long as the GEMM.
    """
    lead, m, k = left.shape[:-2], left.shape[-2], left.shape[-1]
    if len(lead) == 2 and lead[1] < lead[0] and left.stride(0) != lead[1] * left.stride(1):
        parts = zip(left.unbind(1), right.unbind(1), strict=True)
        return torch.stack([shifted_gram(one, other, scale) for one, other in parts], dim=1)
    batch = lead.numel()
    identity = torch.eye(m, dtype=left.dtype, device=left.device)
    product = torch.baddbmm(identity, left.reshape(batch, m, k), right.reshape(batch, k, m), alpha=scale)
    return product.view(*lead, m, m)


def smaller_gram(w: Tensor, scale: float) -> Tensor:
    """Compute I + scale · wᵀw (p×p) or I + scale · wwᵀ (n×n) for w (..., n, p), whichever is smaller.

    Both have the same determinant (Sylvester) and lead to the same gradient (push-through).
    """
    return shifted_gram(w, w.mT, scale) if w.shape[-2] < w.shape[-1] else shifted_gram(w.mT, w, scale)


def cholesky(spd: Tensor) -> Tensor:
    """Compute the lower factor of I + cG (..., m, m), whose exact eigenvalues are all at least 1.

    It can therefore fail only by rounding, when cG is so large that the 1 is lost, or on NaN and inf. A finite matrix
    that fails is tried again with jitter on its diagonal: mean diagonal × machine epsilon × 1, 10, 100, ... A matrix
    that is not finite gives a factor of NaN, not an exception.
    """
    factor, info = torch.linalg.cholesky_ex(spd)
    if not bool(info.any()):
        return factor
    finite = spd.isfinite().all(-1).all(-1)
    unit = spd.detach().diagonal(dim1=-2, dim2=-1).mean(-1) * torch.finfo(spd.dtype).eps
    jitter = torch.zeros_like(unit)
    for step in range(JITTER_STEPS):
        failed = (info != 0) & finite
        if not bool(failed.any()):
            break
        jitter = torch.where(failed, unit * 10.0**step, jitter)
        diagonal = jitter.unsqueeze(-1).expand(spd.shape[:-1])
        factor, info = torch.linalg.cholesky_ex(spd + torch.diag_embed(diagonal))
    return factor.masked_fill((info != 0)[..., None, None], torch.nan)


def half_logdet(spd: Tensor, scale: float, again: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
    """Compute ½ logdet of I + cG (..., m, m) → (...), by eliminating a block of rows at a time.

    det A = det A₁₁ · det(A₂₂ − A₂₁A₁₁⁻¹A₁₂), and each Schur complement again has all eigenvalues at least 1. Most of
    the work becomes batched products, which are faster than a batch of whole factorizations for every m from 48 to
    768. For the same reason a triangular factor is inverted, not solved with many columns. NaN or inf tokens give NaN.
    If finite tokens overflow in the Gram matrix, `again` returns w/s (..., n, p) and log s (...), with s such that they
    do not, and the result is computed from the singular values of w.
    """
    block = 16 * max(1, spd.shape[-1] // 192)
    identity = torch.eye(block, dtype=spd.dtype, device=spd.device)
    rest = spd.reshape(-1, *spd.shape[-2:])
    total = spd.new_zeros(rest.shape[0])
    failed = torch.zeros(rest.shape[0], dtype=torch.int32, device=spd.device)
    while True:
        factor, info = torch.linalg.cholesky_ex(rest[:, :block, :block])
        total, failed = total + _log_diagonal(factor), failed | info
        if rest.shape[-1] <= block:
            break
        inverse = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
        cross = torch.bmm(inverse, rest[:, :block, block:])
        rest = torch.baddbmm(rest[:, block:, block:], cross.mT, cross, alpha=-1)
    if not bool((failed.bool() | ~total.isfinite()).any()):
        return total.view(spd.shape[:-2])
    value = _log_diagonal(cholesky(spd))
    value = value.masked_fill(~value.isfinite(), torch.nan)
    if bool(value.isnan().any()):
        spectral = _spectral_half_logdet(scale, *again()).to(value.dtype)
        # The whole batch, not where(): a gradient through the overflow would be NaN even where it is not selected.
        return spectral if bool((value.isnan() & spectral.isfinite()).any()) else value
    return value


def _spectral_half_logdet(scale: float, unit: Tensor, log_size: Tensor) -> Tensor:
    """Compute ½ Σ_i log(1 + cσ_i²) of the singular values σ of w = s · unit (..., n, p) → (...), without overflow."""
    finite = _finite_samples(unit, log_size)
    sigma = torch.linalg.svdvals(unit.masked_fill(~finite[..., None, None], 0))
    exponents, large = _log_energies(scale, sigma, log_size, max(unit.shape[-2:]))
    return torch.nn.functional.softplus(exponents).where(large, 0).sum(-1).masked_fill(~finite, torch.nan) / 2


def spectral_gradient(scale: float, unit: Tensor, log_size: Tensor) -> Tensor:
    """Compute U diag(cσ/(1 + cσ²)) Vᵀ for w = s · unit = U diag(σ) Vᵀ (..., n, p), the gradient of ½ logdet."""
    finite = _finite_samples(unit, log_size)
    left, sigma, right = torch.linalg.svd(unit.masked_fill(~finite[..., None, None], 0), full_matrices=False)
    exponents, large = _log_energies(scale, sigma, log_size, max(unit.shape[-2:]))
    inverse = (exponents.sigmoid() / sigma.where(large, 1)).where(large, 0) * log_size.neg().exp()[..., None]
    return ((left * inverse.unsqueeze(-2)) @ right).masked_fill(~finite[..., None, None], torch.nan)


def _log_energies(scale: float, sigma: Tensor, log_size: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return log(cs²σ²) (..., m), and which σ are not rounding of the largest; the others count as zero."""
    large = sigma > side * torch.finfo(sigma.dtype).eps * sigma[..., :1]
    return math.log(scale) + 2 * (log_size[..., None] + sigma.where(large, 1).log()), large


def _finite_samples(unit: Tensor, log_size: Tensor) -> Tensor:
    return unit.isfinite().all(-1).all(-1) & log_size.isfinite()


def unit_scaled(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return z (..., n, d) in float64 divided by its largest |entry| s, and log s (...); zero tokens have s = 1."""
    size = z.detach().abs().amax((-2, -1), keepdim=True).double()
    size = size.masked_fill(size == 0, 1)
    return z.double() / size, size[..., 0, 0].log()


def all_finite(z: Tensor) -> bool:
    """Return whether all entries are finite; a sum shows it in a tenth of the time, unless it overflows by itself."""
    return bool(z.sum().isfinite()) or bool(z.isfinite().all())


def check_overflow(result: Tensor, *inputs: Tensor) -> Tensor:
    """Return a result; raise an error if it is not finite although the inputs are.

    Samples with NaN or inf lie on leading axes; any such input makes the whole result exempt.
    """
    if not all_finite(result) and all(map(all_finite, inputs)):
        raise CrateError(f"tokens are too large: the result overflows {result.dtype}; divide them, or use float64")
    return result


def _log_diagonal(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
