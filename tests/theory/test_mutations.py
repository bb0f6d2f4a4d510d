"""Every claim has power: its verdict changes under each of the errors that its docstring names."""

import pytest

from codingrate.theory.claims import CLAIMS, Trial, verify
from tests.theory.mutations import MUTATIONS, apply

PAIRS = [(claim.name, mutation) for claim in CLAIMS.values() for mutation in claim.mutations]


def test_every_mutation_is_defined_and_used():
    assert {mutation for _, mutation in PAIRS} == set(MUTATIONS)


def cases():
    """Yield all pairs; the first mutation of each claim is tried by `make test`, the others by `make test-all`."""
    for name, mutation in PAIRS:
        marks = () if mutation == CLAIMS[name].mutations[0] else pytest.mark.slow
        yield pytest.param(name, mutation, marks=marks, id=f"{name}: {mutation}")


@pytest.mark.parametrize(("name", "mutation"), list(cases()))
def test_a_claim_does_not_survive_its_mutation(monkeypatch, name, mutation):
    apply(MUTATIONS[mutation], monkeypatch)
    (outcome,) = verify([name], Trial(seed=1))
    expected = outcome.claim.expected
    if expected == "fails":  # it cannot get worse
        assert outcome.finding.verdict == "holds"
    else:
        assert outcome.finding.verdict == "fails", outcome.finding
        assert "contradicts" in outcome.finding.reason
    assert not outcome.ok
