"""`crate explore`: open models in a browser app on this machine."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option


def explore(
    sources: Annotated[
        list[str] | None,
        Argument(
            metavar="RUN|NAME",
            help="Run folders, saved models or model names. Default: all trained models that ship with the package.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, Option(min=1, max=65535, help="Port of the app.")] = 7860,
    host: Annotated[
        str, Option(help="Address to listen on. Other than 127.0.0.1, anyone who reaches this machine can use the app.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Further name under which the app may be asked for, such as that of a proxy or of this machine in a "
            "network. Can be given more than once.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Open models in the browser: look at every layer, change a part, compare, and watch a run that trains.

    The app runs on this machine and sends nothing to any other. Ctrl-C ends it. It needs the extra `explore`:
    pip install '.[explore]' in a clone of the repository.
    """
    from ..explorer import launch
    from .output import print_note

    if host not in ("127.0.0.1", "localhost", "::1"):
        print_note(f"the app listens on {host}: everyone who reaches this machine can use it; there is no password")
    launch(sources or (), host=host, port=port, names=allow_host or ())
