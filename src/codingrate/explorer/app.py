"""The web app: tabs over a library of models, bound to this machine, without a request to any other."""

from __future__ import annotations

import asyncio
import html
import importlib.util
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CrateError, missing_extra
from ..runs import Run
from .guard import Guard
from .library import Library

TITLE = "Explorer of white-box transformers"
INTRODUCTION = (
    "Every part of a CRATE model has a meaning: a layer is one step of an optimizer, a head is a subspace, λ is a "
    "threshold. Open a model, look at every layer, and change its parts."
)
QUEUE = 256
"""Number of events that may wait; further ones are refused with a message."""
SESSIONS = 1000
"""Number of users whose state is kept; the one that was idle longest is dropped first."""

T = TypeVar("T")


def in_event_loop(build: Callable[[], T]) -> T:
    """Call a function while an event loop is running, and close the loop if it was opened here.

    Whenever gradio creates a lock and no loop is running, it sets a new event loop for the thread and leaves it open.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return build()

    async def call() -> T:
        return build()

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(call())
    finally:
        loop.close()


def build_tab(tab: Callable[[], T]) -> T:
    """Build a single tab, to call its handlers without a browser."""
    import gradio as gr

    def build() -> T:
        with gr.Blocks(analytics_enabled=False):
            return tab()

    return in_event_loop(build)


def require_gradio() -> None:
    """Refuse to go on if gradio is not installed."""
    if importlib.util.find_spec("gradio") is None:
        raise missing_extra("the explorer", "gradio", "explore")


def build_app(library: Library | None = None) -> Any:
    """Build the gradio app of a library; default: the models that ship with the package.

    Events are computed one at a time, because each uses all cores; this also keeps the events of one user in order.
    """
    require_gradio()
    return in_event_loop(lambda: _build(library or Library()))


def _build(library: Library) -> Any:
    import gradio as gr

    from .tabs.common import QUEUED, guarded, piece, tab_selector

    class Page(gr.Blocks):
        """A page whose events are refused in one line, and without a traceback, if their values do not fit."""

        async def preprocess_data(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return await super().preprocess_data(*args, **kwargs)
            except Exception as error:  # one of many types
                words = str(error) if isinstance(error, gr.Error) else "the values do not fit; reload the page"
                raise gr.Error(html.escape(words), print_exception=False) from None

    with Page(title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(3600, 3600)) as app:
        piece(f"<h1>{TITLE}</h1><p>{INTRODUCTION}</p>", elem_classes="cx-title")
        tabs = _tabs(library)
        with gr.Tabs() as bar:
            for title, tab in tabs.items():
                with gr.Tab(title, id=title.lower()):
                    built = tab()
                    app.load(guarded(built.load), None, built.outputs, show_progress="hidden", **QUEUED)

        app.load(tab_selector([title.lower() for title in tabs]), None, bar, show_progress="hidden", queue=False)
    app.queue(default_concurrency_limit=1, max_size=QUEUE, api_open=False)
    return app


def _tabs(library: Library) -> dict[str, Callable[[], Any]]:
    """Return the tabs by title, without those that would have nothing to show."""
    from .tabs.compare import CompareTab
    from .tabs.image import ImageTab
    from .tabs.playground import PlaygroundTab
    from .tabs.text import TextTab
    from .tabs.training import TrainingTab

    tabs: dict[str, tuple[bool, Callable[[], Any]]] = {
        "Image": (bool(library.names("vision")), lambda: ImageTab(library)),
        "Text": (bool(library.names("text")), lambda: TextTab(library)),
        "Compare": (bool(library.names()), lambda: CompareTab(library)),
        "Playground": (True, PlaygroundTab),
        "Training": (bool(library.runs()), lambda: TrainingTab(library)),
    }
    return {title: tab for title, (shown, tab) in tabs.items() if shown}


def launch(
    sources: Sequence[str | Path | Run] = (),
    *,
    host: str = "127.0.0.1",
    port: int | None = 7860,
    names: Sequence[str] = (),
    block: bool = True,
    quiet: bool = False,
) -> Any:
    """Open models in the browser app and serve it; return gradio's app, which `close()` ends.

    `port=None` takes a free one. With `block` the call returns when the app is stopped. The app listens on this machine
    only, unless `host` says otherwise, and answers only if it is asked by the name it was started on: `names` are those
    that a proxy passes on, or by which other machines know this one.
    """
    from .style import CSS, theme

    app = build_app(Library(sources))

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        server.middleware_stack = Guard(server.middleware_stack, host, names)  # around gradio's own middleware
        yield

    options: Any = {
        "server_name": host,
        "server_port": port,
        "app_kwargs": {"lifespan": lifespan},
        "prevent_thread_lock": True,
        "quiet": quiet,
        "share": False,
        "inbrowser": False,
        "allowed_paths": [],
        "max_file_size": "10mb",
        "footer_links": [],
        "ssr_mode": False,
        "mcp_server": False,
        "pwa": False,
        "enable_monitoring": False,
        "state_session_capacity": SESSIONS,
        "theme": theme(),
        "css": CSS,
    }
    try:
        in_event_loop(lambda: app.launch(**options))
    except OSError as error:
        raise CrateError(f"the explorer cannot listen on {host}:{port} ({error}); give another `port`") from error
    if block:
        app.block_thread()
    return app
