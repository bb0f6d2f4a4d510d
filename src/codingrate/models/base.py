"""What every model shares: the transformers base class, initialisation, the stack of layers, the body."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache

from ..errors import CrateError
from ..operators import (
    TSSA,
    DictionarySparsifier,
    KeyValueCache,
    OutputProjection,
    OvercompleteDictionary,
    SubspaceAttention,
    orthogonality_gap,
)
from .cache import LayerCache, adopt, cached_attention_mask, cached_length
from .config import CrateConfig
from .embedding import PatchEmbedding, PositionTable, TextEmbedding
from .layers import DecoderLayer, EncoderLayer, Synthesis
from .outputs import CrateModelOutput
from .processing import save_image_processor


@dataclass
class Trace:
    """Tokens by name along a forward pass; lists stay empty unless asked for."""

    states: bool | Collection[int] = False
    """Whether tokens are written down, or of which layers, from 0 and on into a decoder; the others' are None."""
    return_attention: bool = False
    hidden: list[Tensor | None] = field(default_factory=list)
    compressed: list[Tensor | None] = field(default_factory=list)
    attentions: list[Tensor] = field(default_factory=list)

    def run(
        self,
        layers: nn.ModuleList,
        z: Tensor,
        mask: Tensor | None = None,
        num_queries: int | None = None,
        caches: Sequence[KeyValueCache] = (),
    ) -> Tensor:
        """Z through the layers, writing down what was asked for; the first Z is the caller's to write.

        If nothing is recorded, the last layer computes only the first `num_queries` tokens. `caches` hold the keys and
        values of earlier tokens, one per layer.
        """
        for index, layer in enumerate(layers):
            last = index == len(layers) - 1 and not self.states and not self.return_attention
            options: tuple[Any, ...] = (num_queries,) if last and num_queries else ()
            if caches:
                options = (*(options or (None,)), caches[index])
            z, compressed, attention = layer(z, mask, self.return_attention, *options)
            if self.states:
                number = len(self.compressed)
                self.compressed.append(compressed if self.keeps(number) else None)
                self.hidden.append(z if self.keeps(number, number + 1) else None)
            if attention is not None:
                self.attentions.append(attention)
        return z

    def start(self, z: Tensor) -> Tensor:
        """Z^1, written down if asked for."""
        if self.states:
            self.hidden.append(z if self.keeps(0) else None)
        return z

    def keeps(self, *layers: int) -> bool:
        """Whether what one of these layers reads or gives is written down."""
        return self.states is True or (not isinstance(self.states, bool) and any(n in self.states for n in layers))

    def outputs(self) -> dict[str, Any]:
        """The fields every model output shares."""
        return {
            "hidden_states": tuple(self.hidden) if self.states else None,
            "compressed_states": tuple(self.compressed) if self.states else None,
            "attentions": tuple(self.attentions) if self.return_attention else None,
        }


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode for the duration of a `with` block, then restore the mode of every module.

    Each module is restored by itself, because a frozen body may be in eval mode within a model in training.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(model.training)  # drops what modules cache in eval mode
        for module, mode in modes:
            module.training = mode


class CratePreTrainedModel(PreTrainedModel):
    """Base of all models: initialisation, orthogonality, and an image processor saved with vision models."""

    config_class = CrateConfig
    config: CrateConfig
    base_model_prefix = "crate"
    main_input_name = "pixel_values"
    input_modalities = ["image", "text"]  # noqa: RUF012 (transformers' own form)
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = 1.0 if self.config.initializer == "torch" else self.config.initializer_range
        if isinstance(module, nn.Linear):
            self._init_linear(module)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, PositionTable):
            if self.config.positions == "learned":
                init.normal_(module.weight, std=std)
            else:
                init.copy_(module.weight, module.formula())
        elif isinstance(module, PatchEmbedding) and module.class_token is not None:
            init.normal_(module.class_token, std=std)
        elif isinstance(module, (DictionarySparsifier, OvercompleteDictionary, Synthesis)):
            for dictionary in module.parameters(recurse=False):
                init.kaiming_uniform_(dictionary)
        elif isinstance(module, TSSA):
            init.ones_(module.temperature)
            if module.position_bias is not None:
                init.zeros_(module.position_bias)

    def _init_linear(self, module: nn.Linear) -> None:
        bias = 0.0
        if self.config.initializer == "xavier":
            init.xavier_uniform_(module.weight)
        elif self.config.initializer == "normal":
            scaled = self.config.scaled_output_init and isinstance(module, OutputProjection)
            branches = 2 * self.config.num_hidden_layers if scaled else 1
            init.normal_(module.weight, std=self.config.initializer_range / math.sqrt(branches))
        else:  # what nn.Linear does by itself
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            bias = 1 / math.sqrt(module.in_features)
        if module.bias is not None:
            init.uniform_(module.bias, -bias, bias)

    def expect_modality(self, config: CrateConfig, modality: str) -> None:
        """Refuse a config that was made for other data."""
        if config.modality != modality:
            raise CrateError(f"{type(self).__name__} needs modality={modality!r}, not {config.modality!r}")

    def orthogonality(self) -> list[dict[str, float | str]]:
        """How far each layer is from the theory's constraint, a row per layer.

        `within` is the mean of ‖U_kᵀU_k − I‖_F over heads, `across` ‖UᵀU − I‖_F of U = [U_1 … U_K], and
        `dictionary` ‖DᵀD − I‖_F; an operator without bases or dictionary has no such entry.
        """
        rows = []
        for name, layer in self.named_modules():
            if isinstance(layer, (EncoderLayer, DecoderLayer)):
                row: dict[str, float | str] = {"layer": name}
                for key, gap in _gaps(layer).items():
                    row[key] = float(gap.mean().detach())
                rows.append(row)
        return rows

    def orthogonality_penalty(self) -> Tensor:
        """Σ over layers of ‖UᵀU − I‖² + ‖DᵀD − I‖², differentiable."""
        gaps = [
            gaps[key].square()
            for layer in self.modules()
            if isinstance(layer, (EncoderLayer, DecoderLayer))
            for gaps in (_gaps(layer),)
            for key in ("across", "dictionary")
            if key in gaps
        ]
        return torch.stack(gaps).sum() if gaps else torch.zeros((), device=self.device)

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Count the parameters and, unless `only_trainable`, the frozen tables, which published sizes include.

        Frozen tables (sinusoidal positions, unit gains of prototypes) are buffers. DINO's center is state, not counted.
        """
        frozen = 0 if only_trainable else sum(b.numel() for name, b in self.named_buffers() if name != "center")
        return int(super().num_parameters(only_trainable, exclude_embeddings)) + frozen

    def regularized(self, loss: Tensor) -> Tensor:
        """The training loss with the orthogonality penalty where the config asks for one."""
        if self.training and self.config.orthogonality == "penalty":
            return loss + self.config.orthogonality_weight * self.orthogonality_penalty()
        return loss

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save weights and config, and for vision models the image processor that pipelines look for."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if self.config.modality == "vision" and kwargs.get("is_main_process", True):
            save_image_processor(self.config, save_directory)


def _real(attention_mask: Tensor | None, z: Tensor, past_length: int | Tensor) -> Tensor | None:
    """The caller's mask as booleans: which tokens are real, or which pairs are visible where it has four axes."""
    if attention_mask is None or (attention_mask.ndim == 4 and attention_mask.dtype == torch.bool):
        return attention_mask
    batch, tokens = z.shape[:2]
    expected = (batch, past_length + tokens if isinstance(past_length, int) else attention_mask.shape[-1])
    if tuple(attention_mask.shape) != expected:
        raise CrateError(f"attention_mask has shape {tuple(attention_mask.shape)}; expected {expected}")
    return attention_mask.bool()


def _gaps(layer: nn.Module) -> dict[str, Tensor]:
    gaps = {}
    attention = layer.attention
    if isinstance(attention, SubspaceAttention):
        gaps["within"] = orthogonality_gap(attention.bases)
        gaps["across"] = orthogonality_gap(attention.subspaces().mT)
    if isinstance(layer, DecoderLayer):
        gaps["dictionary"] = orthogonality_gap(layer.synthesis.dictionary)
    elif isinstance(layer, EncoderLayer) and isinstance(layer.sparsifier, DictionarySparsifier):
        gaps["dictionary"] = orthogonality_gap(layer.sparsifier.atoms())
    return gaps


class CrateModel(CratePreTrainedModel):
    """The body: f^pre, then f^1 … f^L (paper 2.5). Reads `pixel_values` or `input_ids` by its modality."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        self.embedding: PatchEmbedding | TextEmbedding = (
            PatchEmbedding(config) if config.modality == "vision" else TextEmbedding(config)
        )
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))
        norm = nn.LayerNorm(config.hidden_size, eps=config.head_norm_eps) if config.final_norm else nn.Identity()
        self.norm = norm
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The word embedding, or the patch projection."""
        embedding = self.embedding
        return embedding.project if isinstance(embedding, PatchEmbedding) else embedding.words

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embedding, or the patch projection."""
        setattr(self.embedding, "project" if self.config.modality == "vision" else "words", value)

    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Collection[int] | None = None,
        return_dict: bool | None = None,
        num_queries: int | None = None,
        **_: Any,
    ) -> CrateModelOutput | tuple[Any, ...]:
        """Images or ids to Z^{L+1} (batch, n, d); `attention_mask` (batch, n) is 1 where a token is real.

        With `num_queries` the last layer computes only the first so many tokens, unless hidden states are asked for.
        A causal text model goes on from the tokens in `past_key_values`, any cache of transformers, or starts one with
        `use_cache=True`; `attention_mask` then counts earlier tokens as well. It hands the cache out unless
        `use_cache=False`. `output_hidden_states` may name the layers, from 0, whose tokens are wanted.
        """
        trace = self.trace(output_hidden_states, output_attentions)
        cache = self.cache(past_key_values, use_cache)
        caches: list[LayerCache] = []
        mask = None
        if self.config.modality == "vision":
            if pixel_values is None:
                raise CrateError("pixel_values is missing; a vision model reads (batch, channels, height, width)")
            z = self.embedding(pixel_values)
        else:
            past_length = cached_length(cache)
            z = self.embedding(
                input_ids,
                inputs_embeds=inputs_embeds,
                position_ids=position_ids,
                token_type_ids=token_type_ids,
                attention_mask=attention_mask,
                past_length=past_length,
            )
            mask = _real(attention_mask, z, past_length)
            if cache is not None:
                caches = [LayerCache(cache, index, past_length) for index in range(len(self.layers))]
                if mask is None or mask.ndim == 2:
                    mask = cached_attention_mask(cache, past_length, mask, z.shape[1], z.device)
        z = trace.run(self.layers, trace.start(z), mask, num_queries, caches)
        kept = None if use_cache is False else cache
        output = CrateModelOutput(last_hidden_state=self.norm(z), past_key_values=kept, **trace.outputs())
        return output if self.returns_dict(return_dict) else output.to_tuple()

    def cache(self, given: Cache | None, wanted: bool | None) -> Cache | None:
        """The cache to go on with: the one given, a new one where it is wanted, or none."""
        if given is None and not wanted:
            return None
        layers = cast("list[EncoderLayer]", list(self.layers))
        kept = layers[0].attention.cache_tensors
        if not self.config.causal or not kept:
            kind = f"attention {self.config.attention!r}" if self.config.causal else "a model without causal=True"
            raise CrateError(f"{kind} keeps nothing of earlier tokens; take use_cache=False")
        if self.training and layers[0].gradient_checkpointing:  # what a layer keeps would be kept twice
            if given is None:
                return None
            raise CrateError("past_key_values cannot be used while gradient checkpointing computes layers twice")
        cache = DynamicCache() if given is None else given
        if kept == 1:
            adopt(cache)
        return cache

    def trace(self, states: bool | Collection[int] | None, return_attention: bool | None) -> Trace:
        """What to write down: the caller's word, else the config's."""
        states = bool(self.config.output_hidden_states) if states is None else states
        return_attention = self.config.output_attentions if return_attention is None else return_attention
        return Trace(states=states, return_attention=bool(return_attention))

    def returns_dict(self, return_dict: bool | None) -> bool:
        """Whether to answer with a named output or a tuple: the caller's word, else the config's."""
        return bool(self.config.return_dict if return_dict is None else return_dict)
