"""Operators are known by name, and by no other name."""

import pytest
from torch import nn

from codingrate import CrateError
from codingrate.operators import ATTENTION, MSSA, SPARSIFIERS, Registry


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
        registry.create(name, dim=6)


def test_a_name_like_no_other_lists_them_all():
    with pytest.raises(CrateError, match=r"known: mhsa, mssa, .*, tssa$"):
        ATTENTION.check("xyz")


def test_a_new_operator_enters_by_decorator():
    registry: Registry[nn.Module] = Registry("toy")

    @registry.register("toy")
    class Toy(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.width = width

    assert registry.names() == ["toy"]
    assert registry.create("toy", width=3).width == 3


def test_one_set_of_settings_serves_every_operator_and_a_misspelt_one_none():
    """A setting that another operator of the kind has is left out; the class itself takes its own only."""
    settings = {"dim": 6, "num_heads": 2, "order": 3, "max_tokens": 5, "output_bias": False, "causal": True}
    operators = {name: ATTENTION.create(name, **settings) for name in ATTENTION.names()}
    assert all(operator.causal for operator in operators.values())
    assert operators["rate-gradient"].order == 3
    assert operators["tssa"].position_bias.shape == (2, 5, 1)
    assert operators["mssa"].output.bias is None
    with pytest.raises(CrateError, match=r"^unknown setting of attention 'ordr'; did you mean 'order'\?$"):
        ATTENTION.create("rate-gradient", **settings, ordr=2)
    with pytest.raises(TypeError, match="order"):
        MSSA(6, 2, order=3)


def test_a_head_has_the_share_of_the_width_unless_it_is_said():
    assert MSSA(6, 2).head_dim == 3
    assert MSSA(6, 4, 5).inner == 20
    with pytest.raises(CrateError, match=r"^num_heads must divide dim \(got 4 and 6\); or set head_dim$"):
        MSSA(6, 4)
