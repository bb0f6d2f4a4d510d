"""The paper's pseudocode as it stands: the model our own is timed against, with the same weights.

Explicit softmax, ISTA in the order it is written, patches rearranged before a LayerNorm. Tests use it as an oracle.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.classifier import CrateForImageClassification
from ..models.config import CrateConfig
from ..models.embedding import PatchEmbedding


class NaiveMSSA(nn.Module):
    """MSSA with the attention matrix written out."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        inner = config.num_attention_heads * config.subspace_dim
        self.heads, self.scale = config.num_attention_heads, config.subspace_dim**-0.5
        self.project = nn.Linear(config.hidden_size, inner, bias=False)
        self.output = nn.Linear(inner, config.hidden_size)

    def forward(self, z: Tensor) -> Tensor:
        """Tokens (batch, n, d) to their update."""
        batch, tokens, _ = z.shape
        w = self.project(z).reshape(batch, tokens, self.heads, -1).transpose(1, 2)
        scores = torch.matmul(w, w.transpose(-1, -2)) * self.scale
        out = torch.matmul(torch.softmax(scores, dim=-1), w)
        return self.output(out.transpose(1, 2).reshape(batch, tokens, -1))


class NaiveISTA(nn.Module):
    """ISTA one product after the other."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.dictionary = nn.Parameter(torch.empty(config.hidden_size, config.hidden_size))
        self.step_size, self.sparsity = config.step_size, config.sparsity

    def forward(self, z: Tensor) -> Tensor:
        """Tokens (batch, n, d) to sparse tokens."""
        reconstruction = F.linear(z, self.dictionary)
        gradient = self.step_size * F.linear(reconstruction - z, self.dictionary.t())
        return F.relu(z - gradient - self.step_size * self.sparsity)


class NaiveLayer(nn.Module):
    """One encoder layer of the pseudocode, LayerNorm computed wherever it is written."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        self.attention_norm, self.attention = nn.LayerNorm(d, eps=eps), NaiveMSSA(config)
        self.sparsifier_norm, self.sparsifier = nn.LayerNorm(d, eps=eps), NaiveISTA(config)

    def forward(self, z: Tensor) -> Tensor:
        """Z^ℓ to Z^{ℓ+1}."""
        z = self.attention(self.attention_norm(z)) + self.attention_norm(z)
        return self.sparsifier(self.sparsifier_norm(z))


class NaiveClassifier(nn.Module):
    """The image classifier of the pseudocode, with the weights of one of ours."""

    def __init__(self, model: CrateForImageClassification) -> None:
        super().__init__()
        config = model.config
        self.patch = config.patch_size
        self.embedding = cast(PatchEmbedding, model.crate.embedding)
        self.layers = nn.ModuleList(NaiveLayer(config) for _ in range(config.num_hidden_layers))
        self.layers.load_state_dict(model.crate.layers.state_dict())
        self.head = nn.Sequential(model.head_norm, model.head)

    def forward(self, pixels: Tensor) -> Tensor:
        """Images (batch, channels, height, width) to logits (batch, classes)."""
        batch, channels, height, width = pixels.shape
        p, e = self.patch, self.embedding
        x = pixels.reshape(batch, channels, height // p, p, width // p, p).permute(0, 2, 4, 3, 5, 1)
        x = e.token_norm(e.project(e.patch_norm(x.reshape(batch, -1, p * p * channels))))
        assert e.class_token is not None
        assert e.positions is not None
        x = torch.cat([e.class_token.expand(batch, 1, -1), x], dim=1) + e.positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])
