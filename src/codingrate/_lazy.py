"""Names that are imported on first use, so that a package costs nothing until it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose public names live in the submodules `homes` gives.

    A name that is its own home is a submodule.
    """

    def lazy_getattr(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        return module if homes[name] == name else getattr(module, name)

    def lazy_dir() -> list[str]:
        return sorted({*homes, *sys.modules[package].__all__})

    return lazy_getattr, lazy_dir
