"""The paper's claims, each a function that tests it. Importing a module registers its claims."""

from importlib import import_module

from .frame import CLAIMS, Finding, Trial, claim, judge, report_html, select, summarize, trials, verify

MODULES = (
    "objective", "energy", "operators", "unrolled", "expansion", "denoising", "diffusion", "discretization",
    "layers", "reversal", "projection", "lemmas", "assumptions",
)  # fmt: skip
for _module in MODULES:  # claims of one section are listed in this order
    import_module(f"{__name__}.{_module}")

__all__ = [
    "CLAIMS", "Finding", "Trial", "claim", "judge", "report_html", "select", "summarize", "trials", "verify",
]  # fmt: skip
