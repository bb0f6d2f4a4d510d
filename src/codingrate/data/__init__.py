"""Data: images, running text, labeled sentences and annotated objects, opened by name, path or hub id.

Images are decoded and cropped in loader workers and augmented in batches on the device. Text is tokenized once into a
file of ids, from which blocks are read.
"""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
