"""Recipe files: shipped recipes by name, own recipes by path, inheritance, variants and `key=value` overrides."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import TypeAdapter, ValidationError

from .._files import write_text
from ..errors import CrateError, shown, unknown_name, validation_error
from .schema import Following, Recipe

SHIPPED = Path(__file__).parent
MAX_BYTES, MAX_DEPTH = 2**17, 50
"""Largest size of a recipe or study file, and largest number of nested brackets in it."""

Overrides = Mapping[str, Any] | Iterable[str | Mapping[str, Any]]
"""Recipe keys with other values: `key=value` strings, or mappings such as `{"optimizer.lr": 1e-3}`."""

HEADER = ("what", "paper", "command", "time", "metric")
"""Keys of the comment at the top of every shipped recipe, one line each."""


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes, sorted."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """Return the file of a shipped recipe, or of an own recipe given by its path."""
    if name in recipe_names():  # checked first, because a data or run folder often has the name of its recipe
        return SHIPPED / f"{name}.yaml"
    path = Path(name)
    with suppress(OSError, ValueError):  # a name that no file can have
        if path.is_file():
            return path
    if path.suffix in (".yaml", ".yml"):
        raise CrateError(f"no such recipe file: {name}; `crate recipes` lists the shipped recipes")
    raise unknown_name("recipe", name, recipe_names())


def recipe_header(name: str) -> dict[str, str]:
    """Return the comment at the top of a recipe file by key."""
    header = dict.fromkeys(HEADER, "")
    for line in read_recipe_text(recipe_path(name)).splitlines():
        key, _, value = line.removeprefix("# ").partition(": ")
        if line.startswith("# ") and key.lower() in header:
            header[key.lower()] = value.strip()
    return header


def load_recipe(name: str, overrides: Overrides = (), variant: str | None = None) -> Recipe:
    """Load a recipe by name or path, apply one of its variants, then the overrides."""
    values, chosen = _read(recipe_path(name))
    variants = values.pop("variants", {})
    if not isinstance(variants, dict) or not all(isinstance(changes, list) for changes in variants.values()):
        raise CrateError(f"{name}: `variants` must be a mapping of names to lists of key=value")
    if variant is not None:
        if variant not in variants:
            raise unknown_name(f"variant of {name}", variant, variants or {"none": ()})
        for change in variants[variant]:
            _set(values, *_split_override(str(change)))
    pairs: list[tuple[str, Any]] = []
    for override in [overrides] if isinstance(overrides, Mapping) else overrides:
        pairs += override.items() if isinstance(override, Mapping) else [_split_override(override)]
    model = values.get("model")
    if isinstance(model, dict) and "from" not in model and any(key == "model.from" for key, _ in pairs):
        values["model"] = {}  # the recipe describes a new model; the source brings its own architecture
    for key, value in pairs:
        _set(values, key, value)
    recipe = build_recipe(values)
    chosen += [key for key, _ in pairs]
    fixed = [key for key in get_args(Following) if key in chosen or key.split(".")[0] in chosen]
    if recipe.schedule.made_for is None or not fixed:
        return recipe
    return change_recipe(recipe, {"schedule.fixed": sorted({*recipe.schedule.fixed, *fixed})})


def change_recipe(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other values at some keys."""
    values = recipe.to_dict()
    for key, value in changes.items():
        _set(values, key, value)
    return build_recipe(values)


def build_recipe(values: Mapping[str, Any]) -> Recipe:
    """Build a recipe from plain values; an unknown key is refused with the nearest known key."""
    _refuse_unknown(Recipe, values, "")
    try:
        return TypeAdapter(Recipe).validate_python(_with_python_names(values))
    except ValidationError as error:
        raise validation_error(error) from None


def recipe_keys(section: Any = Recipe, path: str = "") -> dict[str, tuple[Any, str]]:
    """Return for each recipe key its default and its description."""
    keys: dict[str, tuple[Any, str]] = {}
    for field in dataclasses.fields(section):
        name = path + field.name.removesuffix("_")
        if dataclasses.is_dataclass(field.type):
            keys |= recipe_keys(field.type, f"{name}.")
        else:
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            description = section.__pydantic_fields__[field.name].description or ""
            keys[name] = default, " ".join(description.split())
    return keys


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe to a file."""
    write_text(path, yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True))


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads 1e-3 as a number (YAML 1.1 asks for 1.0e-3) and refuses aliases.

    A few aliases of aliases can stand for more values than fit into memory, or for a value that contains itself.
    """

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Read an opening bracket; the time that the scanner needs for all of them is quadratic in their number."""
        if self.flow_level >= MAX_DEPTH:
            raise yaml.YAMLError(f"more than {MAX_DEPTH} brackets are nested")
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read the next value."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(f"line {event.start_mark.line + 1}: anchors and aliases are not supported")
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_recipe_text(path: Path) -> str:
    """Return the text of a recipe or study file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise CrateError(f"{path}: is larger than {MAX_BYTES:,} bytes, so it is no recipe; give another file")
        return content.decode()
    except UnicodeDecodeError as error:
        raise CrateError(f"{path}: not a YAML file ({error})") from None


def _parse(text: str) -> Any:
    """Parse YAML; any text that is none raises a YAMLError."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("lists are nested too deeply") from None
    except (ValueError, LookupError, AttributeError, OverflowError) as error:  # !!int x, !!bool x, 2024-99-99
        raise yaml.YAMLError(f"a value cannot be read: {error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping that a recipe or study file holds."""
    try:
        values = _parse(read_recipe_text(path))
    except yaml.YAMLError as error:
        raise CrateError(f"{path}: not a YAML file ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise CrateError(f"{path}: the file must be a mapping of keys, such as model and data, to values")
    return values


def _read(path: Path, inherited_by: tuple[Path, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a file with those it inherits, and the keys that are set on top of `schedule.made_for`."""
    if path in inherited_by:
        raise CrateError(f"{path}: the recipe inherits from itself; change `base`")
    values = read_yaml(path)
    base = values.pop("base", None)
    if base is None:
        return values, []
    inherited, chosen = _read(recipe_path(str(base)), (*inherited_by, path))
    inherited.pop("variants", None)
    sections = {name: part for name, part in values.items() if isinstance(part, dict)}
    keys = [f"{name}.{key}" for name, part in sections.items() for key in part]
    return _merge(inherited, values), [] if "schedule.made_for" in keys else [*chosen, *keys]


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _split_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=") if isinstance(override, str) else ("", "", "")
    if not equals or not key:
        raise CrateError(f"override {shown(override)} must have the form key=value, such as optimizer.lr=0.001")
    try:
        return key, _parse(text)
    except yaml.YAMLError:
        return key, text


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for name in sections:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise CrateError(f"override {key!r}: {name} is not a section")
    values[last] = value


def _refuse_unknown(section: Any, values: Any, path: str) -> None:
    if not isinstance(values, Mapping):
        raise CrateError(f"{path.rstrip('.') or 'a recipe'} must be a section of key: value lines, not {shown(values)}")
    known = {f.name.removesuffix("_"): f for f in dataclasses.fields(section)}
    for key, value in values.items():
        if key not in known:
            raise unknown_name("recipe key", f"{path}{key}", [path + name for name in known])
        kind = known[key].type
        if dataclasses.is_dataclass(kind):
            _refuse_unknown(kind, value, f"{path}{key}.")


def _with_python_names(values: Mapping[str, Any]) -> dict[str, Any]:
    model = dict(values.get("model", {}))
    if "from" in model:
        model["from_"] = model.pop("from")
    return {**values, "model": model}
