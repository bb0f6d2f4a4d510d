"""The verbs of `crate` and the handling of errors: one line on standard error, a traceback only with `--debug`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from .. import __version__
from ..errors import CrateError
from . import bench, demo, evaluate, inspect, predict, study, text, train, verify

UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # typer carries click's classes since 0.25

app = typer.Typer(
    name="crate",
    help="White-box transformers: train them, look inside, and measure every layer against the objective.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, verb in {
    "demo": demo.demo,
    "train": train.train,
    "finetune": train.finetune,
    "predict": predict.predict,
    "evaluate": evaluate.evaluate,
    "imagenet-real": evaluate.imagenet_real,
    "detect": evaluate.detect,
    "probe": evaluate.probe,
    "inspect": inspect.inspect,
    "attention": inspect.attention,
    "segment": inspect.segment,
    "reconstruct": inspect.reconstruct,
    "generate": text.generate,
    "fill": text.fill,
    "perplexity": text.perplexity,
    "lambada": text.lambada,
    "glue": text.glue,
    "study": study.study,
    "verify": verify.verify,
    "recipes": train.recipes,
    "recipe": train.recipe,
    "models": train.models,
    "convert": train.convert,
    "export": predict.export,
    "bench": bench.bench,
}.items():
    app.command(name)(cast(Any, verb))


def _version(show: bool) -> None:
    if show:
        print(f"codingrate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works after a verb too.")
    ] = False,
) -> None:
    pass


class _Notes(logging.Handler):
    """Prints what the library logs as notes on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "note" if record.levelno <= logging.INFO else record.levelname.lower()
        print(f"{kind}: {record.getMessage()}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Exit codes: 0 for success, 1 for an error, 2 for a wrong call."""
    # A thread that waits for others spins for milliseconds by default. If another process, such as a loader worker,
    # needs the core, that makes training several times slower; a short spin costs little.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # verbs have their own
    logger = logging.getLogger("codingrate")
    logger.handlers, logger.level, logger.propagate = [_Notes()], logging.INFO, False
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        arguments = ["--help"]
    debug = "--debug" in arguments
    command = typer.main.get_command(app)
    try:
        code = command.main([a for a in arguments if a != "--debug"], prog_name="crate", standalone_mode=False)
        if code == 130:  # typer's own answer to Ctrl-C
            _fail("stopped", 130)
    except (typer.Abort, KeyboardInterrupt):
        code = _fail("stopped", 130)
    except (CrateError, OSError) as error:
        if debug:
            raise
        code = _fail(str(error), 1)
    except UsageError as error:
        verb = error.ctx.command_path if error.ctx is not None else "crate"
        code = _fail(f"{error.format_message()} (see {verb} --help)", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> int:
    print(f"crate: {' '.join(message.split())}", file=sys.stderr)
    return code
