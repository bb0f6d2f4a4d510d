"""The list of mutants fits the code: every place exists once, every change changes it, every test file is there."""

from collections import Counter
from pathlib import Path

from .rooms import ROOMS

ROOT = Path(__file__).parents[2]
MUTANTS = [mutant for room in ROOMS.values() for mutant in room]


def test_there_are_enough_and_none_is_listed_twice():
    assert len(MUTANTS) >= 150
    assert not [pair for pair, count in Counter((m.file, m.new, m.old) for m in MUTANTS).items() if count > 1]


def test_every_place_occurs_once_and_the_change_is_valid_python():
    for file, old, new, *_ in MUTANTS:
        text = (ROOT / "src" / "codingrate" / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file}: {text.count(old)} × {old!r}"
        assert old != new
        compile(text.replace(old, new), file, "exec")


def test_the_tests_of_every_mutant_exist():
    for part in {part for mutant in MUTANTS for part in mutant.tests.split()}:
        path, _, name = part.partition("::")
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), part
