"""Text models (paper 4.1.4): CRATE-BERT's masked LM, CRATE-GPT's causal LM, sequence classification."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers import initialization as init
from transformers.cache_utils import Cache

from ..errors import CrateError
from ..operators.linear import Linear
from .base import CratePreTrainedModel, CrateTextModel
from .cache import cached_attention_mask, cached_length
from .config import CrateConfig, CrateTextConfig
from .layers import EncoderLayer
from .outputs import CrateTaskOutput, can_return_tuple


class _TextModel(CratePreTrainedModel):
    """A text body, on which subclasses put a head."""

    config_class = CrateTextConfig
    main_input_name = "input_ids"
    input_modalities = ["text"]  # noqa: RUF012 (as transformers declares it)

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        self.crate = CrateTextModel(config)

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None,
        objective: Tensor | None = None,
    ) -> Tensor:
        """Compute the mean cross-entropy of the logits, where a label is not −100."""
        return self.mean_loss(F.cross_entropy, logits.flatten(0, -2), labels.flatten(), num_items_in_batch, objective)


class _LanguageModel(_TextModel):
    """A text model with a head over the vocabulary, tied to the word embedding unless the config says otherwise."""

    _tied_weights_keys = {"head.weight": "crate.embedding.words.weight"}  # noqa: RUF012 (as transformers declares it)
    head: nn.Linear

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.head = new_embeddings  # type: ignore[assignment]


class CrateForMaskedLM(_LanguageModel):
    """CRATE-BERT: W^head Z over the vocabulary, cross-entropy where `labels` is not −100.

    RoBERTa's linear map, GELU and LayerNorm before the head are optional; the published sizes include them.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.transform = nn.Sequential()
        if config.prediction_transform:
            self.transform.add_module("dense", nn.Linear(d, d))
            self.transform.add_module("activation", nn.GELU())
            self.transform.add_module("norm", nn.LayerNorm(d, eps=config.head_norm_eps))
        self.head = Linear(d, config.vocab_size, bias=config.prediction_transform)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.head and module.bias is not None:
            init.zeros_(module.bias)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_at: Tensor | None = None,
        **kwargs: Any,
    ) -> CrateTaskOutput:
        """Map ids (batch, n) to logits (batch, n, vocabulary), and compute the loss if `labels` are passed.

        With `logits_at`, which is True at the wanted positions (batch, n), the logits are (their number, vocabulary).
        Training needs only those of the masked tokens, and the head is most of the work of a small model.
        """
        body = self.crate(input_ids, attention_mask, return_dict=True, **kwargs)
        z = body.last_hidden_state
        logits = self.head(self.transform(z if logits_at is None else z[logits_at]))
        wanted = labels if labels is None or logits_at is None else labels[logits_at]
        loss = None if wanted is None else self.loss(logits, wanted, num_items_in_batch, body.objective)
        return CrateTaskOutput.from_body(body, logits, loss)


class CrateForCausalLM(_LanguageModel, GenerationMixin):
    """CRATE-GPT: causal layers, W^head Z over the vocabulary, each token predicting the next.

    `generate` and its caches are those of transformers; for `mssa` a cache holds one tensor per layer (`models.cache`).
    """

    rules = ((lambda c: not c.causal, "CrateForCausalLM needs causal=True"),)

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        self.head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if not cast(
            EncoderLayer, self.crate.layers[0]
        ).attention.cache_tensors:  # sums over tokens start anew each step
            self.generation_config.use_cache = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CrateTaskOutput:
        """Map ids (batch, n) to logits (batch, n, vocabulary); other keywords are those of the body.

        Args:
            attention_mask: 1 for real tokens; with a cache it covers the earlier tokens as well.
            position_ids: Positions of the ids in the table.
            labels: The ids themselves; they are shifted here.
            logits_to_keep: Number of positions from the end, or indices of positions, to compute logits for. 0: all.
            num_items_in_batch: Number of labels of an optimizer step that this batch is a part of.
            shift_labels: Labels that are shifted already. It is not in the signature, because transformers' Trainer
                takes every argument there with "label" in its name for one that each batch has.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        body = self.crate(input_ids, attention_mask, position_ids=position_ids, return_dict=True, **kwargs)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.head(body.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            if logits.shape[1] != labels.shape[1]:
                raise CrateError("labels need the logits of every position; leave logits_to_keep at 0")
            # The labels are shifted, not the logits: dropping the last position of the logits would copy them.
            shifted = F.pad(labels[:, 1:], (0, 1), value=-100) if shift_labels is None else shift_labels
            loss = self.loss(logits, shifted, num_items_in_batch, body.objective)
        return CrateTaskOutput.from_body(body, logits, loss)

    def create_masks_for_generate(
        self, *, inputs_embeds: Tensor, attention_mask: Tensor | None, past_key_values: Cache, **_: Any
    ) -> Tensor | None:
        """Return a mask of fixed shape for the new tokens; `generate` calls this for steps that it may compile."""
        mask = None if attention_mask is None else attention_mask.bool()
        past_length, tokens = cached_length(past_key_values), inputs_embeds.shape[1]
        return cached_attention_mask(past_key_values, past_length, mask, tokens, inputs_embeds.device)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse continuous batching, whose paged cache needs the attention functions of transformers."""
        raise CrateError("continuous batching (generate_batch) is not supported; use generate with a padded batch")

    def generate(
        self, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Continue a prompt as transformers does; a text longer than the position table is refused before it begins."""
        settings, positions = generation_config or self.generation_config, self.config.max_position_embeddings
        prompt = next(
            (x for x in (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if x is not None), None
        )
        length = 1 if prompt is None else prompt.shape[1]
        added = kwargs.get("max_new_tokens") or settings.max_new_tokens
        longest = length + added if added else kwargs.get("max_length") or settings.max_length or 0
        if max(longest, length + 1) > positions:
            raise CrateError(
                f"prompt of {length} tokens and {max(longest - length, 1)} new ones exceed "
                f"max_position_embeddings {positions}; shorten the prompt or lower max_new_tokens"
            )
        return super().generate(inputs, generation_config, *args, **kwargs)  # type: ignore[misc]


class CrateForSequenceClassification(_TextModel):
    """Classification or regression of a sentence or pair (GLUE), with RoBERTa's head on the first token.

    For a causal body the head reads the last real token, the only one that attends to the whole sequence; with
    `pooling="mean"` it reads the mean of all real tokens. The loss follows `problem_type` in the config.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.dense = nn.Linear(d, d)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(d, config.num_labels or 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CrateTaskOutput:
        """Map ids (batch, n) to logits, and compute the loss if `labels` are passed.

        `num_items_in_batch` is the number of labels of an optimizer step that this batch is a part of.
        """
        body = self.crate(input_ids, attention_mask, return_dict=True, **kwargs)
        logits = self.predict(body.last_hidden_state, attention_mask)
        loss = None if labels is None else self.loss(logits, labels, num_items_in_batch, body.objective)
        return CrateTaskOutput.from_body(body, logits, loss)

    def predict(self, z: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Map tokens (batch, n, d) to logits (batch, labels)."""
        z = self.pool(z, attention_mask)
        return self.head(self.dropout(torch.tanh(self.dense(self.dropout(z)))))

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None,
        objective: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of the config's `problem_type`."""
        return self.classification_loss(logits, labels, num_items_in_batch, objective)

    def pool(self, z: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the token that represents the sequence, or the mean of its real tokens, (batch, d)."""
        if self.config.pooling == "mean":
            if attention_mask is None or attention_mask.ndim == 4:
                return z.mean(dim=1)
            real = attention_mask.to(z.dtype)[..., None]
            return (z * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        if not self.config.causal:
            return z[:, 0]
        if attention_mask is None or attention_mask.ndim == 4:
            return z[:, -1]
        positions = torch.arange(z.shape[1], device=z.device)
        last = torch.where(attention_mask.bool(), positions, 0).amax(dim=1)
        return z[torch.arange(z.shape[0], device=z.device), last]
