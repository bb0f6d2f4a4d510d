from .files import build_recipe, load_recipe, recipe_header, recipe_keys, recipe_names, recipe_path, save_recipe
from .fitting import describe_fit, fit_to_data, fitted_like
from .schema import Recipe
from .study import Row, Study, load_study, study_names

__all__ = [
    "Recipe", "Row", "Study", "build_recipe", "describe_fit", "fit_to_data", "fitted_like", "load_recipe", "load_study",
    "recipe_header", "recipe_keys", "recipe_names", "recipe_path", "save_recipe", "study_names",
]  # fmt: skip
