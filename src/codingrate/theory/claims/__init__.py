"""The paper's claims, each a function that tests it. Importing a module registers its claims."""

from importlib import import_module

from .frame import CLAIMS, Claim, Finding, Outcome, Trial, Verdict, claim, judge, select, trials, verify

MODULES = ("objective", "operators", "unrolled", "denoising", "diffusion", "discretization", "projection")
for _module in MODULES:  # claims of one section are listed in this order
    import_module(f"{__name__}.{_module}")

__all__ = ["CLAIMS", "Claim", "Finding", "Outcome", "Trial", "Verdict", "claim", "judge", "select", "trials", "verify"]
