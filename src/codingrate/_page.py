"""Render HTML reports from jinja2 templates, with figures for light and for dark pages.

A page loads nothing from elsewhere and runs no script. It follows the reader's color scheme and prints light.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIGHT = {"ink": "#1d2126", "quiet": "#5b636d", "page": "#fcfcfb", "line": "#d9dcdf"}
DARK = {"ink": "#e4e6e8", "quiet": "#9aa3ad", "page": "#16181b", "line": "#363b41"}
"""Colors of a page by the name of their CSS variable."""
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "patch.edgecolor")
_DARK_FIGURE = {**dict.fromkeys(_INKED, DARK["ink"]), "axes.facecolor": DARK["page"]}  # the face is that of legends


class Picture(NamedTuple):
    """A figure, rendered as SVG for light and for dark pages."""

    figure: Figure  # the light figure, laid out
    light: str
    dark: str

    @property
    def width(self) -> float:
        """Width in points."""
        return float(72 * self.figure.get_figwidth())


def render(template: str, **values: Any) -> str:
    """Fill a template of `codingrate/templates`; all values are escaped."""
    return _environment().get_template(template).render(**values)


def render_figure(draw: Callable[[Figure], None], name: str) -> Picture:
    """Draw a figure for light and for dark pages. Text stays text, and images are embedded at twice the size shown.

    `name` makes the ids within the SVG reproducible.
    """
    figure, light = _drawn(draw, name, {})
    return Picture(figure, light, _drawn(draw, name, _DARK_FIGURE)[1])


@cache
def _environment() -> Environment:
    options: Any = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader("codingrate"), autoescape=True, **options)
    environment.globals.update(light=LIGHT, dark=DARK)
    environment.filters.update(formulas=_formulas, data_uri=_data_uri)
    return environment


def _formulas(text: str) -> Markup:
    """Raise and lower the formulas of a sentence: Z^{ℓ+½}, R^c, U_k. Names such as below_0.1 stay."""
    raised = re.sub(r"\^(?:\{([^}]*)\}|(\w))", r"<sup>\1\2</sup>", str(escape(text)))
    return Markup(re.sub(r"((?<!\w)[A-Zdθ]|[‖\]])_(\w)(?!\w)", r"\1<sub>\2</sub>", raised))


def _drawn(draw: Callable[[Figure], None], name: str, settings: Any) -> tuple[Figure, str]:
    """Draw on an empty figure; return it and its SVG without a background.

    The figure is laid out once, because saving it in two formats would lay it out four times.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(settings):
        figure = Figure()
        FigureCanvasAgg(figure)
        draw(figure)
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, dpi=144, metadata={"Date": None})
    return figure, text.getvalue()


def _data_uri(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
