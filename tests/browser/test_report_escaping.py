"""A report opened in a browser: names from files, folders and classes run no script, and nothing leaves the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from codingrate.inspection import InspectionReport
from codingrate.runs import Run
from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)
from tests.event_loops import _no_event_loop_is_left  # noqa: F401  (an autouse fixture)
from tests.inspection.test_report import HOSTILE, draw, hostile_report
from tests.runs.toys import train_toy

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SOURCE = 'x" onmouseover="window.ran=1'
RIVAL = "<img src=http:example.invalid onerror=window.ran=1> $\\frac{"
CLASSES = ['a" onclick="window.ran=1', "<script>window.ran=1", "$\\bad{ & 犬"]


@pytest.fixture(scope="module")
def browser():
    """A browser without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium binary is found")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


def assert_harmless(browser, file: Path) -> str:
    """Open a page, move over and click everything on it, and check that nothing happened; return its text."""
    page, requests, talk = browser.new_page(), [], []
    page.add_init_script(
        "window.alert = () => { window.ran = 1 };"
        "new MutationObserver(() => { if (document.scripts.length) window.ran = 1 })"
        ".observe(document, {childList: true, subtree: true})"
    )
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: talk.append(message.text))
    page.on("dialog", lambda dialog: (talk.append(dialog.message), dialog.dismiss()))
    page.goto(file.as_uri())
    for details in page.query_selector_all("details"):
        details.evaluate("element => { element.open = true }")
    elements = page.query_selector_all("body *")
    assert len(elements) > 20
    for element in elements:
        for event in ("mouseover", "mouseenter", "mousemove", "focus", "click", "error", "load"):
            element.evaluate("(element, event) => element.dispatchEvent(new Event(event))", event)
        attributes = element.evaluate("element => element.getAttributeNames()")
        assert not [name for name in attributes if name.startswith("on")]
    for link in page.query_selector_all("nav a"):
        link.hover()
        link.click()
    assert page.evaluate("window.ran") is None
    assert page.evaluate("document.scripts.length") == 0
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []
    assert talk == []
    text = page.inner_text("body")
    page.close()
    return text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_a_report(tmp_path, browser, name):
    report: InspectionReport = hostile_report(name, draw)
    assert "Rates of" in assert_harmless(browser, report.save(tmp_path / "out") / "report.html")


def test_the_report_of_a_run_with_hostile_names(tmp_path, browser):
    images = tmp_path / "images"
    for number, name in enumerate(CLASSES):
        (images / name.replace("/", "")).mkdir(parents=True)
        for index in range(8):
            Image.new("L", (8, 8), 30 * index + number).save(images / name / f"{index}.png")
    changes = {"data.name": str(images), "schedule.steps": 2, "schedule.batch_size": 8, "run.layerwise_epochs": 1}
    runs = [train_toy(tmp_path / name, changes) for name in (SOURCE, RIVAL)]
    report = Run(runs[0].folder).inspect(compare=[runs[1].folder], command=f"crate inspect {SOURCE}")
    text = assert_harmless(browser, report.save(tmp_path / "report") / "report.html")
    assert SOURCE in text
    assert RIVAL in text
