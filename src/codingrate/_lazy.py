"""Names of a package that load what they need on first use, and functions that run when a module is first imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def names_of_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names its stub `__init__.pyi` imports."""
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    origin = {alias.name: node.module for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in origin:
            raise AttributeError(f"No {package} attribute {name}")
        module = origin[name]
        value = getattr(import_module(f"{package}.{module}"), name) if module else import_module(f"{package}.{name}")
        sys.modules[package].__dict__[name] = value  # also where a module of this name has taken the place
        return value

    return load, lambda: sorted(origin), sorted(origin)


class AfterImport(MetaPathFinder):
    """Run a function with a module as soon as it has been imported; now, if it is imported already."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        loaded = [name for name in actions if name in sys.modules]
        for name in loaded:
            actions[name](sys.modules[name])
        self.waiting = {name: action for name, action in actions.items() if name not in loaded}
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that other finders have, with a loader that calls the function after it has run."""
        action = self.waiting.pop(fullname, None)  # so that the search below does not end here again
        spec = find_spec(fullname) if action else None
        if action is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
