"""Checkpoint files: read without running what is in them, and model folders written whole or not at all."""

from __future__ import annotations

import argparse
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import CrateError

_WRAPPERS = ("state_dict", "model")
"""Where training scripts keep the weights, beside optimizer, epoch and the like."""
_PREFIXES = ("module.", "_orig_mod.")
"""What data-parallel training and compilation put in front of every key."""
_SAVED = re.compile(
    r".*\.safetensors(\.index\.json)?|(config|preprocessor_config|generation_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt|chat_template\.jinja"
)
"""Files that saving a model writes, and that a later save may replace."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU, without wrapper and prefixes.

    Safetensors by suffix, PyTorch's own format otherwise. Unpickling runs with `weights_only`: nothing in the
    file is ever called, and a file that needs more is refused. PyTorch files are mapped, not read, so that
    the optimizer's state, twice the size of the weights, costs nothing. Copy what you keep.
    """
    try:
        if path.is_dir():
            raise CrateError("is a folder; give the file, or open a saved model by from_pretrained")
        if not path.is_file():
            raise CrateError("no such file")
        contents = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    except OSError as error:
        raise CrateError(f"cannot be read ({error.strerror or error})") from error
    return strip_prefixes(unwrap(contents))


def _read_safetensors(path: Path) -> object:
    try:
        return load_file(path, device="cpu")
    except SafetensorError as error:
        raise CrateError("is cut short or no safetensors file; download it again") from error


def _read_torch(path: Path) -> object:
    with path.open("rb") as file:
        start = file.read(4)
    zipped = start == b"PK\x03\x04"  # PyTorch's own since 1.6, the only one that can be mapped
    bare = start[:1] == b"\x80" and start[1:2] > b"\x02"  # a pickle by Python's own hand, not by PyTorch's
    try:
        # Training files of the MAE convention keep their command line, a Namespace: attributes, no behaviour.
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # an unpickler that meets garbage raises anything
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code or bare or "TorchScript" in str(error):
            kind = code[1] if code else "a bare pickle" if bare else "TorchScript"
            raise CrateError(
                f"holds more than tensors ({kind}), which could run code, and "
                "was not opened; re-save it as a plain state dict (torch.save(model.state_dict(), …)) or as "
                "safetensors"
            ) from error
        raise CrateError("is cut short or no PyTorch checkpoint; download it again") from error


def unwrap(contents: object) -> dict[str, Tensor]:
    """The innermost mapping of names to tensors; anything else is refused."""
    for _ in range(4):  # more wrappers are no wrappers, and a file may hold itself
        if isinstance(contents, Mapping):
            inner = (contents[key] for key in _WRAPPERS if isinstance(contents.get(key), Mapping))
            contents = next(inner, contents)
    if not isinstance(contents, Mapping):
        raise CrateError(f"holds a {type(contents).__name__}, not a mapping of names to tensors")
    if all(isinstance(contents.get(key), Mapping) for key in ("student", "teacher")):
        raise CrateError("looks like a DINO training file (student and teacher), not a released CRATE checkpoint")
    strays = [str(key) for key, value in contents.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if not contents or len(strays) == len(contents):
        held = f"; it holds {listed(strays)}" if strays else ""
        raise CrateError(f"holds no tensors, also not under {' or '.join(map(repr, _WRAPPERS))}{held}")
    if strays:
        raise CrateError(f"mixes tensors with something else: {listed(strays)}; keep the state dict only")
    return dict(contents)


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors without a prefix that all keys carry, however often it was put in front."""
    names = dict(tensors)
    while prefix := next((p for p in _PREFIXES if all(key.startswith(p) for key in names)), None):
        names = {key.removeprefix(prefix): tensor for key, tensor in names.items()}
    return names


def listed(names: list[str], limit: int = 3) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def plain_numbers(name: str, tensor: Tensor) -> Tensor:
    """A stored tensor in float32 with memory of its own; one that is no table of finite numbers is refused."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.is_meta:
        raise CrateError(f"{name} is {tensor.dtype}, {tensor.layout} on {tensor.device}; expected plain numbers")
    value = tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if not value.isfinite().all():
        raise CrateError(f"{name} holds NaN or infinity; the file is damaged")
    return value


def note_casts(tensors: Iterable[Tensor], report: Callable[[str], None]) -> None:
    """Say which kinds of numbers were stored, where they were others than ours."""
    if kinds := {str(tensor.dtype) for tensor in tensors} - {"torch.float32"}:
        report(f"stored as {listed(sorted(kinds))}: cast to torch.float32")


def check_destination(directory: Path, overwrite: bool) -> None:
    """Refuse a folder with something in it; with `overwrite`, one with something other than a saved model."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise CrateError(f"{directory}: is a file; give a folder")
    if directory.resolve() == Path.cwd():  # putting another in its place would pull the rug from under the caller
        raise CrateError(f"{directory}: is the current folder; give one of its own")
    inside = sorted(entry.name for entry in directory.iterdir())
    if inside and not overwrite:
        raise CrateError(f"{directory}: is not empty; give another folder or overwrite=True")
    if foreign := [name for name in inside if not _SAVED.fullmatch(name)]:
        raise CrateError(f"{directory}: holds more than a saved model ({listed(foreign)}); give another folder")


def write_folder(directory: Path, save: Callable[[Path], None], overwrite: bool) -> None:
    """Let `save` fill a temporary folder beside `directory`, then put it in its place.

    Whoever looks sees the old folder, none, or the new one complete; never half a model.
    """
    directory = directory.resolve()
    check_destination(directory, overwrite)
    temporary, old = (directory.with_name(f".{directory.name}.{uuid4().hex[:8]}.{kind}") for kind in ("new", "old"))
    try:
        temporary.mkdir(parents=True)
        save(temporary)
        check_destination(directory, overwrite)  # it may have been filled in the meantime
        if directory.exists():
            directory.rename(old)
        temporary.rename(directory)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise CrateError(" ".join(f"{directory}: cannot be written ({why})".split())) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not directory.exists():
            old.rename(directory)
        shutil.rmtree(old, ignore_errors=True)
