"""The image classifier (paper 4.1.1): the body, one pooled token, a linear head."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .base import CrateModel, CratePreTrainedModel
from .config import CrateConfig
from .outputs import CrateTaskOutput


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
        """What the head reads of images, (batch, d): for probes and neighbours."""
        num_queries = 1 if self.config.pooling == "class" else None
        return self.pool(self.crate(pixel_values, return_dict=True, num_queries=num_queries).last_hidden_state)

    def pool(self, last_hidden_state: Tensor) -> Tensor:
        """The pooled and normalised token the head reads, (batch, d)."""
        if self.config.pooling == "class":
            return self.head_norm(last_hidden_state[:, 0])
        return self.head_norm(last_hidden_state.mean(dim=1))

    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Collection[int] | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> CrateTaskOutput | tuple[Any, ...]:
        """Images (batch, channels, height, width) to logits (batch, classes).

        `labels` are class indices (batch,) or, for mixed targets, distributions (batch, classes).
        """
        body = self.crate(
            pixel_values,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            num_queries=1 if self.config.pooling == "class" else None,
        )
        logits = self.head(self.pool(body.last_hidden_state))
        loss = None if labels is None else self.regularized(F.cross_entropy(logits, labels))
        output = CrateTaskOutput(
            loss=loss,
            logits=logits,
            hidden_states=body.hidden_states,
            compressed_states=body.compressed_states,
            attentions=body.attentions,
        )
        return output if self.crate.returns_dict(return_dict) else output.to_tuple()
