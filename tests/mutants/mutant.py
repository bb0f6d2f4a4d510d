"""The form of a mutant, and a short way to write several of one file."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """An error in one place of the package."""

    file: str  # path below src/codingrate
    old: str  # text that occurs exactly once in the file
    new: str  # text in its place
    tests: str  # arguments of pytest, separated by spaces: the tests that must find it
    survives: str = ""  # reason why no test can find it, if it is known to survive


def mutants(file: str, tests: str, changes: dict[str, str]) -> list[Mutant]:
    """Return a mutant of a file for each pair of old and new text."""
    return [Mutant(file, old, new, tests) for old, new in changes.items()]
