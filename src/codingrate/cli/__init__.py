"""The command `crate`: parse, call, print. Everything heavy is imported by the verb that needs it."""

from .app import main

__all__ = ["main"]
