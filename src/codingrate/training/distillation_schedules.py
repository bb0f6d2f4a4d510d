"""What changes along a run of self-distillation besides the learning rate: released DINO's three schedules."""

from __future__ import annotations

from .optimizers import cosine


def teacher_momentum(step: int, steps: int, start: float = 0.996) -> float:
    """m(i) = 1 − ½(1 − start)(1 + cos(πi/T)), which ends at 1: a teacher that no longer moves."""
    return cosine(start, 1.0, min(step, steps) / max(steps, 1))


def weight_decay_at(step: int, steps: int, start: float, end: float) -> float:
    """Weight decay from `start` to `end` by cosine; the release's own is 0.04 to 0.4."""
    return cosine(start, end, min(step, steps) / max(steps, 1))


def teacher_temperature(epoch: int, start: float, end: float, warmup_epochs: int) -> float:
    """τ_t of an epoch counted from 0: linear from `start` in the first of `warmup_epochs` to `end` in the last.

    The release's linspace: n epochs of warm-up make n − 1 steps, and a single one stays at `start`.
    """
    if epoch >= warmup_epochs:
        return end
    return start + (end - start) * epoch / max(warmup_epochs - 1, 1)
