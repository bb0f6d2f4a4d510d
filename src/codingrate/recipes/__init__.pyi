from .files import build_recipe, load_recipe, recipe_header, recipe_names, recipe_path, save_recipe
from .schema import Recipe

__all__ = ["Recipe", "build_recipe", "load_recipe", "recipe_header", "recipe_names", "recipe_path", "save_recipe"]
