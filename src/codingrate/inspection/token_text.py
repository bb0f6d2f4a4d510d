"""Tokens on paper: how an id is spelt, and shades of ink behind it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..data import byte_characters
from .overlay import COLORS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FONT = "DejaVu Sans Mono"
"""Comes with matplotlib; every character is as wide as any other."""
CHARACTER = 1233 / 2048
"""Width of a character of this font, in units of its size."""

_SIGNS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "→", "\r": "←"})


def spelt(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    """A token as a person can read it: space ␣, newline ⏎, tab →, and a byte that is no character by itself ‹c3›."""
    text = str(tokenizer.decode([number]))
    if "\ufffd" in text:
        token, values = str(tokenizer.convert_ids_to_tokens(number)), _bytes()
        text = "".join(f"‹{values[sign]:02x}›" if sign in values else sign for sign in token)
    text = text.translate(_SIGNS)
    return "".join(sign if sign.isprintable() else f"‹{ord(sign):02x}›" for sign in text)


def spell(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> list[str]:
    """Every token as a person can read it."""
    return [spelt(tokenizer, int(number)) for number in ids]


@cache
def _bytes() -> dict[str, int]:
    """The byte behind each of the printable stand-ins that byte-level tokenizers write."""
    return {sign: byte for byte, sign in enumerate(byte_characters())}


def drawable(text: str, most: int | None = None) -> str:
    """The text with ▯ for every character the font has no glyph for, cut to so many characters."""
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    return "".join(sign if _has_glyph(sign) else "▯" for sign in text)


@cache
def _has_glyph(sign: str) -> bool:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return bool(FT2Font(findfont(FONT)).get_char_index(ord(sign)))


def shaded(shares: NDArray[np.float64], color: int = 1, strongest: float = 0.75) -> NDArray[np.float64]:
    """Shares in [0, 1] as ink, (..., 4): one colour, more or less see-through, so that it lies on any page."""
    ink = np.empty((*shares.shape, 4))
    ink[..., :3] = np.array(COLORS[color]) / 255
    ink[..., 3] = strongest * np.clip(np.nan_to_num(shares), 0, 1)
    return ink
