"""Recipes as files: shipped ones by name, one's own by path, inheritance, variants and `key=value` overrides."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CrateError, unknown_name
from .recipe import Recipe

SHIPPED = Path(__file__).parent.parent / "recipes"


def recipe_names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """The file of a shipped recipe, or of one's own by its path."""
    if name in recipe_names():  # first, as a folder of data or a run is often called like its recipe
        return SHIPPED / f"{name}.yaml"
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml"):
        raise CrateError(f"{name}: no such recipe file; `crate recipes` lists the shipped ones")
    raise unknown_name("recipe", name, recipe_names())


HEADER = ("what", "paper", "command", "time", "metric")
"""What the comment at the top of every shipped recipe says, a line each."""


def recipe_header(name: str) -> dict[str, str]:
    """The comment at the top of a recipe file."""
    header = dict.fromkeys(HEADER, "")
    for line in recipe_path(name).read_text(encoding="utf-8").splitlines():
        key, _, value = line.removeprefix("# ").partition(": ")
        if line.startswith("# ") and key.lower() in header:
            header[key.lower()] = value.strip()
    return header


def load_recipe(name: str, overrides: Iterable[str] = (), variant: str | None = None) -> Recipe:
    """A recipe by name or path, one of its variants if asked for, and `key=value` overrides on top."""
    values = _read(recipe_path(name))
    variants = values.pop("variants", {})
    if not isinstance(variants, dict) or not all(isinstance(changes, list) for changes in variants.values()):
        raise CrateError(f"{name}: variants is a mapping of names to lists of key=value")
    if variant is not None:
        if variant not in variants:
            known = variants or {"none": ()}
            raise unknown_name(f"variant of {name}", variant, known)
        overrides = [*map(str, variants[variant]), *overrides]
    for override in overrides:
        _override(values, override)
    return build_recipe(values)


def build_recipe(values: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values; an unknown key is refused with the nearest known one, a wrong type by name."""
    from pydantic import TypeAdapter, ValidationError

    _refuse_unknown(Recipe, values, "")
    try:
        return TypeAdapter(Recipe).validate_python(_python_names(values))
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, CrateError):
            raise cause from None
        key = ".".join(str(part).removesuffix("_") for part in first["loc"])
        raise CrateError(f"{key}: {first['msg'].lower()}, not {first['input']!r}") from None


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe to a file, whole or not at all."""
    import yaml

    temporary = path.with_suffix(".tmp")
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _parse(text: str) -> Any:
    """YAML, with 1e-3 as a number: version 1.1 of the language wants 1.0e-3."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    exponent = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return yaml.load(text, Loader)


def _read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    import yaml

    if path in above:
        raise CrateError(f"{path}: is its own base")
    try:
        values = _parse(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CrateError(f"{path}: is not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise CrateError(f"{path}: a recipe is a mapping of sections such as model and data")
    base = values.pop("base", None)
    if base is None:
        return values
    inherited = _read(recipe_path(str(base)), (*above, path))
    inherited.pop("variants", None)
    return _merge(inherited, values)


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _override(values: dict[str, Any], override: str) -> None:
    import yaml

    key, equals, text = override.partition("=")
    if not equals or not key:
        raise CrateError(f"override {override!r} is not of the form key=value, such as optimise.lr=0.001")
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise CrateError(f"override {override!r}: {section} is not a section")
    try:
        values[last] = _parse(text)
    except yaml.YAMLError:
        values[last] = text


def _refuse_unknown(section: Any, values: Any, path: str) -> None:
    if not isinstance(values, Mapping):
        raise CrateError(f"{path.rstrip('.') or 'recipe'} must be a section of key: value lines, not {values!r}")
    known = {f.name.removesuffix("_"): f for f in dataclasses.fields(section)}
    for key, value in values.items():
        if key not in known:
            raise unknown_name("recipe key", f"{path}{key}", [path + name for name in known])
        kind = known[key].type
        if dataclasses.is_dataclass(kind):
            _refuse_unknown(kind, value, f"{path}{key}.")


def _python_names(values: Mapping[str, Any]) -> dict[str, Any]:
    model = dict(values.get("model", {}))
    if "from" in model:
        model["from_"] = model.pop("from")
    return {**values, "model": model}
