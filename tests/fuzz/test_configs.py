"""Made-up configs: each builds a small model that runs, or is refused in one line."""

import dataclasses
import math
import typing

import pytest
import torch
from hypothesis import strategies as st

from codingrate.models import CrateImageConfig, CrateModel, CrateTextConfig, build_config, create_model
from codingrate.operators import ATTENTION, SPARSIFIERS

from .outcomes import counts, fuzz, outcome

KINDS = {
    kind: {field.name: field.type for field in dataclasses.fields(config)}
    for kind, config in (("vision", CrateImageConfig), ("text", CrateTextConfig))
}
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL = {
    "vision": {**SIZES, "image_size": 8, "patch_size": 4},
    "text": {**SIZES, "modality": "text", "vocab_size": 11, "max_position_embeddings": 7},
}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=5), st.lists(st.integers()),
    st.sampled_from(["vision", "text", b"x", 1j, object(), torch.ones(2), {}, {"a": {"b": 1}}, 10**5000, math.nan,
                     [10**6000], {"a": 10**6000}]),
)  # fmt: skip


def plausible(name, kind):
    """Return a strategy of values of the field's own type, most of them small."""
    options = (kind, *typing.get_args(kind))
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(options[1:])
    if name in ("attention", "sparsifier"):
        return st.sampled_from((ATTENTION if name == "attention" else SPARSIFIERS).names())
    small = {bool: st.booleans(), int: st.integers(-1, 17), float: st.floats(-0.5, 2, allow_nan=False)}
    small[type(None)] = st.none()
    return st.one_of(st.nothing(), *(small[option] for option in options if option in small))


def changes(types):
    typed = [plausible(name, types[name]).map(lambda value, name=name: (name, value)) for name in sorted(types)]
    wild = st.tuples(st.sampled_from(sorted(types)), ANYTHING)
    names = st.tuples(st.text(max_size=8) | st.sampled_from(["to_dict", "num_labels", "auto_map", "check"]), ANYTHING)
    return st.lists(st.one_of(*typed, wild, names), max_size=4).map(dict)


def build_and_run(fields):
    """Build a model and run it, unless it is valid but too large for a test."""
    config = build_config(fields)
    sizes = (config.hidden_size, config.num_attention_heads, config.subspace_dim, config.num_hidden_layers)
    assert max(*sizes, config.expansion) <= 2**16
    if config.modality == "vision":
        small = config.num_patches <= 64 and config.patch_dim <= 10**4
    else:
        small = max(config.vocab_size, config.max_position_embeddings) <= 10**4
    if max(*sizes, config.expansion) > 64 or config.num_labels > 10**4 or not small:
        return
    if config.modality == "vision":
        inputs = torch.rand(2, config.num_channels, *config.image_sides)
    else:
        inputs = torch.zeros(2, min(3, config.max_tokens), dtype=torch.long)
    state = CrateModel(config).eval()(inputs, return_dict=True).last_hidden_state
    assert state.shape[::2] == (2, config.hidden_size)
    factors = (config.step_size, config.sparsity, config.attention_scale or 0, config.position_scale)
    assert state.isfinite().all() or max(map(abs, factors)) >= 10


@counts(50, 600)
@pytest.mark.parametrize("kind", KINDS)
def test_made_up_configs(kind, count):
    base = SMALL[kind]
    assert outcome(build_and_run, base) == "ok"

    @fuzz(count, fields=changes(KINDS[kind]))
    def check(fields):
        outcome(build_and_run, {**base, **fields})


@counts(50, 600)
def test_made_up_overrides_of_presets(count):
    @fuzz(count, name=st.sampled_from(sorted(KINDS["vision"] | KINDS["text"])), value=ANYTHING)
    def check(name, value):
        small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, name: value}
        with torch.device("meta"):
            outcome(create_model, "crate-tiny-patch16-224", **small)


def test_every_number_has_a_limit():
    """Every field that holds a whole number and that these models read refuses a number that no memory holds."""
    outcomes = {}
    for modality, fields in KINDS.items():
        types = {name: (kind, *typing.get_args(kind)) for name, kind in fields.items()}
        numbers = [name for name, kinds in types.items() if int in kinds and bool not in kinds]
        for name in {*numbers} - {"chunk_size_feed_forward"}:
            outcomes[modality, name] = outcome(build_config, {name: 10**12, "modality": modality})
    assert len({name for _, name in outcomes}) > 30
    assert {field: result for field, result in outcomes.items() if result != "refused"} == {}
