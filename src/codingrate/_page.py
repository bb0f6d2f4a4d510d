"""Render HTML reports from jinja2 templates.

A page loads nothing from elsewhere and runs no script. It follows the reader's color scheme and prints light. Figures
are drawn once, in dark ink, and lie on light cards.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ._files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image


class Picture(NamedTuple):
    """A figure, laid out, and its SVG without a background."""

    figure: Figure
    svg: str


def render(template: str, **values: Any) -> str:
    """Fill a template of `codingrate/templates`; all values are escaped."""
    return _environment().get_template(template).render(**values)


def render_figure(draw: Callable[[Figure], None], name: str) -> Picture:
    """Draw on an empty figure. Text stays text, and images are embedded at twice the size shown.

    `name` makes the ids within the SVG reproducible. The figure is laid out once, because saving it in two formats
    would lay it out four times. In the SVG every character is there, because a browser finds fonts of its own. In the
    figure, which becomes a PNG, characters without a glyph are then replaced by their codes.
    """
    import matplotlib as mpl
    from matplotlib.axis import Axis
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from ._fonts import can_draw, drawable, font_families

    figure, svg = Figure(), io.StringIO()
    FigureCanvasAgg(figure)
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": font_families()}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        draw(figure)
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        figure.savefig(svg, format="svg", transparent=True, dpi=144, metadata={"Date": None})
    for text in cast(list[Text], figure.findobj(Text)):
        if not can_draw(text.get_text()):
            text.set_text(drawable(text.get_text()))
    for axis in cast(list[Axis], figure.findobj(Axis)):  # labels of ticks are set again when they are drawn
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if not can_draw("".join(labels)):
            axis.set_ticks(axis.get_ticklocs(), [drawable(label) for label in labels])
    return Picture(figure, svg.getvalue())


def save_figure(draw: Callable[[Figure], None], path: Path, name: str) -> Path:
    """Draw on an empty figure and write it, as SVG or PNG by the suffix of `path`; return the path."""
    figure, svg = render_figure(draw, name)
    with atomic_write(path) as draft:
        if path.suffix.lower() == ".svg":
            Path(draft).write_text(svg, encoding="utf-8")
        else:
            figure.savefig(draft, dpi=150, format="png", facecolor="white")
    return path


@cache
def _environment() -> Environment:
    options: Any = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader("codingrate"), autoescape=True, **options)
    environment.filters.update(formulas=_formulas, base64=lambda text: _base64(text.encode()), png=_png)
    return environment


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _png(image: Image) -> str:
    """Return a picture as a data URL."""
    file = io.BytesIO()
    image.save(file, format="PNG")
    return f"data:image/png;base64,{_base64(file.getvalue())}"


def _formulas(text: str) -> Markup:
    """Raise and lower the formulas of a sentence: Z^{ℓ+½}, R^c, U_k. Names such as below_0.1 stay."""
    raised = re.sub(r"\^(?:\{([^}]*)\}|(\w))", r"<sup>\1\2</sup>", str(escape(text)))
    return Markup(re.sub(r"((?<!\w)[A-Zdθ]|[‖\]])_(\w)(?!\w)", r"\1<sub>\2</sub>", raised))
