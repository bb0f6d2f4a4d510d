"""Made-up configs: each builds a small model that runs, or is refused in one line."""

import dataclasses
import math
import typing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codingrate.models import CrateConfig, CrateModel, build_config, create_model
from codingrate.operators import ATTENTION, SPARSIFIERS

from .outcomes import cases, outcome

FEW = [pytest.param(50, id="few"), pytest.param(600, id="many", marks=pytest.mark.slow)]
FIELDS = {field.name: field for field in dataclasses.fields(CrateConfig)}
TYPES = {name: field.type for name, field in FIELDS.items()}
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
TEXT = {"modality": "text", "vocab_size": 11, "max_position_embeddings": 7}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=5), st.lists(st.integers()),
    st.sampled_from(["vision", "text", b"x", 1j, object(), torch.ones(2), {}, {"a": {"b": 1}}, 10**5000, math.nan]),
)  # fmt: skip


def plausible(name):
    """Return a strategy of values of the field's own type, most of them small."""
    kind = TYPES[name]
    options = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(options)
    if name in ("attention", "sparsifier"):
        return st.sampled_from((ATTENTION if name == "attention" else SPARSIFIERS).names())
    values = [st.nothing()]
    if kind is bool or bool in options:
        values.append(st.booleans())
    if kind is int or int in options:
        values.append(st.integers(-1, 17))
    if float in options:
        values.append(st.floats(-0.5, 2, allow_nan=False))
    if type(None) in options:
        values.append(st.none())
    return st.one_of(values)


def changes():
    typed = [
        plausible(name).map(lambda value, name=name: (name, value))
        for name in sorted(FIELDS)
        if not plausible(name).is_empty
    ]
    wild = st.tuples(st.sampled_from(sorted(FIELDS)), ANYTHING)
    names = st.tuples(st.text(max_size=8) | st.sampled_from(["to_dict", "num_labels", "auto_map", "check"]), ANYTHING)
    return st.lists(st.one_of(*typed, wild, names), max_size=4).map(dict)


def build_and_run(fields):
    config = build_config(fields)
    sizes = [
        config.hidden_size,
        config.num_attention_heads,
        config.subspace_dim,
        config.num_hidden_layers,
        config.expansion,
    ]
    assert max(sizes) <= 2**16
    if max(sizes) > 64 or config.num_labels > 10**4:
        return  # a valid model, too large for a test
    if config.modality == "vision":
        if config.num_patches > 64 or config.patch_dim > 10**4:
            return
        output = CrateModel(config).eval()(torch.rand(2, config.num_channels, *config.image_sides))
    else:
        if config.vocab_size > 10**4 or config.max_position_embeddings > 10**4:
            return
        output = CrateModel(config).eval()(
            torch.zeros(2, min(3, config.max_tokens), dtype=torch.long), return_dict=True
        )
    state = output.last_hidden_state
    assert state.shape[::2] == (2, config.hidden_size)
    mild = (
        max(abs(config.step_size), abs(config.sparsity), abs(config.attention_scale or 0), config.position_scale) < 10
    )
    assert state.isfinite().all() or not mild


@pytest.mark.parametrize("count", FEW)
@pytest.mark.parametrize("base", [SMALL, {**SMALL, **TEXT}], ids=["vision", "text"])
def test_made_up_configs(base, count):
    assert outcome(build_and_run, base) == "ok"

    @cases(count)
    @given(fields=changes())
    def check(fields):
        assert outcome(build_and_run, {**base, **fields}) in ("ok", "refused")

    check()


@pytest.mark.parametrize("count", FEW)
def test_made_up_overrides_of_presets(count):
    @cases(count)
    @given(name=st.sampled_from(sorted(FIELDS)), value=ANYTHING)
    def check(name, value):
        with torch.device("meta"):
            small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
            assert outcome(create_model, "crate-tiny-patch16-224", **{**small, name: value}) in ("ok", "refused")

    check()


def numbers():
    """Return the fields that hold a whole number and that these models read."""
    types = {name: (kind, *typing.get_args(kind)) for name, kind in TYPES.items() if name != "chunk_size_feed_forward"}
    return sorted(name for name, kinds in types.items() if int in kinds and bool not in kinds)


def test_every_number_has_a_limit():
    assert len(numbers()) > 30
    text = {field: {"modality": "text"} if field.endswith("_token_id") else {} for field in numbers()}
    outcomes = {field: outcome(build_config, {field: 10**12, **fields}) for field, fields in text.items()}
    assert {field: result for field, result in outcomes.items() if result != "refused"} == {}


@pytest.mark.parametrize(
    "value", [10**6000, -(10**6000), [10**6000], {"a": 10**6000}], ids=["large", "low", "list", "map"]
)
def test_numbers_that_python_does_not_print(value):
    for name in sorted(FIELDS):
        assert outcome(build_config, {name: value}) in ("ok", "refused")
