"""Pages of reports: figures follow the color scheme, values are escaped, and a page needs nothing else."""

import base64
import re

import matplotlib as mpl
import numpy as np
import pytest

from codingrate import _page
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
    panel = {"name": "one", "title": "a < b", "expected": "Z^{ℓ+½} & U_k", "measured": "", "table": None}
    values = {"title": "x < y", "facts": {}, "notes": ["<b>"], "files": {}, "tables": {}, "rows": 1}
    return _page.render("inspection.html", panels=[panel], pictures={"one": picture}, **values)


def test_the_page_embeds_both_renderings_and_loads_nothing(picture, page):
    read = Reader.of(page)
    images = [reference for reference in read.references if not reference.startswith("#")]
    assert len(images) == 2
    decoded = [base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")).decode() for image in images]
    assert decoded == [picture.dark, picture.light]
    assert re.search(r'<source media="screen and \(prefers-color-scheme: dark\)"', page)
    assert "default-src 'none'" in page
    for svg in decoded:
        assert svg.count("data:image/png;base64,") == 1
        assert not re.search(r'href="(?!#|data:)', svg)


def test_values_are_escaped_and_formulas_are_raised_and_lowered(page):
    assert "<title>x &lt; y</title>" in page
    assert 'alt="a &lt; b"' in page
    assert "<p>&lt;b&gt;</p>" in page
    assert "Z<sup>ℓ+½</sup> &amp; U<sub>k</sub>" in page
    for rule in ("prefers-color-scheme: dark", "@media print", "--ink: #1d2126;", "--ink: #e4e6e8;"):
        assert rule in page


def test_ink_and_paper_follow_the_color_scheme(picture):
    for svg, ink, paper in ((picture.light, "#000000", "#ffffff"), (picture.dark, "#e4e6e8", "#16181b")):
        assert f"stroke: {ink}" in svg  # the axes
        assert re.search(rf"<path[^>]*fill: {paper}[^>]*opacity: 0.8", svg)  # behind the legend
        assert re.search(r"<text[^>]*fill: #ffffff[^>]*>on a dark cell", svg)
    assert "#000000" not in picture.dark.split("</metadata>")[1]


def test_text_stays_text(picture):
    assert ">title</text>" in picture.light
    assert ">title</text>" in picture.dark


def test_a_figure_shrinks_to_two_thirds_and_no_further(page):
    assert "width: 432pt; min-width: 288pt" in page


def test_the_same_figure_is_the_same_file_and_settings_stay(picture):
    before = dict(mpl.rcParams)
    again = _page.render_figure(draw, "one")
    assert (again.light, again.dark) == (picture.light, picture.dark)
    assert dict(mpl.rcParams) == before
    assert "<dc:date>" not in picture.light
