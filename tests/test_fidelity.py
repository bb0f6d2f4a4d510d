"""docs/fidelity.md names what produces each label of the paper: the list is complete, and everything named exists."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import codingrate
from codingrate.cli.app import app
from codingrate.models.presets import list_models
from codingrate.recipes import recipe_names, study_names
from codingrate.theory.claims import CLAIMS

ROOT = Path(__file__).parents[1]
LABELS = json.loads((ROOT / "tests" / "data" / "paper_labels.json").read_text(encoding="utf-8"))
"""Labels and kinds, read off the paper's LaTeX once: all but those of sections, and the four pseudocodes."""
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| (\w+) \| (.+?) \| (.*?) ?\|$", PAGE.partition("## Every label")[2], re.MULTILINE)
KNOWN = {"claim": CLAIMS, "recipe": recipe_names(), "study": study_names(), "model": list_models()}
VERBS = {command.name for command in app.registered_commands}
NOT_BUILT = {
    "eqn:closed-loop",  # an open direction that the paper only names
    "eq:control-op-by-blocks", "eq:blocks-opnorm-controlled-overall",  # inequalities in a proof, true of any blocks
    "eq:other-term-of-xik", "eq:other-term-of-xik-nom",  # terms in a proof
}  # fmt: skip


def test_every_label_has_one_row_in_the_order_of_the_paper():
    assert [(label, kind) for label, kind, _, _ in ROWS] == [(entry["label"], entry["kind"]) for entry in LABELS]
    assert len(LABELS) == 154
    assert {label for label, _, targets, _ in ROWS if targets == "none"} == NOT_BUILT


def missing(target: str) -> str | None:
    """Return what is wrong with a target of the table, or None."""
    match = re.fullmatch(r"(?:(claim|recipe|study|model) )?`([^`]+)`", target)
    if match is None:
        return f"{target}: is no target"
    kind, name = match.groups()
    if kind is not None:
        return None if name in KNOWN[kind] else f"there is no {kind} {name}"
    if name.startswith("crate "):
        return None if name.removeprefix("crate ") in VERBS else f"there is no verb {name}"
    *parts, last = name.split(".")
    place: object = codingrate
    for part in parts:
        place = getattr(place, part, None) or importlib.import_module(f"{place.__name__}.{part}")  # type: ignore[attr-defined]
    return None if hasattr(place, last) else f"codingrate has no {name}"


def test_everything_named_exists():
    named = [(label, target) for label, _, targets, _ in ROWS if targets != "none" for target in targets.split(", ")]
    assert [f"{label}: {problem}" for label, target in named if (problem := missing(target))] == []


def test_a_row_names_the_claims_that_name_its_label():
    """The equation of a claim and the rows of the table agree: each label of one is in the other."""
    known = {entry["label"] for entry in LABELS}
    by_claim = {(name, label) for name, claim in CLAIMS.items() for label in re.split(", | ", claim.equation)}
    by_row = {(name, label) for label, _, targets, _ in ROWS for name in re.findall(r"claim `([^`]+)`", targets)}
    assert sorted(by_row) == sorted((name, label) for name, label in by_claim if label in known)


def test_readme_says_how_many_labels_nothing_produces():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{len(LABELS)} labels" in readme
    assert f"all but {['zero', 'one', 'two', 'three', 'four', 'five', 'six'][len(NOT_BUILT)]} of" in readme


def test_a_target_that_does_not_exist_is_noticed():
    for target in (
        "`objective.codingrate`",
        "claim `no-such`",
        "`crate fly`",
        "recipe `x`",
        "study `x`",
        "model `x`",
        "R",
    ):
        assert missing(target)


def test_variants_that_the_page_names_exist():
    """Options and variants that the page names are those of the command and of the recipes."""
    variants = re.findall(r"[Vv]ariants? `([\w-]+)`", PAGE)
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/codingrate/recipes").glob("*.yaml"))
    assert variants
    assert [name for name in variants if f"  {name}:" not in text] == []


def test_every_slip_names_the_claims_that_show_it():
    slips = PAGE.partition("## Slips in the paper")[2].partition("## Every label")[0]
    rows = [line.strip("|").split(" | ")[-1] for line in slips.splitlines() if line.startswith("|")][2:]
    named = [re.findall(r"`([\w-]+)`", cell) for cell in rows]
    assert len(named) >= 15
    assert all(names and set(names) <= set(CLAIMS) for names in named)
