"""Fonts of figures: installed fonts for Chinese, Japanese and Korean, and what to draw where no font has a glyph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font

_EAST_ASIAN = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR",
    "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Unifont", "IPAexGothic",
    "IPAGothic", "NanumGothic", "Arial Unicode MS", "PingFang SC", "Hiragino Sans GB", "AppleGothic", "Microsoft YaHei",
    "SimHei", "Yu Gothic", "MS Gothic", "Malgun Gothic",
)  # fmt: skip


@cache
def east_asian_fonts() -> tuple[str, ...]:
    """Return the installed font families with Chinese, Japanese or Korean glyphs that are commonly found."""
    installed = {font.name for font in fontManager.ttflist}
    return tuple(name for name in _EAST_ASIAN if name in installed)


def font_families(first: str = "DejaVu Sans") -> list[str]:
    """Return a font family and those that are used for glyphs that it does not have."""
    return list(dict.fromkeys([first, "DejaVu Sans", *east_asian_fonts()]))


@cache
def _has_glyph(sign: str) -> bool:
    fonts = (findfont(FontProperties(family=name)) for name in font_families())
    return any(FT2Font(font).get_char_index(ord(sign)) for font in fonts)


def can_draw(text: str) -> bool:
    """Return whether the installed fonts have a glyph for every character of a text."""
    return all(sign.isspace() or _has_glyph(sign) for sign in text)


def drawable(text: str) -> str:
    """Replace every character that no installed font has a glyph for by its code, such as ‹65e5›."""
    return "".join(sign if can_draw(sign) else f"‹{ord(sign):x}›" for sign in text)


def short_name(name: str) -> str:
    """Return at most 32 characters of a name: its beginning and its end."""
    return name if len(name) <= 32 else f"{name[:12]}…{name[-19:]}"


def plain_label(text: str) -> str:
    """Return a text for a legend, in which a dollar sign is a dollar sign; legends leave out what starts with _."""
    return f"{' ' * text.startswith('_')}{text}".replace("$", "\\$")


def plot_label(name: str) -> str:
    """Return a name for a title or a legend: at most 32 characters, in which a dollar sign is a dollar sign."""
    return plain_label(short_name(name))


def drawable_names(names: Sequence[str]) -> list[str] | None:
    """Return names for the axes of a figure; None if one cannot be drawn, so that numbers with a legend are better."""
    return list(names) if all(map(can_draw, names)) else None
