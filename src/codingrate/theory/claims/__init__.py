"""The paper's claims, each a function that tries it. Importing a module enters its claims."""

from importlib import import_module

from .frame import CLAIMS, Claim, Finding, Outcome, Trial, Verdict, claim, select, trials, verify

for _module in (
    "objective",
    "operators",
    "sparsification",
    "unrolled",
    "layer",
    "denoising",
    "diffusion",
    "structured",
    "discretisation",
    "inversion",
    "projection",
    "remark",
):
    import_module(f"{__name__}.{_module}")

__all__ = ["CLAIMS", "Claim", "Finding", "Outcome", "Trial", "Verdict", "claim", "select", "trials", "verify"]
