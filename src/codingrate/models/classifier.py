"""The image classifier (paper 4.1.1): the body, one pooled token, a linear head."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .base import CrateModel, CratePreTrainedModel
from .config import CrateConfig
from .outputs import CrateTaskOutput, can_return_tuple


class CrateForImageClassification(CratePreTrainedModel):
    """f^head ∘ f: class token or mean of all tokens, LayerNorm, then W^head (pseudocode of the paper)."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.crate = CrateModel(config)
        self.head_norm = nn.LayerNorm(d, eps=config.head_norm_eps) if config.head_norm else nn.Identity()
        self.head = nn.Linear(d, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()

    def features(self, pixel_values: Tensor) -> Tensor:
        """Compute the input of the head (batch, d), which probes and neighbor search use as features."""
        return self.head_norm(self.crate.pooled(pixel_values)[1])

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CrateTaskOutput:
        """Map images (batch, channels, height, width) to logits (batch, classes).

        Args:
            labels: Class indices (batch,) or, for mixed targets, distributions (batch, classes). With `problem_type` in
                the config they may be several classes per image (batch, classes), as 0 and 1, or numbers to regress.
            num_items_in_batch: Number of labels of an optimizer step that this batch is a part of.
            kwargs: Keywords of the body, such as `output_hidden_states`.
        """
        body, z = self.crate.pooled(pixel_values, **kwargs)
        logits = self.head(self.head_norm(z))
        loss = None if labels is None else self.classification_loss(logits, labels, num_items_in_batch, body.objective)
        return CrateTaskOutput.from_body(body, logits, loss)
