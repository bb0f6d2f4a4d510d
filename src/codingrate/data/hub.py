"""The Hugging Face hub: which names are ids there, and what to say when it does not answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CrateError, unknown_name
from .tables import TABLES, first_line

_FILES = (*TABLES, ".txt", ".md")  # a name that ends so is a file that is not there, not a hub id


def is_hub_id(name: str) -> bool:
    """Whether a name can only be `owner/name` on the hub."""
    is_file = Path(name).exists() or Path(name).suffix in _FILES
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name)) and not is_file


def local_path(name: str, known: Iterable[str]) -> Path | None:
    """Where a dataset lies on disk, or None for a hub id; a name that is neither is held against the known ones."""
    local = Path(name).expanduser()
    if local.exists():
        return local
    if is_hub_id(name):
        return None
    if "/" in name or "\\" in name or local.suffix or name.startswith("~"):
        raise CrateError(f"no such file or folder: {local}")
    raise unknown_name("dataset", name, known)


def open_hub(
    name: str,
    hub: str,
    streaming: bool,
    *,
    config: str | None = None,
    splits: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The splits of a hub dataset: all of them, or those asked for (our name → the hub's)."""
    import datasets

    chosen = (hub,) if config is None else (hub, config)
    try:
        if splits is None:
            return dict(datasets.load_dataset(*chosen, streaming=streaming))
        return {
            split: datasets.load_dataset(*chosen, split=there, streaming=streaming) for split, there in splits.items()
        }
    except Exception as error:  # no network, no such set, gated, damaged: all end in the same advice
        lead = f"{name!r} is no local path and cannot be loaded from the hub"
        if name != hub:
            lead = f"cannot load {name!r} ({hub} on the Hugging Face hub)"
        raise CrateError(f"{lead}; give the path of a local copy [{first_line(error)}]") from error
