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


class CrateError(ValueError):
    """Bad input; the message is one line that names the argument, option or file and says what to do."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> CrateError:
    """Return the error for a name that is not in a registry; it suggests the nearest known one."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return CrateError(f"unknown {kind} {name!r}; {hint}")


def validation_error(error: ValidationError, section: str = "") -> CrateError:
    """Return the first problem that pydantic found, in one line that starts with the key in a recipe."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, CrateError):
        return cause
    key = ".".join(str(part).removesuffix("_") for part in (section, *first["loc"]) if part != "")
    rule = re.sub("^Input should be", "it must be", first["msg"].removeprefix("Value error, "))
    return CrateError(f"{key} is {first['input']!r}; {rule[0].lower()}{rule[1:]}")


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
