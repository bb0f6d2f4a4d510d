"""Pages of reports: figures lie on light cards, values are escaped, and a page needs nothing else."""

import base64
import html
import re

import matplotlib as mpl
import numpy as np
import pytest

from codingrate import _fonts, _page
from codingrate.inspection import InspectionReport, Panel
from tests.pages import Reader

MATRIX = np.arange(35).reshape(5, 7)


def draw(figure):
    """Lines, mathematics, a legend, an image, and white text on it."""
    figure.set_size_inches(6, 2)
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    left.plot([1, 2], [3, 4], label="$R^c$ <&>")
    left.legend()
    left.set_title("title")
    right.imshow(MATRIX, interpolation="nearest")
    right.text(1, 1, "on a dark cell", color="white")


@pytest.fixture(scope="module")
def picture():
    return _page.render_figure(draw, "one")


@pytest.fixture(scope="module")
def page(picture):
    panel = Panel("one", "a < b", "Z^{ℓ+½} & U_k", "")
    values = {"title": "x < y", "report": InspectionReport("x < y", [panel], notes=["<b>"])}
    values |= {"keys": [], "files": False, "tables": {}, "rows": 1, "chart_style": ""}
    return _page.render("inspection.html", pictures={"one": picture}, **values)


def test_the_page_embeds_the_figure_and_loads_nothing(picture, page):
    images = [reference for reference in Reader.of(page).references if not reference.startswith("#")]
    assert len(images) == 1
    assert base64.b64decode(images[0].removeprefix("data:image/svg+xml;base64,")).decode() == picture.svg
    assert "default-src 'none'" in page
    assert picture.svg.count("data:image/png;base64,") == 1
    assert not re.search(r'href="(?!#|data:)', picture.svg)


def test_values_are_escaped_and_formulas_are_raised_and_lowered(page):
    for part in (
        "<title>x &lt; y</title>",
        'alt="a &lt; b"',
        "<p>&lt;b&gt;</p>",
        "Z<sup>ℓ+½</sup> &amp; U<sub>k</sub>",
    ):
        assert part in page


def test_pages_fit_dark_and_narrow_screens_and_ink_is_dark_on_light_cards(picture, page):
    for rule in ("prefers-color-scheme: dark", "@media print", "width: 432pt", "width=device-width"):
        assert rule in page
    for rule in ("background: #fcfcfb", "max-width: 100%"):
        assert re.search(r"figure img {[^}]*" + rule, page)
    assert "stroke: #000000" in picture.svg  # the axes
    assert re.search(r"<path[^>]*fill: #ffffff[^>]*opacity: 0.8", picture.svg)  # behind the legend
    for text in (r"fill: #ffffff[^>]*>on a dark cell", ">title"):
        assert re.search(rf"<text[^>]*{text}</text>", picture.svg), "text stays text"


def test_scripts_without_a_font_are_text_in_the_page_and_codes_in_the_picture(monkeypatch):
    _fonts._has_glyph.cache_clear()
    monkeypatch.setattr(_fonts, "east_asian_fonts", lambda: ())

    def names(figure):
        axes = figure.subplots()
        axes.set_title("猫 $x$")
        axes.set_xticks([0, 1], ["日本", "a"])

    drawn = _page.render_figure(names, "two")
    assert ">日本</text>" in drawn.svg
    drawn.figure.canvas.draw()  # a glyph that is missing would be a warning, and warnings are errors
    (axes,) = drawn.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["‹65e5›‹672c›", "a"]
    assert axes.get_title() == "‹732b› $x$"
    assert _fonts.drawable_names(["a", "日"]) is None
    assert _fonts.drawable_names(["a", "é"]) == ["a", "é"]
    _fonts._has_glyph.cache_clear()


def test_the_same_figure_is_the_same_file_and_settings_stay(picture):
    before = dict(mpl.rcParams)
    again = _page.render_figure(draw, "one")
    assert again.svg == picture.svg
    assert dict(mpl.rcParams) == before
    assert "<dc:date>" not in picture.svg


@pytest.mark.parametrize("name", ["$\\frac{", "a$b$c", "\\$x", "_hidden", "x" * 500, "R^c & <b>"])
def test_any_name_can_be_a_title_and_a_label(name):
    def draw(figure):
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        axes.plot([0, 1], label=_fonts.plot_label(name))
        axes.set_title(f"$R^c$ of {_fonts.plot_label(name)}")
        assert len(axes.legend().get_texts()) == 1

    shown = name if len(name) <= 32 else f"{'x' * 12}…{'x' * 19}"
    assert _page.render_figure(draw, "one").svg.count(html.escape(shown, quote=False)) >= 1
