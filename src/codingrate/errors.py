"""The error type for bad input, and messages that help: the nearest known name, one line per validation error."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

ALIASES = {
    "lr": "optimizer.lr", "learning_rate": "optimizer.lr", "wd": "optimizer.weight_decay",
    "weight_decay": "optimizer.weight_decay", "optim": "optimizer.name", "label_smoothing": "optimizer.label_smoothing",
    "grad_clip": "optimizer.max_grad_norm", "clip_grad": "optimizer.max_grad_norm",
    "epochs": "schedule.epochs", "num_epochs": "schedule.epochs", "num_train_epochs": "schedule.epochs",
    "batch_size": "schedule.batch_size", "batch": "schedule.batch_size", "bs": "schedule.batch_size",
    "steps": "schedule.steps", "max_steps": "schedule.steps", "max_iters": "schedule.steps",
    "warmup": "schedule.warmup_epochs", "warmup_epochs": "schedule.warmup_epochs",
    "warmup_steps": "schedule.warmup_steps", "min_lr": "schedule.final_lr",
    "heads": "model.config.num_attention_heads", "num_heads": "model.config.num_attention_heads",
    "layers": "model.config.num_hidden_layers", "num_layers": "model.config.num_hidden_layers",
    "depth": "model.config.num_hidden_layers", "dim": "model.config.hidden_size",
    "width": "model.config.hidden_size", "embed_dim": "model.config.hidden_size",
    "hidden_size": "model.config.hidden_size", "patch_size": "model.config.patch_size",
    "dropout": "model.config.dropout", "img_size": "augment.image_size", "image_size": "augment.image_size",
    "input_size": "augment.image_size", "dataset": "data.name", "num_workers": "data.workers",
    "workers": "data.workers", "seed": "run.seed", "fp16": "run.precision", "bf16": "run.precision",
    "amp": "run.precision", "ema": "run.ema", "block_size": "text.block", "context_length": "text.block",
    "tokenizer": "text.tokenizer", "max_length": "text.max_length", "pretrained": "model.from",
    "checkpoint": "model.from",
}  # fmt: skip
"""Recipe keys, and with them config fields, by the names that other libraries give them."""


class CrateError(ValueError):
    """Bad input; the message is one line that names the argument, option or file and says what to do.

    Names and values in it come from anywhere: line breaks become spaces, lone surrogates their escapes, and the middle
    of a message that no one would read is left out.
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.encode("utf-8", "backslashreplace").decode().splitlines())
        super().__init__(line if len(line) <= 4000 else f"{line[:2000]} … {line[-1000:]}")


def missing_extra(what: str, libraries: str, extra: str) -> CrateError:
    """Return the error for optional libraries that are not installed; it says how to install them."""
    return CrateError(f"{what} needs {libraries}; run pip install '.[{extra}]' in a clone of the repository")


def unknown_name(kind: str, name: object, known: Iterable[str], meant: str | None = None) -> CrateError:
    """Return the error for a name that is not in a registry; it suggests what was `meant`, or the nearest known one."""
    names = sorted(known)
    near = [meant] if meant else difflib.get_close_matches(str(name)[:100], names, n=1, cutoff=0.4)
    if kind in ("recipe key", "config field") and (alias := ALIASES.get(str(name).rpartition(".")[2])):
        near = [alias.rpartition(".")[2] if kind == "config field" else alias]
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return CrateError(f"unknown {kind} {shown(name)}; {hint}")


def check_positive(**sizes: int | None) -> None:
    """Raise an error for the first size that is not a positive integer; None means that the size was not given."""
    for name, value in sizes.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63):
            raise CrateError(f"{name} is {shown(value)}; it must be a positive integer")


def shown(value: object) -> str:
    """Return the `repr` of a value for a message, cut to 100 characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # numbers of thousands of digits, values that contain themselves
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 100 else f"{text[:99]}…"


def validation_error(error: ValidationError, section: str = "") -> CrateError:
    """Return the first problem that pydantic found, in one line that starts with the key in a recipe."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, CrateError):
        return cause
    key = ".".join(str(part).removesuffix("_") for part in (section, *first["loc"]) if part != "")
    rule = re.sub("^Input should be", "it must be", first["msg"].removeprefix("Value error, "))
    return CrateError(f"{key} is {shown(first['input'])}; {rule[0].lower()}{rule[1:]}")


def one_line_errors(section: str) -> Callable[[type[T]], type[T]]:
    """Decorate a pydantic dataclass so that its constructor raises `CrateError`s, which name the recipe's section."""

    def decorate(cls: type[T]) -> type[T]:
        validate = cls.__init__

        @functools.wraps(validate)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            from pydantic import ValidationError

            try:
                validate(self, *args, **kwargs)
            except ValidationError as error:
                raise validation_error(error, section) from None

        cls.__init__ = init  # type: ignore[method-assign]
        return cls

    return decorate
