"""The verbs of `crate` and the handling of errors: one line on standard error, a traceback only with `--debug`.

An error that no verb expects is a bug; its traceback is written to a log file, which the line names.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from .. import __version__
from .._distributed import exit_together, first_process
from ..errors import CrateError
from . import bench, demo, evaluate, explore, inspect, predict, study, text, train, verify

UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # typer carries click's classes since 0.25

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h

_RENAMED = {"features": "baseline"}
"""Arguments of Python whose option has another name."""


def _stopping(verb: Callable[..., None]) -> Callable[..., None]:
    """Let Ctrl-C and signals end a verb with the message that says how to continue, and with their exit code."""

    @functools.wraps(verb)
    def call(*args: Any, **options: Any) -> None:
        try:
            verb(*args, **options)
        except KeyboardInterrupt as stopped:
            code = 128 + getattr(stopped, "signal", signal.SIGINT)
            if first_process():
                _fail(in_options(str(stopped) or "stopped", ""), code)
            raise SystemExit(code) from None

    return call


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
    "curves": evaluate.curves,
    "probe": evaluate.probe,
    "inspect": inspect.inspect,
    "explore": explore.explore,
    "attention": inspect.attention,
    "segment": inspect.segment,
    "reconstruct": inspect.reconstruct,
    "generate": text.generate,
    "fill": text.fill,
    "perplexity": text.perplexity,
    "lambada": text.lambada,
    "zero-shot": text.zero_shot,
    "glue": text.glue,
    "study": study.study,
    "verify": verify.verify,
    "recipes": train.recipes,
    "recipe": train.recipe,
    "models": train.models,
    "convert": train.convert,
    "export": predict.export,
    "publish": predict.publish,
    "bench": bench.bench,
}.items():
    app.command(name)(_stopping(cast(Any, verb)))


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
        if not first_process():
            return
        kind = "note" if record.levelno <= logging.INFO else record.levelname.lower()
        print(f"{kind}: {record.getMessage()}", file=sys.stderr)


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for later instead of returning it to the system.

    A step of training frees and allocates the same large tensors again and again. By default glibc returns each of
    them to the system, and the next use of a page that was returned costs a page fault.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that glibc accepts
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Exit codes: 0 for success, 1 for an error, 2 for a wrong call, 70 for a bug, 130 after Ctrl-C, 143 after SIGTERM.
    """
    # A thread that waits for others spins for milliseconds by default. If another process, such as a loader worker,
    # needs the core, that makes training several times slower; a short spin costs little.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    _keep_freed_memory()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # verbs have their own
    logger = logging.getLogger("codingrate")
    logger.handlers, logger.level, logger.propagate = [_Notes()], logging.INFO, False
    if hasattr(sys.stdout, "reconfigure"):  # names of files may have characters that the terminal does not
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        arguments = ["--help"]
    if not first_process():  # of several processes, only the first prints results
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    debug, handler = "--debug" in arguments, _catch_terminate()
    hook, threading.excepthook = threading.excepthook, threading.excepthook if debug else _note_thread
    try:
        code = command().main([a for a in arguments if a != "--debug"], prog_name="crate", standalone_mode=False)
        sys.stdout.flush()
        exit_together(code if isinstance(code, int) else 0)
    except (typer.Abort, KeyboardInterrupt):
        code = _fail("stopped", 130)
    except BrokenPipeError:  # such as `crate models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest when it ends
        code = 1  # as typer does
    except UsageError as error:
        verb = error.ctx.command_path if error.ctx is not None else "crate"
        code = _fail(f"{error.format_message()} (see {verb} --help)", 2)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, (CrateError, OSError)):
            verb = next((word for word in arguments if word in command().commands), "")
            code = _fail(in_options(str(error), verb), 1)
        elif _is_out_of_memory(error):
            code = _fail("not enough memory; use a smaller batch size, image size or model", 1)
        else:
            code = _fail(f"this is a bug ({type(error).__name__}); please report it with the log {_log(arguments)}", 70)
    finally:
        threading.excepthook = hook
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
    sys.exit(code if isinstance(code, int) else 0)


@functools.cache
def command() -> Any:
    """Return the command of typer; brackets in its help are text, not markup of rich."""
    built: Any = typer.main.get_command(app)
    for one in (built, *built.commands.values()):
        for part in (one, *one.params):
            part.help = escape(part.help or "")
    return built


def in_options(message: str, verb: str) -> str:
    """Write the arguments and calls of Python that a message has in backticks as options of a verb and as commands.

    `max_corrupt` becomes --max-corrupt, `layer=3` becomes --layer 3, and `train('run', resume=True)` becomes
    crate train --resume run. Names that are not options of the verb stay as they are.
    """

    def translate(quoted: re.Match[str]) -> str:
        try:
            call: Any = ast.parse(quoted[1] if quoted[1].endswith(")") else f"_({quoted[1]})", mode="eval").body
            name = verb if call.func.id == "_" else call.func.id.replace("_", "-")
            options = {param.name: param for param in command().commands[name].params}
            named = [(argument.id, None) for argument in call.args if isinstance(argument, ast.Name)]
            named += [(keyword.arg, ast.literal_eval(keyword.value)) for keyword in call.keywords]
            values = [ast.literal_eval(argument) for argument in call.args if not isinstance(argument, ast.Name)]
            words = [] if call.func.id == "_" else ["crate", name]
            for argument, value in named:
                option = options[_RENAMED.get(argument, argument)]
                words.append(option.secondary_opts[0] if value is False else option.opts[-1])
                values += [] if value is None or isinstance(value, bool) else [value]
        except (SyntaxError, ValueError, AttributeError, KeyError, IndexError):
            return quoted[0]
        return " ".join(words + [shlex.quote(text) if " " in text else text for text in map(str, values)])

    return re.sub("`([^`]+)`", translate, message)


def _catch_terminate() -> Any:
    """Let SIGTERM end the command as Ctrl-C does, so that temporary files are removed; return the handler before."""
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a worker that has just been started
            os._exit(128 + number)
        signal.signal(number, signal.SIG_DFL)  # the second one ends it at once
        os.write(2, b"crate: stopped\n")
        raise SystemExit(128 + number)

    in_main = threading.current_thread() is threading.main_thread()
    return signal.signal(signal.SIGTERM, stop) if in_main else None


def _note_thread(failure: threading.ExceptHookArgs) -> None:
    """Report an error in a background thread, such as TensorBoard's; the main thread fails or goes on by itself."""
    kind = failure.exc_type.__name__
    print(f"note: a background thread has failed ({kind}: {failure.exc_value})", file=sys.stderr)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)


def _log(arguments: Sequence[str]) -> str:
    """Write the traceback of the current exception to a file in the system's temporary folder; return its path."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="crate-", suffix=".log", encoding="utf-8", errors="backslashreplace", delete=False
    ) as file:
        file.write(f"codingrate {__version__}, Python {sys.version}\ncrate {shlex.join(arguments)}\n")
        traceback.print_exc(file=file)
    return file.name


def _fail(message: str, code: int) -> int:
    print(f"crate: {' '.join(message.split())}", file=sys.stderr)
    return code
