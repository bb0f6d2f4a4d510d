"""Operators are known by name, and by no other name."""

import pytest
from torch import nn

from codingrate import CrateError
from codingrate.operators import ATTENTION, SPARSIFIERS, AttentionSpec, Registry, SparsifierSpec


def test_the_names_are_the_documented_ones():
    forms = ["mssa", "mssa-negative", "mssa-tied", "mssa-transposed"]
    assert ATTENTION.names() == ["mhsa", *forms, "rate-gradient", "tssa"]
    assert SPARSIFIERS.names() == ["ista", "ista-soft", "mlp", "none", "odl", "prox"]


@pytest.mark.parametrize(
    ("registry", "name", "nearest"),
    [(ATTENTION, "msa", "mssa"), (ATTENTION, "mssa_tied", "mssa-tied"), (SPARSIFIERS, "itsa", "ista")],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(registry, name, nearest):
    message = f"^unknown {registry.kind} '{name}'; did you mean '{nearest}'\\?$"
    with pytest.raises(CrateError, match=message):
        registry.check(name)
    with pytest.raises(CrateError, match=message):
        registry.create(name, None)


def test_a_name_like_no_other_lists_them_all():
    with pytest.raises(CrateError, match=r"known: mhsa, mssa, .*, tssa$"):
        ATTENTION.check("xyz")


def test_a_new_operator_enters_by_decorator():
    registry: Registry[int, nn.Module] = Registry("toy")

    @registry.register("toy")
    class Toy(nn.Module):
        def __init__(self, spec):
            super().__init__()
            self.spec = spec

    assert registry.names() == ["toy"]
    assert registry.create("toy", 3).spec == 3


def test_specs_are_frozen_and_by_keyword():
    with pytest.raises(TypeError):
        AttentionSpec(15, 3, 5)
    with pytest.raises(AttributeError):
        SparsifierSpec(dim=15).dim = 3
