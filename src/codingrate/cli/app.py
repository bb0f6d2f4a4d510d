"""The verbs of `crate`, and what happens to errors: one line, a code of 1, and a traceback only for `--debug`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from .. import __version__
from ..errors import CrateError
from . import (
    attention,
    bench,
    convert,
    demo,
    evaluate,
    fill,
    generate,
    glue,
    inspect,
    models,
    perplexity,
    probe,
    reconstruct,
    segment,
    train,
    verify,
)

app = typer.Typer(
    name="crate",
    help="White-box transformers: see what each layer does, and measure it against the objective.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("reconstruct")(reconstruct.reconstruct)
app.command("inspect")(inspect.inspect)
app.command("attention")(attention.attention)
app.command("segment")(segment.segment)
app.command("probe")(probe.probe)
app.command("generate")(generate.generate)
app.command("fill")(fill.fill)
app.command("perplexity")(perplexity.perplexity)
app.command("glue")(glue.glue)
app.command("verify")(verify.verify)
app.command("recipes")(train.recipes)
app.command("models")(models.models)
app.command("convert")(convert.convert)
app.command("bench")(bench.bench)


def _version(show: bool) -> None:
    if show:
        print(f"codingrate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; exit with 0, with 1 for an error of the work, with 2 for an error of the call."""
    # A thread that waits for the others spins for milliseconds by default. Where another process, such as a loader
    # worker, wants the core, that makes training several times slower; a short spin costs little.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    command = typer.main.get_command(app)
    try:
        code = command.main([a for a in arguments if a != "--debug"], prog_name="crate", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = _say("stopped", 130)
    except (CrateError, OSError) as error:
        if debug:
            raise
        code = _say(str(error), 1)
    except Exception as error:
        # A wrong call. Typer has carried a copy of click since 0.25, so the class is not named here.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            code = 2
        else:
            code = _say(f"{error.format_message()} (see crate --help)", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    print(f"crate: {' '.join(message.split())}", file=sys.stderr)
    return code
