"""The explorer in a real browser: every tab, on a desk and on a phone, without an error and without the network.

Screenshots are kept in tests/artifacts, or in the folder that the environment variable EXPLORER_SCREENSHOTS names.
"""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image

import codingrate as cr
from tests.browser.test_report_escaping import browser  # noqa: F401  (a fixture)
from tests.explorer.conftest import TEXT
from tests.explorer.serving import serve

pytestmark = pytest.mark.slow

WIDTHS = {"desk": 1280, "phone": 390}
PATIENCE = 60_000  # milliseconds; machines that test many things at once are slow


@pytest.fixture(scope="module")
def server(toy_run, twin_run, tmp_path_factory):
    with serve([toy_run, twin_run, TEXT], tmp_path_factory.mktemp("explore")) as running:
        yield running


@pytest.fixture(scope="module")
def screenshots() -> Path:
    folder = Path(os.environ.get("EXPLORER_SCREENSHOTS") or Path(__file__).parents[1] / "artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(params=WIDTHS)
def page(request, browser, server, screenshots):  # noqa: F811
    """The open app; when a test ends, there was no error, no request elsewhere, and nothing wider than the screen.

    Tests open other addresses in pages of their own: leaving a page aborts its requests, which it reports as an error.
    """
    width = WIDTHS[request.param]
    context = browser.new_context(viewport={"width": width, "height": 900}, has_touch=width < 500)
    context.set_default_timeout(PATIENCE)
    requests, problems = [], []
    context.on("request", lambda sent: requests.append(sent.url))
    context.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda failure: problems.append(str(failure.error)))
    page = context.new_page()
    page.goto(server.url)
    for part in ("#cx-picture .cx-picture", "#cx-prediction .cx-bar", ".cx-heads .cx-switch", "#cx-curves .chart"):
        page.locator(part).first.wait_for()
    yield page
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.screenshot(path=screenshots / f"{request.node.originalname}-{request.param}.png", full_page=True)
    context.close()
    assert [url for url in requests if not url.startswith((server.url, "data:", "blob:"))] == []
    assert problems == []
    assert wide <= width


def open_tab(page, name: str) -> None:
    """Select a tab, which a narrow screen may keep in a menu."""
    tab = page.get_by_role("tab", name=name, exact=True)
    if not tab.first.is_visible():
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown button", has_text=name).click()
        return
    tab.first.click()


CONTENT = """s => [...document.querySelectorAll(s + ' [class*=cx-], ' + s + ' svg.chart')]
    .map(part => part.outerHTML).join('').replaceAll(/ style="--cx-heat: ?[0-9.]+;"/g, '')"""
"""What a piece shows, without gradio's progress and without the shades of a hovered token."""


def text_of(page, selector: str) -> str:
    return page.evaluate(CONTENT, selector)


def after(page, selector: str, action) -> str:
    """Do something and return the content of an element once it has changed."""
    before = text_of(page, selector)
    action()
    page.wait_for_function(f"([s, old]) => ({CONTENT})(s) !== old", arg=[selector, before])
    return text_of(page, selector)


def set_slider(page, name: str, value: float) -> None:
    """Move a slider as its number field does."""
    field = page.locator(f"#{name} input[type=number]")
    field.fill(str(value))
    field.press("Enter")


def probability(html: str) -> float:
    return float(re.search(r'data-probability="([\d.]+)"', html)[1])


def picture_file() -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((40, 30)).save(file, "PNG")
    return file.getvalue()


def test_image_tab(page, toy_run):
    upload = {"name": "mine.png", "mimeType": "image/png", "buffer": picture_file()}
    shown = after(page, "#cx-prediction", lambda: page.set_input_files("#cx-upload input", upload))
    expected = cr.Run(toy_run).predict(Image.open(io.BytesIO(upload["buffer"])))[0][0]
    assert probability(shown) == pytest.approx(expected["score"], abs=1e-5)
    assert f'data-label="{expected["label"]}"' in shown
    after(page, "#cx-attention", lambda: set_slider(page, "cx-layer", 1))
    assert "Attention in layer 1" in text_of(page, "#cx-attention")
    picture = page.locator("#cx-picture .cx-picture")
    after(page, "#cx-attention", lambda: picture.click(position={"x": 5, "y": 5}))
    assert "left:0.000%;top:0.000%" in text_of(page, "#cx-picture")
    assert page.locator("#cx-attention .cx-map").count() == 3
    assert page.locator("#cx-neighbors .cx-map").count() > 3
    assert page.locator("#cx-code .cx-atom").count() > 0
    for name in ("principal components", "nearest subspace"):
        after(page, "#cx-picture", lambda name=name: page.locator("#cx-coloring").get_by_text(name).click())
        assert "cx-cover" in text_of(page, "#cx-picture")
    page.locator("#cx-samples .cx-thumb").nth(2).click()
    page.wait_for_function("!document.querySelector('#cx-curves').innerText.includes('no values')")
    assert page.locator("#cx-curves svg.chart").count() == 3


def test_interventions(page, toy_run):
    before = probability(text_of(page, "#cx-prediction"))
    switch = page.locator(".cx-heads:visible .cx-switch").first
    changed = after(page, "#cx-prediction", switch.click)
    run = cr.Run(toy_run)
    assert "→" in changed
    assert probability(changed) != before
    assert text_of(page, "#cx-answer-atom") == changed
    boxes = [page.locator(part).bounding_box() for part in ("#cx-switches-atom", "#cx-answer-atom")]
    top, bottom = min(box["y"] for box in boxes), max(box["y"] + box["height"] for box in boxes)
    assert bottom - top <= page.viewport_size["height"]  # both are on one screen
    page.get_by_text("Export and replay").first.click()
    exported = page.locator("#cx-export-atom textarea").input_value()
    assert json.loads(exported) == {"heads": [[1, 1]]}
    assert run.intervene(**json.loads(exported)).intervention.heads == ((1, 1),)
    after(page, "#cx-prediction", page.locator("#cx-reset-atom").click)
    assert probability(text_of(page, "#cx-prediction")) == before
    page.locator("#cx-import-atom textarea").fill(exported)
    replayed = after(page, "#cx-prediction", page.locator("#cx-replay-atom").click)
    assert probability(replayed) == probability(changed)
    after(page, "#cx-prediction", lambda: set_slider(page, "cx-lambda-atom", 2))
    assert json.loads(page.locator("#cx-export-atom textarea").input_value())["sparsity"] == 2
    atom = page.locator("#cx-code .cx-atom").first
    after(page, "#cx-prediction", atom.click)
    assert "atoms" in json.loads(page.locator("#cx-export-atom textarea").input_value())
    page.locator("#cx-rank-atom").click()
    page.locator("#cx-switches-atom [style*='--cx-heat:1.000']").wait_for()


def opened(page, address):
    """Open an address in another page of the same browser and return that page."""
    other = page.context.new_page()
    other.goto(address)
    return other


def test_a_link_opens_the_same_state(page, server):
    after(page, "#cx-attention", lambda: set_slider(page, "cx-layer", 1))
    after(page, "#cx-attention", lambda: page.locator("#cx-picture .cx-picture").click(position={"x": 5, "y": 5}))
    changed = after(page, "#cx-prediction", page.locator(".cx-heads:visible .cx-switch").first.click)
    page.locator("#cx-link-image button").click()
    page.wait_for_url("**/?tab=image*")
    assert page.locator("#cx-link-image input").input_value() == page.url
    pieces = ("#cx-prediction", "#cx-attention", "#cx-picture", "#cx-curves")
    shown = [text_of(page, piece) for piece in pieces]
    page = opened(page, page.url)
    page.wait_for_selector("#cx-prediction .cx-bar:has-text('→')")
    assert probability(text_of(page, "#cx-prediction")) == probability(changed)
    assert [text_of(page, piece) for piece in pieces] == shown
    page = opened(page, f"{server.url}/?tab=image&layer=99")
    page.wait_for_selector(".toast-body:has-text('layer is')")
    page.locator("#cx-prediction .cx-bar").first.wait_for()
    page = opened(page, f"{server.url}/?tab=text&text=To+be&layer=1")
    page.wait_for_selector("#cx-tokens .cx-token >> visible=true")
    assert page.locator("#cx-tokens .cx-token").count() == len("To be")


def test_text_tab(page):
    open_tab(page, "Text")
    page.wait_for_selector("#cx-tokens .cx-token")
    page.locator("#cx-prompt textarea").fill("First Citizen:\nWe are")
    after(page, "#cx-text-prediction", page.locator("#cx-read").click)
    tokens = page.locator("#cx-tokens .cx-token")
    assert tokens.count() == len("First Citizen:\nWe are")
    tokens.nth(6).hover()
    heat = page.evaluate(
        "[...document.querySelectorAll('#cx-tokens .cx-token')].map(t => +t.style.getPropertyValue('--cx-heat'))"
    )
    assert max(heat) == 1
    assert heat[7:] == [0] * len(heat[7:])  # a causal model attends to nothing that follows
    after(page, "#cx-lens", tokens.nth(3).click)
    assert page.locator("#cx-lens tbody tr").count() == 4
    assert page.locator("#cx-units .cx-unit").count() > 0
    longer = after(page, "#cx-tokens", page.locator("#cx-next").click)
    assert longer.count("cx-token") > 22
    off = page.locator(".cx-heads:visible .cx-switch").first
    assert "→" in after(page, "#cx-text-prediction", off.click)


def test_hostile_text_runs_nothing(page):
    open_tab(page, "Text")
    page.wait_for_selector("#cx-tokens .cx-token")
    hostile = "<img src=x onerror='window.ran=1'>${window.ran=1}{{window.ran=1}}"
    page.locator("#cx-prompt textarea").fill(hostile)
    after(page, "#cx-tokens", page.locator("#cx-read").click)
    assert page.locator("#cx-tokens .cx-tokens").inner_text().replace("·", " ").replace("\n", "") == hostile
    assert page.evaluate("window.ran") is None


def test_compare_tab(page):
    open_tab(page, "Compare")
    page.wait_for_selector("#cx-compare-right .cx-bar")
    assert "toy-digits" in text_of(page, "#cx-compare-left")
    assert "toy-vit" in text_of(page, "#cx-compare-right")
    page.locator("#cx-right input").click()
    choose = page.get_by_role("option", name="toy-digits, untrained")
    changed = after(page, "#cx-compare-right", choose.click)
    assert "random weights" in changed
    after(
        page, "#cx-compare-left", lambda: page.locator("#cx-compare-left .cx-picture").click(position={"x": 4, "y": 4})
    )
    assert "left:0.000%;top:0.000%" in text_of(page, "#cx-compare-right")


def test_playground_tab(page):
    open_tab(page, "Playground")
    page.wait_for_selector("#cx-scene .js-plotly-plot, #cx-scene [data-testid=plotly] canvas")
    after(page, "#cx-play-charts", lambda: set_slider(page, "cx-play-layer", 6))
    after(page, "#cx-play-charts", lambda: set_slider(page, "cx-sigma", 0.4))
    after(page, "#cx-play-charts", lambda: page.locator("#cx-method").get_by_text("exact gradient").click())
    assert page.locator("#cx-play-charts svg.chart").count() == 3


def test_training_tab(page):
    open_tab(page, "Training")
    page.wait_for_selector("#cx-metrics svg.chart")
    assert "finished" in page.locator("#cx-status").inner_text()
    assert "top1" in page.locator("#cx-metrics").inner_text()
