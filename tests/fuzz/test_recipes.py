"""Recipes: any override and any file gives a valid recipe or an error of one line."""

import math

import pytest
import yaml
from hypothesis import strategies as st

from codingrate.recipes import build_recipe, load_recipe, recipe_keys, save_recipe

from .outcomes import counts, fuzz, outcome, unchanged

COUNTS = counts(60, 600)

KEYS = st.one_of(
    st.sampled_from(sorted(recipe_keys())),
    st.sampled_from(["model.config.hidden_size", "model.config.id2label", "model.config.a.b", "base", "variants"]),
    st.text(max_size=20),
    st.builds(lambda part, count: ".".join([part] * count), st.sampled_from(["model", "a", "", "model.config"]),
              st.integers(1, 2000)),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([10**400, -(10**400), 2**31, 2**32, 2**63, 1e-45, 5e-324, 1e308]),
    st.sampled_from([math.nan, math.inf, -math.inf, 0, -0.0, 1, True, False]),
)  # fmt: skip
LEAVES = st.one_of(NUMBERS, st.none(), st.text(max_size=50), st.binary(max_size=9), st.dates())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.text(max_size=9), st.integers()), inner, max_size=4)
    ),
    max_leaves=12,
)
TAGS = "!!int !!float !!bool !!timestamp !!binary !!set !!omap !!python/name:os.system &a *a ?"
TEXTS = st.one_of(
    st.text(max_size=60),
    st.builds("{} {}".format, st.sampled_from(TAGS.split()), st.text(max_size=12)),
    st.builds(lambda sign, count: sign * count, st.sampled_from("[{-9!&*x: \t"), st.integers(1, 6000)),
    st.sampled_from(["~", "1:59:59", "0o17", "0x" + "f" * 400, "1_000", "2024-99-99", "1e999", "<<: 1", "%TAG ! x"]),
)


def checked(*args):
    """Return the outcome of loading a recipe, which survives a round trip."""

    def load():
        recipe = load_recipe(*args)
        assert build_recipe(recipe.to_dict()) == recipe

    return outcome(load)


@COUNTS
@pytest.mark.parametrize(
    "overrides",
    [
        st.dictionaries(KEYS, VALUES, min_size=1, max_size=3),
        st.lists(st.builds("{}={}".format, KEYS, TEXTS), min_size=1, max_size=3),
    ],
    ids=["values", "texts"],
)
def test_overrides(overrides, count):
    seen = set()

    @fuzz(count, st.sampled_from(["digits", "digits-dino", "sst2"]), overrides)
    def check(name, overrides):
        seen.add(checked(name, overrides))

    assert "refused" in seen


@COUNTS
def test_single_numbers(count, tmp_path):
    """Whatever number a key takes, the recipe can be written and read."""
    keys = sorted(key for key, (default, _) in recipe_keys().items() if type(default) in (int, float))

    @fuzz(count, st.sampled_from(keys), NUMBERS)
    def check(key, value):
        if checked("digits", {key: value}) == "ok":
            assert math.isfinite(value)
            save_recipe(load_recipe("digits", {key: value}), tmp_path / "recipe.yaml")
            assert load_recipe(str(tmp_path / "recipe.yaml")) == load_recipe("digits", {key: value})


@COUNTS
def test_files(count, tmp_path):
    """Structured YAML: sections with any values, and text that is almost YAML."""
    sections = st.dictionaries(
        st.sampled_from(["task", "model", "data", "augment", "optimizer", "run", "base", "variants", "text", "x"]),
        st.one_of(VALUES, st.dictionaries(st.sampled_from([key.rpartition(".")[2] for key in recipe_keys()]), VALUES)),
        max_size=4,
    ).map(lambda values: yaml.safe_dump(values).encode())
    texts = TEXTS.map(lambda text: f"model: {text}".encode("utf-8", "surrogatepass"))

    @fuzz(count, st.one_of(sections, texts, st.binary(max_size=200)))
    def check(content):
        (tmp_path / "own.yaml").write_bytes(content)
        with unchanged(tmp_path):
            checked(str(tmp_path / "own.yaml"))
