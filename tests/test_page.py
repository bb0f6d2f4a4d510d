"""What every report shares: figures as part of the page, and a page that needs nothing else."""

import re

import numpy as np
import pytest

from codingrate import _page
from tests.pages import Reader

MATRIX = np.arange(35).reshape(5, 7)


def draw(figure):
    """A bit of everything: lines, mathematics, a legend, an image, white text on it."""
    figure.set_size_inches(6, 2)
    left, right = figure.subplots(1, 2)
    left.plot([1, 2], [3, 4], label="$R^c$ <&>")
    left.plot([1, 2], [4, 3], color="black", marker="o", markerfacecolor="white")
    left.legend()
    right.imshow(MATRIX, interpolation="nearest")
    right.text(1, 1, "on a dark cell", color="white")


@pytest.fixture(scope="module")
def element():
    return _page.svg(draw, "one")


def test_figures_on_one_page_share_no_id(element):
    read = Reader.of(_page.page("two", element + _page.svg(draw, "two")))
    assert len(read.ids) == len(set(read.ids))
    anchors = [reference for reference in read.references if reference.startswith("#")]
    assert {anchor[1:] for anchor in anchors} <= set(read.ids)
    assert len(anchors) > 10


def test_images_are_within_and_nothing_is_elsewhere(element):
    read = Reader.of(_page.page("one", element))
    others = [reference for reference in read.references if not reference.startswith("#")]
    assert len(others) == 1
    assert others[0].startswith("data:image/png;base64,")
    assert "http" not in element
    assert "default-src 'none'" in _page.page("one", element)


def test_ink_and_paper_turn_with_the_page(element):
    assert "#000000" not in element
    assert "stroke: currentColor" in element  # the axes
    assert re.search(r"<path[^>]*fill: var\(--page\)[^>]*opacity: 0.8", element)  # behind the legend
    assert re.search(r"<use[^>]*fill: var\(--page\)", element)  # a marker
    assert re.search(r"<text[^>]*fill: #ffffff[^>]*>on a dark cell", element)
    assert element.count("#ffffff") == 1


def test_text_stays_text_in_the_font_of_the_page(element):
    assert "on a dark cell" in Reader.of(element).text
    assert "R c < & >" in Reader.of(element).text
    assert "<style" not in element
    assert "font-family" not in element
    assert "font-family: 'DejaVu Sans'" in _page.STYLE


def test_a_figure_shrinks_to_two_thirds_and_no_further(element):
    head = element.split(">")[0]
    assert head.startswith("<svg")
    assert "width: 432pt; min-width: 288pt" in head
    assert 'viewBox="0 0 432 144"' in head
    assert " height=" not in head


def test_the_same_figure_is_the_same_file():
    assert _page.svg(draw, "one") == _page.svg(draw, "one")
    file = _page.svg_file(_page.drawn(draw), "one")
    assert file.startswith("<?xml")
    assert "<dc:date>" not in file


def test_a_page_escapes_its_title_and_takes_more_style():
    page = _page.page("a < b", "<p>body</p>", ".own { color: red; }")
    assert "<title>a &lt; b</title>" in page
    assert ".own { color: red; }</style>" in page
    for rule in ("prefers-color-scheme: dark", "@media print"):
        assert rule in page
