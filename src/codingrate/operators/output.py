"""The map that ends a branch of a layer."""

from __future__ import annotations

from torch import nn


class OutputProjection(nn.Linear):
    """W x + b from a branch back to the tokens: a linear map that initialisation can tell from others by its kind."""
