"""Every control of every tab is moved once in a browser; nothing fails.

Controls come from gradio's own list of components, so that a new one is moved as well.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import TimeoutError

from tests.browser.test_report_escaping import browser  # noqa: F401  (a fixture)
from tests.explorer.conftest import TEXT
from tests.explorer.serving import serve
from tests.explorer.test_browser import PATIENCE, open_tab, picture_file

pytestmark = pytest.mark.slow

ABSENT = {
    "cx-compare-prompt", "cx-compare-samples", "cx-compare-upload", "cx-compare-left", "cx-compare-right",
}  # fmt: skip
"""Controls of the tab that compares models which are there for images only, or for texts only."""
QUIET, TRIES = 400, 12
"""Polls of 50 ms without a request after which nothing more is expected, and attempts to open a dropdown."""
LISTENED = {"input", "change", "click", "select", "submit", "upload", "blur"}
"""Events that a user causes."""


@pytest.fixture(params=["images", "texts"])
def server(request, toy_run, twin_run, tmp_path):
    """An app whose models all read the same, because models of two kinds cannot be compared."""
    sources = [toy_run, twin_run] if request.param == "images" else [TEXT]
    with serve(sources, tmp_path) as running:
        yield running


class Hand:
    """Moves the controls of an open page, and collects what goes wrong."""

    def __init__(self, page, server) -> None:
        self.page, self.server, self.problems, self.streams, self.events = page, server, [], 0, 0
        page.on("console", lambda message: self.note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.note(str(error)))
        page.on("request", lambda sent: self.stream(sent, 1))
        page.on("requestfinished", lambda sent: self.stream(sent, -1))
        page.on("requestfailed", lambda sent: self.stream(sent, -1))
        page.goto(server.url)
        self.config = page.evaluate("fetch('config').then(answer => answer.json())")
        self.heard = {
            number: [event for at in self.config["dependencies"] for n, event in at["targets"] if n == number]
            for number in [part["id"] for part in self.config["components"]]
        }

    def note(self, problem: str) -> None:
        self.problems.append(problem)

    def stream(self, sent, change: int) -> None:
        """Count the events whose results are under way."""
        if "/queue/join" in sent.url or "/queue/data" in sent.url or "/run/" in sent.url:
            self.streams += change
            self.events += 1

    def settle(self, name: str) -> None:
        """Wait for the results, and see whether the page or the server complains."""
        self.page.wait_for_timeout(100)
        quiet, before = 0, self.events
        while self.streams and quiet < QUIET:
            self.page.wait_for_timeout(50)
            quiet, before = (quiet + 1, before) if self.events == before else (0, self.events)
        self.streams = 0  # the end of a stream that the page itself closes is not always reported
        status = self.page.evaluate("fetch('config').then(answer => answer.status)")
        assert status == 200, f"{name}: the server does not answer"
        toasts = self.page.locator(".toast-body")
        self.problems += [f"{name}: {toasts.nth(one).inner_text()}" for one in range(toasts.count())]
        assert self.problems == [], name
        assert "Traceback" not in self.server.log.read_text(), name

    def place(self, part):
        """Return the element of a component."""
        return self.page.locator(f"#{part['props']['elem_id']}")

    def is_control(self, part) -> bool:
        """Return whether a user can move a component: it listens to one, or it is an input that a handler reads."""
        kinds = ("slider", "dropdown", "radio", "checkbox", "textbox", "button")
        if part["props"].get("interactive") is False or part["type"] in ("timer", "state", "tabs"):
            return False
        return part["type"] in kinds or not LISTENED.isdisjoint(self.heard[part["id"]])

    def choose(self, place, index: int) -> None:
        """Choose an option of a dropdown; its list closes if a result of an earlier event arrives meanwhile."""
        for _ in range(TRIES):
            place.locator("input").click()
            options = self.page.locator("[role=option]:visible")
            try:
                options.first.wait_for(timeout=5000)
                options.nth(index % options.count()).click(timeout=5000)
                return
            except TimeoutError:
                self.page.keyboard.press("Escape")
        raise AssertionError("the dropdown opens no list")

    def move(self, part) -> bool:
        """Move a control once; return whether it was there to be moved."""
        place, name = self.place(part), f"{part['type']} {part['props'].get('label') or part['id']}"
        if not place.count() or not place.first.is_visible():
            return False
        if part["type"] == "slider":
            field = place.locator("input[type=number]")
            if field.is_disabled():
                return False
            low, high = (float(field.get_attribute(end)) for end in ("min", "max"))
            for value in (low, high):
                field.fill(f"{value:g}")
                field.press("Enter")
                self.settle(name)
        elif part["type"] == "dropdown":
            for index in (-1, 0):
                self.choose(place, index)
                self.settle(name)
        elif part["type"] == "radio":
            choices = place.locator("label")
            for index in (*range(choices.count()), 0):
                choices.nth(index).click()
                self.settle(name)
        elif part["type"] == "checkbox":
            for _ in range(2):
                place.locator("input").click()
                self.settle(name)
        elif part["type"] == "textbox":
            field = place.locator("textarea, input").first
            field.fill('{"atoms": [[1, 1]]}' if "JSON" in name else "To be, or not to be")
            field.press("Shift+Enter")
            field.blur()
        elif part["type"] == "button":
            if place.is_disabled():
                return False
            place.click()
        elif "upload" in self.heard[part["id"]]:
            upload = {"name": "mine.png", "mimeType": "image/png", "buffer": picture_file()}
            place.locator("input[type=file]").set_input_files(upload)
        else:
            inside = place.locator("button, .cx-token, .cx-picture")
            if not inside.count():
                return False
            inside.first.click()
        self.settle(name)
        return True


def test_every_control_of_every_tab_is_moved(browser, server):  # noqa: F811
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    hand = Hand(context.new_page(), server)
    parts = [part for part in hand.config["components"] if hand.is_control(part)]
    tabs = [part["props"]["label"] for part in hand.config["components"] if part["type"] == "tabitem"]
    hand.settle("the page")
    moved = set()
    for tab in tabs:
        open_tab(hand.page, tab)
        hand.settle(tab)
        for fold in hand.page.locator("button.label-wrap:visible:not(.open)").all():
            fold.click()
        hand.page.wait_for_timeout(300)
        for _ in range(2):  # a control can show others, such as the chip of an atom that was removed
            moved |= {part["id"] for part in parts if part["id"] not in moved and hand.move(part)}
    context.close()
    left = {part["props"]["elem_id"] for part in parts if part["id"] not in moved}
    print(f"{len(moved)} of {len(parts)} controls were moved in {tabs}; not there: {left}")
    assert left <= ABSENT
