"""What verbs that take a run folder share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CrateError, unknown_name

if TYPE_CHECKING:
    from ..training import Recipe


def open_run(run: Path, which: str) -> tuple[Recipe, Path]:
    """The recipe of a run, and the folder of its best or last model."""
    if which not in ("best", "last"):
        raise unknown_name("--which", which, ("best", "last"))
    if not (run / "recipe.yaml").is_file():
        raise CrateError(f"{run}: is not a run folder (no recipe.yaml); train one with crate train")
    from ..training import load_recipe, saved_model

    return load_recipe(str(run / "recipe.yaml")), saved_model(run, which)
