"""The one kind of error a user can cause, and the nearest-name hint that goes with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CrateError(ValueError):
    """Bad input, said in one line that names the argument, flag or file and the remedy."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> CrateError:
    """The error for a name that is in no registry, with the nearest known one offered."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return CrateError(f"unknown {kind} {name!r}; {hint}")
