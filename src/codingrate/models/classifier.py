"""The image classifier (paper 4.1.1): the body, one pooled token, a linear head."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .base import CrateModel, CratePreTrainedModel
from .config import CrateConfig
from .outputs import CrateTaskOutput, can_return_tuple


class CrateForImageClassification(CratePreTrainedModel):
    """f^head ∘ f: class token or mean of all tokens, LayerNorm, then W^head (pseudocode of the paper)."""

    def __init__(self, config: CrateConfig) -> None:
        self.expect_modality(config, "vision")
        super().__init__(config)
        d = config.hidden_size
        self.crate = CrateModel(config)
        self.head_norm = nn.LayerNorm(d, eps=config.head_norm_eps) if config.head_norm else nn.Identity()
        self.head = nn.Linear(d, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()

    def features(self, pixel_values: Tensor) -> Tensor:
        """Compute the input of the head (batch, d), which probes and neighbor search use as features."""
        body = self.crate(pixel_values, return_dict=True, num_queries=self.config.pooled_queries)
        return self.pool(body.last_hidden_state)

    def pool(self, last_hidden_state: Tensor) -> Tensor:
        """Pool tokens (batch, n, d) by class token or mean, and normalize them to (batch, d)."""
        if self.config.pooling == "class":
            return self.head_norm(last_hidden_state[:, 0])
        return self.head_norm(last_hidden_state.mean(dim=1))

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Collection[int] | None = None,
        **_: Any,
    ) -> CrateTaskOutput:
        """Map images (batch, channels, height, width) to logits (batch, classes).

        `labels` are class indices (batch,) or, for mixed targets, distributions (batch, classes).
        """
        body = self.crate(
            pixel_values,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            num_queries=self.config.pooled_queries,
        )
        logits = self.head(self.pool(body.last_hidden_state))
        loss = None if labels is None else self.regularized(F.cross_entropy(logits, labels))
        return CrateTaskOutput.from_body(body, logits, loss)
