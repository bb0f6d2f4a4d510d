"""`crate models`: every model by name, with its size."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, print_json, print_table, progress, thousands


def models(
    pattern: Annotated[str, typer.Argument(help="Shell pattern such as 'crate-*'.")] = "*",
    as_json: Json = False,
) -> None:
    """List the models by name, with width, layers, heads, parameters and operations."""
    from dataclasses import asdict

    from ..errors import CrateError
    from ..models.presets import list_models

    names = list_models(pattern)
    if not names:
        raise CrateError(f"no model matches {pattern!r}; `crate models` lists them all")
    with progress("counting", len(names)) as advance:
        from ..models.counts import count_model

        rows = []
        for name in names:
            rows.append(count_model(name))
            advance()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        "Models",
        ("name", "d", "L", "K", "parameters", "FLOPs"),
        [
            (
                r.name,
                str(r.width),
                str(r.layers),
                str(r.heads),
                f"{r.parameters:,}",
                f"{thousands(r.flops)}/{r.unit}",
            )
            for r in rows
        ],
    )
