"""What every HTML report shares: its style, figures as inline SVG, and the page around them.

A page loads nothing from elsewhere and runs no script. It follows the reader's light or dark system, and prints light.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[["Figure"], None]

_LIGHT = "--ink: #1d2126; --quiet: #5b636d; --page: #fcfcfb; --line: #d9dcdf"
_DARK = "--ink: #e4e6e8; --quiet: #9aa3ad; --page: #16181b; --line: #363b41"

STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT}; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK}; }} }}
body {{ color: var(--ink); background: var(--page); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; overflow-wrap: break-word; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin: 2.5rem 0 .3rem; }}
a {{ color: inherit; }} code, pre {{ font-size: .86rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: .86rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }}
.quiet {{ color: var(--quiet); }} .wide, pre {{ overflow: auto; }}
figure {{ margin: 1rem 0; overflow-x: auto; }}
figure svg * {{ stroke-linejoin: round; stroke-linecap: butt; }}
figure svg {{ max-width: 100%; height: auto; fill: currentColor; font-family: 'DejaVu Sans', Verdana, sans-serif; }}
@media print {{
  :root {{ color-scheme: light; --page: #fff; }}
  body {{ max-width: none; margin: 0; }} figure, tr {{ break-inside: avoid; }} h2 {{ break-after: avoid; }}
  figure svg {{ min-width: 0 !important; }} .wide, pre, figure {{ overflow: visible; max-height: none !important; }}
  pre {{ white-space: pre-wrap; }}
}}
"""
"""Ink, page and line are variables; a report adds its own rules."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, body: str, style: str = "") -> str:
    """A whole page around `body`, with more `style`; a browser is told to load nothing for it."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>{body}</body></html>\n"
    )


def drawn(draw: Draw) -> Figure:
    """An empty figure that `draw` has drawn on, laid out once: saved in two forms it would be laid out four times."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasAgg(figure)
    draw(figure)
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def svg_file(figure: Figure, name: str) -> str:
    """The figure as an SVG file without a background: text stays text, images are embedded at twice the size shown."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):  # the salt makes equal figures equal files
        figure.savefig(text, format="svg", transparent=True, dpi=144, metadata={"Date": None})
    return text.getvalue()


def inline(svg: str, name: str) -> str:
    """What matplotlib wrote as an element of a page: ids are those of no other figure, ink and paper the page's own.

    Black turns with the page, and so does white where it is a ground, as behind a legend; white text, as on a dark
    cell, stays. A figure shrinks to two thirds of its size; on a screen still narrower its frame scrolls.
    """
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<style .*?</style>", "", svg, count=1, flags=re.DOTALL)  # this and the font are in the page's style
    svg = re.sub(r"font-family: 'DejaVu Sans'[^;\"]*;?", "", svg)
    svg = svg.replace("#000000", "currentColor")
    svg = re.sub(r"(<(?:path|use)\b[^>]*\bfill: )#ffffff", r"\g<1>var(--page)", svg)
    tag, rest = svg.split(">", 1)
    width = float(re.findall(r' width="([\d.]+)pt"', tag)[0])
    tag = re.sub(r' (width|height)="[^"]*"', "", tag)
    return f'{tag} style="width: {width:g}pt; min-width: {width * 2 / 3:.0f}pt">{rest}'


def svg(draw: Draw, name: str) -> str:
    """The figure as an SVG element whose ids begin with `name`."""
    return inline(svg_file(drawn(draw), name), name)
