"""The look of the explorer: a theme with system fonts, the style sheet, and the few scripts of its HTML pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._chart import BLUE, SKY
from .._chart import STYLE as CHART_STYLE

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


CSS = CHART_STYLE + _asset("style.css")
PICTURE_SCRIPT = _asset("picture.js")
BUTTON_SCRIPT = _asset("buttons.js")
DROP_SCRIPT = _asset("drop.js")
TOKEN_SCRIPT = _asset("tokens.js")
LINK_SCRIPT = _asset("link.js")


def theme() -> Any:
    """Return gradio's plain theme in blue, with fonts that every system has, so that none is downloaded."""
    import gradio as gr

    hues: Any = {"primary_hue": "blue", "secondary_hue": "blue", "neutral_hue": "slate"}
    plain = gr.themes.Default(font=FONTS, font_mono=("ui-monospace", "monospace"), **hues)
    accent: Any = {
        "slider_color": BLUE,
        "slider_color_dark": SKY,
        "button_primary_background_fill": BLUE,
        "button_primary_background_fill_hover": "#005f94",
        "checkbox_background_color_selected": BLUE,
        "checkbox_border_color_selected": BLUE,
    }
    return plain.set(block_border_width="0px", block_shadow="none", block_background_fill="transparent", **accent)
