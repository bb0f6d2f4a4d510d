"""The claims notice a wrong network: a flipped sign, a lost factor, a transposed dictionary."""

import pytest
import torch

from codingrate.operators import DictionarySparsifier, TiedMSSA
from codingrate.theory.claims import Trial, verify


def flip_mssa(monkeypatch):
    """MSSA with the wrong sign."""
    forward = TiedMSSA.forward

    def flipped(self, *args, **options):
        update, attention = forward(self, *args, **options)
        return -update, attention

    monkeypatch.setattr(TiedMSSA, "forward", flipped)


def drop_beta(monkeypatch):
    """MSSA without its factor β."""
    beta = TiedMSSA.beta
    monkeypatch.setattr(TiedMSSA, "beta", lambda self, *args: torch.ones_like(beta(self, *args)))


def transpose_dictionary(monkeypatch):
    """D* in the place of D."""
    atoms = DictionarySparsifier.atoms
    monkeypatch.setattr(DictionarySparsifier, "atoms", lambda self: atoms(self).mT)


@pytest.mark.parametrize(
    ("mutate", "names"),
    [
        (flip_mssa, ["mssa-gradient", "softmax-membership", "residual-layer", "layer-denoises"]),
        (drop_beta, ["softmax-membership", "attention-inverts"]),
        (transpose_dictionary, ["ista-descends", "ista-majoriser", "prox-step", "attention-inverts"]),
    ],
)
def test_a_mutation_makes_named_claims_fail(monkeypatch, mutate, names):
    assert {outcome.claim.name for outcome in verify(names, Trial()) if outcome.ok} == set(names)
    mutate(monkeypatch)
    assert {outcome.claim.name for outcome in verify(names, Trial()) if not outcome.ok} == set(names)
