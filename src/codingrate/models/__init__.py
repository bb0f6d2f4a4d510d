"""Models: configuration, embeddings, layers f^ℓ and g^ℓ, task models, presets, loading and importing."""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
