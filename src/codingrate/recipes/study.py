"""Studies: grids of runs in YAML files. A study names recipes, overrides and seeds; each row is trained with each seed.

Annotations are not postponed here, because pydantic reads them.
"""

import itertools
import math
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ..errors import CrateError, unknown_name, validation_error
from .files import SHIPPED, load_recipe, read_yaml
from .schema import SECTION, Recipe, Seed, Text

STUDIES = SHIPPED / "studies"
MAX_ROWS = 1000
"""Largest number of combinations in a grid."""


@dataclass(frozen=True, config=SECTION)
class Row:
    """One setting of a study; it is trained with every seed."""

    recipe: Text | None = None
    """Recipe of this row, if it differs from that of the study."""
    variant: Text | None = None
    """Variant of the recipe."""
    overrides: tuple[str, ...] = ()
    """Overrides of the recipe, `key=value`, after those of the study."""


@dataclass(frozen=True, config=SECTION)
class Study:
    """A grid of runs."""

    what: str
    """The question that the study answers, in a sentence."""
    recipe: Text
    """Recipe of all rows."""
    rows: dict[str, Row] = field(default_factory=dict)
    """Settings by name."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = field(default_factory=dict)
    """Values by recipe key; every combination is a row."""
    overrides: tuple[str, ...] = ()
    """Overrides of all rows."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1000)] = (0, 1, 2)
    """Seeds with which each row is trained."""
    measure_layers: Annotated[int, Field(ge=0)] = 0
    """Number of evaluation samples on which the layers of each trained model are measured, with controls."""

    @property
    def settings(self) -> dict[str, Row]:
        """The named rows, and those of the grid, by name."""
        rows = dict(self.rows)
        if math.prod(len(values) for values in self.grid.values()) > MAX_ROWS:
            raise CrateError(f"the grid of a study may have at most {MAX_ROWS} combinations; leave out some values")
        for values in itertools.product(*self.grid.values()) if self.grid else ():
            pairs = [f"{key}={value}" for key, value in zip(self.grid, values, strict=True)]
            names = [f"{key.rpartition('.')[2]}={value}" for key, value in zip(self.grid, values, strict=True)]
            rows[", ".join(names)] = Row(overrides=tuple(pairs))
        return rows

    def recipe_of(self, row: str, seed: int, overrides: tuple[str, ...] = ()) -> Recipe:
        """Return the recipe of a row and a seed; `overrides` come last."""
        setting = self.settings[row]
        changes = [*self.overrides, *setting.overrides, *overrides, f"run.seed={seed}"]
        return load_recipe(setting.recipe or self.recipe, changes, setting.variant)


def study_names() -> list[str]:
    """Return the names of the shipped studies, sorted."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name: str) -> Study:
    """Load a study by name or path. A row may be written as a list of overrides."""
    path = STUDIES / f"{name}.yaml" if name in study_names() else Path(name)
    if not path.is_file():
        raise unknown_name("study", name, study_names())
    values = read_yaml(path)
    rows = values.get("rows") or {}
    if isinstance(rows, dict):
        short = {
            str(key): {"overrides": row or []} if isinstance(row, list | None) else row for key, row in rows.items()
        }
        values["rows"] = short
    try:
        study: Study = TypeAdapter(Study).validate_python(values)
    except ValidationError as error:
        raise CrateError(f"{path}: {validation_error(error)}") from None
    if not study.settings:
        raise CrateError(f"{path}: the study has no rows; name some under `rows` or give `grid`")
    for row in study.settings:
        study.recipe_of(row, study.seeds[0])  # refuses unknown keys before anything is trained
    return study
