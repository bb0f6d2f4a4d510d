"""Every event of the app, found in gradio's own list, returns what its outputs hold."""

from __future__ import annotations

import asyncio
import base64

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from codingrate.explorer import build_app
from tests.explorer.test_images import png

EVERYTHING = {
    "patch": 1, "index": 1, "token": 1, "layer": 1, "head": 1, "atom": 1, "name": "mine.png", "size": 99,
    "content": base64.b64encode(png((30, 40))).decode(),
}  # fmt: skip
"""A click that holds whatever a handler may read of it."""


@pytest.fixture(scope="module")
def app(library):
    return build_app(library)


def values(function, app, shown):
    """Return what a page would send: the state, and what the components show."""
    return [
        None if isinstance(one, gr.State) else shown.get(one._id, getattr(one, "value", None))
        for one in function.inputs
    ]


def test_every_event_returns_only_its_outputs(app):
    """Gradio itself refuses a component that is not among the outputs of an event."""
    session, shown, request = SessionState(app), {}, gr.Request(query_params={})
    loads = [one for one in app.fns.values() if any(event == "load" for _, event in one.targets)]
    others = [one for one in app.fns.values() if one not in loads]
    assert len(loads) == 6  # five tabs and the choice of one
    assert len(others) > 35

    async def call(function):
        answer = await app.process_api(
            function, values(function, app, shown), session, request, event_data=gr.EventData(None, EVERYTHING)
        )
        for component, value in zip(function.outputs, answer["data"], strict=True):
            if isinstance(value, dict) and value.get("__type__") == "update":
                value = value.get("value", shown.get(component._id))
            shown[component._id] = value

    async def every():
        for function in [*loads, *others]:
            try:
                await call(function)
            except Exception as error:
                raise AssertionError(f"{function.name} of {function.targets}: {error}") from error

    asyncio.run(every())
