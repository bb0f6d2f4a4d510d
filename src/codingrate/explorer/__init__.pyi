from . import draw, images, monitor, style, texts
from .app import build_app, build_tab, launch
from .guard import Guard
from .images import ImageInput
from .library import Entry, Library, Prediction
from .playground import Play, PlaySettings, play
from .texts import TextInput

__all__ = [
    "Entry", "Guard", "ImageInput", "Library", "Play", "PlaySettings", "Prediction", "TextInput", "build_app",
    "build_tab", "draw", "images", "launch", "monitor", "play", "style", "texts",
]  # fmt: skip
