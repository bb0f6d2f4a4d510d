"""The paper's pseudocode, transcribed line by line: a baseline with our weights, and an oracle for tests.

The softmax is explicit, ISTA follows its formula, and LayerNorm is computed wherever the pseudocode writes it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.classifier import CrateForImageClassification
from ..models.embedding import PatchEmbedding


class NaiveClassifier(nn.Module):
    """The image classifier of the pseudocode. It uses the parameters of `model` but none of its forward passes."""

    def __init__(self, model: CrateForImageClassification) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to logits (batch, classes)."""
        config, e = self.model.config, cast(PatchEmbedding, self.model.crate.embedding)
        batch, channels, height, width = pixels.shape
        p = config.patch_size
        x = pixels.reshape(batch, channels, height // p, p, width // p, p).permute(0, 2, 4, 3, 5, 1)
        x = e.token_norm(e.project(e.patch_norm(x.reshape(batch, -1, p * p * channels))))
        assert e.class_token is not None
        assert e.positions is not None
        x = torch.cat([e.class_token.expand(batch, 1, -1), x], dim=1) + e.positions.weight
        for layer in cast(Any, self.model.crate.layers):
            x = mssa(layer.attention_norm(x), layer.attention, config.num_attention_heads) + layer.attention_norm(x)
            x = ista(layer.sparsifier_norm(x), layer.sparsifier.dictionary, config.step_size, config.sparsity)
        return self.model.head(self.model.head_norm(x[:, 0]))


def mssa(z: Tensor, attention: Any, heads: int) -> Tensor:
    """Compute the update of tokens (batch, n, d) by MSSA with an explicit attention matrix."""
    batch, tokens, _ = z.shape
    w = attention.project(z).reshape(batch, tokens, heads, -1).transpose(1, 2)
    scores = torch.matmul(w, w.transpose(-1, -2)) * w.shape[-1] ** -0.5
    out = torch.matmul(torch.softmax(scores, dim=-1), w)
    return attention.output(out.transpose(1, 2).reshape(batch, tokens, -1))


def ista(z: Tensor, dictionary: Tensor, step_size: float, sparsity: float) -> Tensor:
    """Take an ISTA step on tokens (batch, n, d), one matrix product after the other."""
    reconstruction = F.linear(z, dictionary)
    gradient = step_size * F.linear(reconstruction - z, dictionary.t())
    return F.relu(z - gradient - step_size * sparsity)
