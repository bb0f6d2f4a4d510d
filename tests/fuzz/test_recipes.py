"""Recipes: any override and any file gives a valid recipe or an error of one line, at once."""

import math
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from codingrate.recipes import Recipe, build_recipe, load_recipe, load_study, recipe_keys, save_recipe
from codingrate.recipes.files import SHIPPED

from .outcomes import cases, mutated, outcome, unchanged

COUNTS = [pytest.param(60, id="few"), pytest.param(600, id="many", marks=pytest.mark.slow)]
SECONDS = 5
"""Longest time that a case may take; most take milliseconds."""

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
TAGS = [
    "!!int",
    "!!float",
    "!!bool",
    "!!timestamp",
    "!!binary",
    "!!set",
    "!!omap",
    "!!python/name:os.system",
    "&a",
    "*a",
    "? ",
]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.builds("{} {}".format, st.sampled_from(TAGS), st.text(max_size=12)),
    st.builds(lambda sign, count: sign * count, st.sampled_from("[{-9!&*x: \t"), st.integers(1, 6000)),
    st.sampled_from(["~", "1:59:59", "0o17", "0x" + "f" * 400, "1_000", "2024-99-99", "1e999", "<<: 1", "%TAG ! x"]),
)


def checked(call):
    """Return the outcome of a call that must be fast; a recipe that is returned survives a round trip."""
    results, start = [], time.perf_counter()
    result = outcome(lambda: results.append(call()))
    assert time.perf_counter() - start < SECONDS
    if result == "ok":
        assert isinstance(results[0], Recipe)
        assert build_recipe(results[0].to_dict()) == results[0]
    return result


@pytest.mark.parametrize("count", COUNTS)
def test_values(count):
    seen = set()

    @cases(count)
    @given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), st.sampled_from(["digits", "digits-dino", "sst2"]))
    def check(overrides, name):
        seen.add(checked(lambda: load_recipe(name, overrides)))

    check()
    assert "refused" in seen


@pytest.mark.parametrize("count", COUNTS)
def test_texts(count, tmp_path):
    seen = set()

    @cases(count)
    @given(st.lists(st.builds("{}={}".format, KEYS, TEXTS), min_size=1, max_size=3))
    def check(overrides):
        seen.add(checked(lambda: load_recipe("digits", overrides)))

    check()
    assert "refused" in seen


@pytest.mark.parametrize("count", COUNTS)
def test_single_numbers(count, tmp_path):
    """Whatever number a key takes, the recipe can be written and read."""
    keys = sorted(key for key, (default, _) in recipe_keys().items() if type(default) in (int, float))

    @cases(count)
    @given(st.sampled_from(keys), NUMBERS)
    def check(key, value):
        try:
            recipe = load_recipe("digits", {key: value})
        except ValueError:
            assert checked(lambda: load_recipe("digits", {key: value})) == "refused"
            return
        assert math.isfinite(value)
        save_recipe(recipe, tmp_path / "recipe.yaml")
        assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe

    check()


@pytest.mark.parametrize("count", COUNTS)
def test_files(count, tmp_path):
    """Structured YAML: sections with any values, and text that is almost YAML."""
    sections = st.dictionaries(
        st.sampled_from(["task", "model", "data", "augment", "optimizer", "run", "base", "variants", "text", "x"]),
        st.one_of(VALUES, st.dictionaries(st.sampled_from([key.rpartition(".")[2] for key in recipe_keys()]), VALUES)),
        max_size=4,
    )
    path = tmp_path / "own.yaml"

    @cases(count)
    @given(st.one_of(sections.map(lambda values: yaml.safe_dump(values).encode()), TEXTS.map(
        lambda text: f"model: {text}".encode("utf-8", "surrogatepass")), st.binary(max_size=200)))  # fmt: skip
    def check(content):
        path.write_bytes(content)
        with unchanged(tmp_path):
            checked(lambda: load_recipe(str(path)))

    check()


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_files(count, tmp_path):
    """Shipped recipes and studies with flipped, repeated and missing bytes."""
    recipes = sorted(SHIPPED.glob("*.yaml"))
    studies = sorted((SHIPPED / "studies").glob("*.yaml"))
    path, seen = tmp_path / "damaged.yaml", set()

    @cases(count)
    @given(st.sampled_from([*recipes, *studies]), st.integers(0, 2**32 - 1))
    def check(file, seed):
        path.write_bytes(mutated(file.read_bytes(), seed))
        with unchanged(tmp_path):
            if file in studies:
                outcome(lambda: load_study(str(path)))
            else:
                seen.add(checked(lambda: load_recipe(str(path))))

    check()
    assert seen == {"ok", "refused"}
