"""Shipped recipes, loaded once, and their values at dotted keys."""

from functools import cache

from codingrate.recipes import load_recipe

load = cache(load_recipe)


def value(recipe, key):
    """Return the value of a recipe at a dotted key."""
    result = recipe.to_dict()
    for part in key.split("."):
        result = result[part]
    return result
