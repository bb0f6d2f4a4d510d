"""Text models (paper 4.1.4): CRATE-BERT's masked LM, CRATE-GPT's causal LM, sequence classification."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers import initialization as init
from transformers.cache_utils import Cache

from ..errors import CrateError
from .base import CrateModel, CratePreTrainedModel
from .cache import cached_attention_mask, cached_length
from .config import CrateConfig
from .outputs import CrateModelOutput, CrateTaskOutput


class _TextModel(CratePreTrainedModel):
    """A text body with a head on top."""

    main_input_name = "input_ids"

    def __init__(self, config: CrateConfig) -> None:
        self.expect_modality(config, "text")
        super().__init__(config)
        self.crate = CrateModel(config)

    def answer(
        self, body: CrateModelOutput, logits: Tensor, loss: Tensor | None, return_dict: bool | None
    ) -> CrateTaskOutput | tuple[Any, ...]:
        """Logits, loss and the body's trace in one output."""
        output = CrateTaskOutput(
            loss=None if loss is None else self.regularized(loss),
            logits=logits,
            hidden_states=body.hidden_states,
            compressed_states=body.compressed_states,
            attentions=body.attentions,
            past_key_values=body.past_key_values,
        )
        return output if self.crate.returns_dict(return_dict) else output.to_tuple()


class PredictionTransform(nn.Module):
    """RoBERTa's frame around a tied head: linear, GELU, LayerNorm; the published sizes count it."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.head_norm_eps)

    def forward(self, z: Tensor) -> Tensor:
        """Tokens (batch, n, d) to tokens (batch, n, d)."""
        return self.norm(F.gelu(self.dense(z)))


class CrateForMaskedLM(_TextModel):
    """CRATE-BERT: W^head Z over the vocabulary, cross-entropy where `labels` is not −100."""

    _tied_weights_keys = {"head.weight": "crate.embedding.words.weight"}  # noqa: RUF012 (transformers' own form)

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        self.transform = PredictionTransform(config) if config.prediction_transform else nn.Identity()
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.prediction_transform)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.head and module.bias is not None:
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Module:
        """The head, tied to the word embedding unless the config says otherwise."""
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.head = new_embeddings  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CrateTaskOutput | tuple[Any, ...]:
        """Ids (batch, n) to logits (batch, n, vocabulary)."""
        body = self.crate(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        logits = self.head(self.transform(body.last_hidden_state))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return self.answer(body, logits, loss, return_dict)


class CrateForCausalLM(_TextModel, GenerationMixin):
    """CRATE-GPT: causal layers, W^head Z over the vocabulary, each token predicting the next.

    `generate` is transformers', with any of its caches; those of `mssa` hold one tensor per layer (`models.cache`).
    """

    _tied_weights_keys = {"head.weight": "crate.embedding.words.weight"}  # noqa: RUF012 (transformers' own form)

    def __init__(self, config: CrateConfig) -> None:
        if not config.causal:
            raise CrateError("CrateForCausalLM needs causal=True")
        super().__init__(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.attention == "tssa":  # statistics of all tokens, taken anew at every step
            self.generation_config.use_cache = False
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The head, tied to the word embedding unless the config says otherwise."""
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.head = new_embeddings  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CrateTaskOutput | tuple[Any, ...]:
        """Ids (batch, n) to logits (batch, n, vocabulary); `labels` are the ids themselves, shifted here.

        `logits_to_keep` asks for the last so many positions only, or for those listed; 0 is all. The ids continue
        the sequences in `past_key_values`, whose tokens `attention_mask` counts as well.
        """
        body = self.crate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.head(body.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            if logits.shape[1] != labels.shape[1]:
                raise CrateError("labels need the logits of every position; leave logits_to_keep at 0")
            # Labels move, not logits: to leave out the last row of these would copy them all.
            following = F.pad(labels[:, 1:], (0, 1), value=-100)
            loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        return self.answer(body, logits, loss, return_dict)

    def create_masks_for_generate(
        self,
        *,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache,
        **_: Any,
    ) -> Tensor | None:
        """Which tokens the new ones see, as a table of fixed shape: what `generate` gives a step it may compile."""
        tokens, past_length = inputs_embeds.shape[1], cached_length(past_key_values)
        mask = None if attention_mask is None else attention_mask.bool()
        return cached_attention_mask(past_key_values, past_length, mask, tokens, inputs_embeds.device)

    def _validate_generated_length(
        self, generation_config: GenerationConfig, input_ids_length: int, has_default_max_length: bool
    ) -> None:
        """Refuse, before anything is computed, a text that the position table has no rows for."""
        room, wanted = self.config.max_position_embeddings, generation_config.max_length
        if input_ids_length >= room or wanted > room:
            raise CrateError(
                f"prompt of {input_ids_length} tokens and {max(wanted - input_ids_length, 1)} new ones are more than "
                f"max_position_embeddings {room}; shorten the prompt or lower max_new_tokens"
            )
        super()._validate_generated_length(  # type: ignore[misc]
            generation_config, input_ids_length, has_default_max_length
        )


class CrateForSequenceClassification(_TextModel):
    """A sentence or pair to classes or a number (GLUE): RoBERTa's head on the first token.

    A causal body is read at its last real token, the only one that has seen the whole sequence.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.dense = nn.Linear(d, d)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(d, config.num_labels or 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CrateTaskOutput | tuple[Any, ...]:
        """Ids (batch, n) to logits (batch, labels); one label is a regression with squared error."""
        body = self.crate(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        z = self.pooled(body.last_hidden_state, attention_mask)
        logits = self.head(self.dropout(torch.tanh(self.dense(self.dropout(z)))))
        loss = None
        if labels is not None and self.config.num_labels == 1:
            loss = F.mse_loss(logits[:, 0].float(), labels.flatten().float())
        elif labels is not None:
            loss = F.cross_entropy(logits, labels.flatten())
        return self.answer(body, logits, loss, return_dict)

    def pooled(self, z: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The token that stands for the sequence, (batch, d)."""
        if not self.config.causal:
            return z[:, 0]
        if attention_mask is None:
            return z[:, -1]
        places = torch.arange(z.shape[1], device=z.device)
        last = torch.where(attention_mask.bool(), places, 0).amax(dim=1)
        return z[torch.arange(len(z), device=z.device), last]
