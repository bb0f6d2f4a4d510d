"""Checkpoint files: read them without running their code, rename their tensors, build models from them."""

from __future__ import annotations

import argparse
import json
import math
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..errors import CrateError
from .base import CratePreTrainedModel
from .presets import build_config, model_class

Report = Callable[[str], None]

_WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts store the weights, beside optimizer, epoch and the like."""
_LARGEST_TEXT = 64 * 2**20  # bytes of a JSON file or of a pickle without its tensors; real ones have less than 10 MB
_TABLES = ("class_token", "mask_token", "positions.weight")
_PREFIXES = ("module.", "_orig_mod.")  # prefixes that data-parallel training and compilation add to every key


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a mapping, such as config.json; a damaged file raises an error of one line."""
    try:
        if path.stat().st_size > _LARGEST_TEXT:
            raise ValueError(f"it is larger than {_LARGEST_TEXT // 2**20} MB")
        contents = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CrateError(f"{path.name} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise CrateError(f"{path.name} cannot be read ({error}); save the model again") from error
    if not isinstance(contents, dict):
        raise CrateError(f"{path.name} cannot be read (it holds a {type(contents).__name__}); save the model again")
    return contents


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings; one that names code to run raises an error."""
    settings = read_json(path)
    if "auto_map" in settings:
        raise CrateError(f"{path.name} names code to run (auto_map), which is never run; remove the entry")
    return settings


def read_folder(folder: Path, *others: str) -> dict[str, Tensor]:
    """Read every tensor of a folder: from model.safetensors, from its shards, or else from the first of `others`."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        names = ("model.safetensors", *others)
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None:
            raise CrateError(f"holds no weights; expected {' or '.join(names)}")
        return read_named(file)
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise CrateError(f"{index.name} has no weight_map of tensors to files; save the model again")
    files = sorted({Path(name).name for name in shards.values()})  # files of this folder, never of another one
    return {key: tensor for file in files for key, tensor in read_named(folder / file).items()}


def read_named(file: Path) -> dict[str, Tensor]:
    """Read every tensor of a file; its name begins the message of an error."""
    try:
        return read_tensors(file)
    except CrateError as error:
        raise CrateError(f"{file.name} {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a file to the CPU, without wrapper and prefixes.

    A file is read as safetensors by its suffix, else as a PyTorch file. Unpickling uses `weights_only`: nothing in the
    file is ever called, and a file that needs more raises an error. PyTorch files are memory-mapped, so that the
    state of an optimizer, twice the size of the weights, is not read. Copy the tensors that you keep.
    """
    try:
        if not path.is_file():
            raise CrateError("no such file")
        contents = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
        tensors = _unwrap(contents)
        _check_size(tensors, path.stat().st_size)
    except OSError as error:
        raise CrateError(f"cannot be read ({error.strerror or error})") from error
    while prefix := next((p for p in _PREFIXES if all(key.startswith(p) for key in tensors)), None):
        tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def _read_safetensors(path: Path) -> object:
    try:
        return load_file(path, device="cpu")
    except OSError:
        raise
    except Exception as error:  # a header of garbage may raise anything
        raise CrateError("is truncated or not a safetensors file; download it again") from error


def _read_torch(path: Path) -> object:
    with path.open("rb") as file:
        start = file.read(4)
    zipped = start == b"PK\x03\x04"  # the format of PyTorch since 1.6, the only one that can be mapped
    bare = start[:1] == b"\x80" and start[1:2] > b"\x02"  # written by pickle itself, not by torch.save
    try:
        if zipped:
            _check_archive(path)
        else:
            with path.open("rb") as file:
                for _ in range(4):  # magic number, version, system, contents
                    _check_pickle(file)
        # Training files of the MAE convention contain their command line, a Namespace: attributes without behavior.
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except CrateError:
        raise
    except Exception as error:  # an unpickler that reads garbage may raise anything
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code or bare:
            raise _code_error(code[1] if code else "a bare pickle") from error
        raise CrateError("is truncated or not a PyTorch checkpoint; download it again") from error


def _code_error(kind: str) -> CrateError:
    return CrateError(
        f"holds more than tensors ({kind}), which could run code, and was not opened; re-save it as a plain "
        "state dict (torch.save(model.state_dict(), …)) or as safetensors"
    )


def _check_archive(path: Path) -> None:
    """Raise an error for an archive whose entries would take more memory than the file has bytes, or for TorchScript.

    `torch.save` never compresses, so a compressed entry can only be a decompression bomb.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.filename.endswith("constants.pkl") for entry in entries):
            raise _code_error("TorchScript")
        plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not plain or sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise CrateError("is a compressed archive, which torch.save never writes, and was not opened")
        for entry in entries:
            if entry.filename.endswith(".pkl"):
                if entry.file_size > _LARGEST_TEXT:
                    raise CrateError(f"{entry.filename} has {entry.file_size} bytes, too many for a list of tensors")
                with archive.open(entry) as file:
                    _check_pickle(file)


def _check_pickle(file: IO[bytes]) -> None:
    """Raise an error if a pickle calls what PyTorch allows, but what can fill the memory from a few bytes."""
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "GLOBAL" and str(argument).split()[-1] in ("bytearray", "encode"):
            raise _code_error(str(argument).replace(" ", "."))


def _check_size(tensors: Mapping[str, Tensor], stored: int) -> None:
    """Raise an error if tensors declare far more numbers than the file stores, such as by strides of zero.

    Tied weights may be listed several times.
    """
    dense = {key: tensor for key, tensor in tensors.items() if tensor.layout is torch.strided}
    sizes = {key: tensor.numel() * tensor.element_size() for key, tensor in dense.items()}
    if sum(sizes.values()) > 4 * stored:
        largest = max(sizes, key=lambda key: sizes[key])
        shape = tuple(tensors[largest].shape)
        raise CrateError(f"{largest} has shape {shape}, but the whole file has only {stored} bytes; it is damaged")


def _unwrap(contents: object) -> dict[str, Tensor]:
    """Return the innermost mapping of names to tensors; raise an error for anything else."""
    for _ in range(4):  # more levels are not wrappers, and a file may contain itself
        if isinstance(contents, Mapping):
            inner = (contents[key] for key in _WRAPPERS if isinstance(contents.get(key), Mapping))
            contents = next(inner, contents)
    if not isinstance(contents, Mapping):
        raise CrateError(f"holds a {type(contents).__name__}, not a mapping of names to tensors")
    if all(isinstance(contents.get(key), Mapping) for key in ("student", "teacher")):
        raise CrateError("looks like a DINO training file (student and teacher), not a released CRATE checkpoint")
    others = [str(key) for key, value in contents.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if not contents or len(others) == len(contents):
        held = f"; it holds {join_names(others)}" if others else ""
        raise CrateError(f"holds no tensors, not even under {' or '.join(map(repr, _WRAPPERS))}{held}")
    if others:
        raise CrateError(f"mixes tensors with other values: {join_names(others)}; keep the state dict only")
    return dict(contents)


def join_names(names: Iterable[str], limit: int = 3) -> str:
    """Join the first few names, and state how many more there are."""
    names = list(names)
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def prefixed(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return a table of names with a prefix before each name of ours and each key of theirs."""
    return {ours + name: " ".join(theirs + key for key in keys.split()) for name, keys in names.items()}


@dataclass(frozen=True)
class ImportPlan:
    """A checkpoint as one of our models: its class by name, its config fields, and the source of each parameter.

    `names` maps names of ours, without the prefix `crate.`, to keys of the checkpoint. `{}` stands for the index of a
    layer and `*` for both weight and bias. Several keys, separated by spaces, are concatenated; no key stands for the
    identity map. Names that the model does not have are ignored.
    """

    title: str
    model: str
    fields: Mapping[str, Any]
    names: Mapping[str, str]
    unused: str  # regular expression of keys that the model does not use
    transposed: bool = False  # whether matrices of the layers are stored as (in, out)

    def keys(self, name: str) -> list[str]:
        """Return the keys of the checkpoint that become the parameter `name`."""
        index = re.search(r"\d+", name := name.removeprefix("crate."))
        ours = name.replace(index[0], "{}", 1) if index else name
        module, _, kind = ours.rpartition(".")
        theirs = self.names[ours] if ours in self.names else self.names[f"{module}.*"].replace("*", kind)
        return theirs.replace("{}", index[0] if index else "").split()


def build_imported(plan: ImportPlan, tensors: Mapping[str, Tensor], report: Report) -> CratePreTrainedModel:
    """Build the model of a plan in float32 and eval mode, without drawing random weights first."""
    config = build_config(plan.fields)
    with torch.device("meta"):
        model = model_class(plan.model)(config)
    sources = {name: plan.keys(name) for name in model.state_dict()}
    needed = {key for keys in sources.values() for key in keys}
    if missing := sorted(needed - set(tensors)):
        raise CrateError(f"{plan.title} without {join_names(missing)}; the checkpoint is incomplete")
    if unexpected := sorted(key for key in set(tensors) - needed if not re.fullmatch(plan.unused, key)):
        raise CrateError(f"{plan.title} with unexpected tensors: {join_names(unexpected)}")
    values = {}
    for name, empty in model.state_dict().items():
        transposed = plan.transposed and "layers." in name and empty.ndim == 2
        value = _value(name, sources[name], tensors, empty.shape[::-1] if transposed else empty.shape)
        values[name] = value.mT.contiguous() if transposed else value
    model.load_state_dict(values, strict=True, assign=True)
    model.tie_weights()
    if dtypes := {str(tensors[key].dtype) for key in needed} - {"torch.float32"}:
        report(f"stored as {join_names(sorted(dtypes))}: cast to torch.float32")
    return model.eval()


def _value(name: str, keys: list[str], tensors: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """Convert stored tensors to a parameter: float32, contiguous, in its own memory and of a shape.

    Tables that belong to no module are stored with three axes. A convolution (d, channels, P, P) becomes the projection
    of patches flattened by row, column, channel.
    """
    if not keys:
        return torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
    parts = [to_float32(key, tensors[key]) for key in keys]
    value = parts[0] if len(parts) == 1 else torch.cat(parts)
    stored, expected = tuple(value.shape), tuple(shape)
    if name.endswith(_TABLES) and not keys[0].endswith(".weight"):
        expected = (1,) * (3 - len(shape)) + expected
    if len(shape) == 2 and value.ndim == 4:
        channels = max(value.shape[1], 1)
        side = math.isqrt(shape[1] // channels)
        expected = (shape[0], channels, side, side)
        value = value.permute(0, 2, 3, 1)
    if stored != expected:
        raise CrateError(f"{join_names(keys)} has shape {stored}; expected {expected}")
    return value.reshape(shape).contiguous()


def to_float32(name: str, tensor: Tensor) -> Tensor:
    """Copy a stored tensor to float32; raise an error if it is not a dense tensor of finite numbers."""
    if not tensor.is_floating_point() or tensor.is_meta:
        raise CrateError(f"{name} is {tensor.dtype} on {tensor.device}; expected plain numbers")
    return copy_finite(name, tensor, torch.float32)


def copy_finite(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy a stored tensor to `dtype`, contiguous; raise an error if it is sparse or holds NaN or infinity."""
    if tensor.layout is not torch.strided:
        raise CrateError(f"{name} is {tensor.layout}; expected a dense tensor")
    value = tensor.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
    if not value.isfinite().all():
        raise CrateError(f"{name} holds NaN or infinity; the file is damaged, or training diverged")
    return value
