"""Parts that all models share: the transformers base class, initialization, orthogonality, and the body."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache

from .._files import write_json
from ..errors import CrateError
from ..operators import Attention, OutputProjection, Sparsifier, SubspaceAttention
from .cache import LayerCache, cached_attention_mask, cached_length, packed_attention_mask, use_projection_layers
from .config import CrateConfig, CrateImageConfig, CrateTextConfig, Rule
from .embedding import PatchEmbedding, PositionTable, TextEmbedding
from .layers import EncoderLayer, Layer, Step, Synthesis, orthogonality_gaps
from .outputs import CrateModelOutput, Trace, can_return_tuple
from .processing import image_processor, stored_settings
from .quantization import replace_modules


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode for the duration of a `with` block, then restore the mode of every module.

    Each module is restored by itself, because a frozen body may be in eval mode within a model in training.
    """
    modes = [(module, module.training) for module in model.modules()]
    if not any(mode for _, mode in modes):
        yield  # modules keep what they cache in eval mode
        return
    model.eval()
    try:
        yield
    finally:
        model.train(model.training)  # drops what modules cache in eval mode
        for module, mode in modes:
            module.training = mode


class CratePreTrainedModel(PreTrainedModel):
    """Base class of all models: initialization, orthogonality, and the image processor saved with vision models."""

    config_class: type[CrateConfig] = CrateImageConfig
    config: CrateConfig
    base_model_prefix = "crate"
    main_input_name = "pixel_values"
    input_modalities = ["image"]  # noqa: RUF012 (as transformers declares it)
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer", "PatchEmbedding", "TextEmbedding"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    rules: tuple[Rule, ...] = ()
    """Values of a config that this model does not have."""
    preprocessing: dict[str, Any] | None = None
    """Settings of the image processor that this model reads images with, as in preprocessor_config.json. None stands
    for the paper's evaluation crop of the config's image size."""

    def __init__(self, config: CrateConfig) -> None:
        if not isinstance(config, self.config_class):
            needed = self.config_class.modality
            raise CrateError(f"{type(self).__name__} needs modality={needed!r}, not {config.modality!r}")
        config.check()  # it may have been changed since it was made
        config.obey(self.rules)
        super().__init__(config)

    def post_init(self) -> None:
        """Initialize the weights, which every model does at the end of its constructor."""
        super().post_init()
        if self.config.quantized:
            replace_modules(self)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = 1.0 if self.config.initializer == "torch" else self.config.initializer_range
        if isinstance(module, nn.Linear):
            self._init_linear(module)
        elif isinstance(module, nn.Conv2d) and module.bias is not None:  # the stem; a ReLU halves the mean square
            init.kaiming_normal_(module.weight, nonlinearity="relu")  # and this doubles it
            init.zeros_(module.bias)
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
        elif isinstance(module, (Attention, Sparsifier, Synthesis)):
            module.reset_parameters()  # transformers lets it leave alone what has been loaded
            if isinstance(module, SubspaceAttention) and module.metric is not None:
                init.copy_(module.metric, module.initial_metric())
        elif isinstance(module, EncoderLayer) and module.momentum is not None:
            init.zeros_(module.momentum)
        elif isinstance(module, Step) and module.logit is not None:
            init.constant_(module.logit, module.initial)

    def _init_linear(self, module: nn.Linear) -> None:
        if self.config.initializer == "torch":
            module.reset_parameters()
            return
        if self.config.initializer == "xavier":
            init.xavier_uniform_(module.weight)
        else:
            scaled = self.config.scaled_output_init and isinstance(module, OutputProjection)
            branches = 2 * self.config.num_hidden_layers if scaled else 1
            init.normal_(module.weight, std=self.config.initializer_range / math.sqrt(branches))
        if module.bias is not None:
            init.uniform_(module.bias, 0.0, 0.0)  # zero; with this draw a seed gives the weights that it always gave

    def orthogonality(self) -> list[dict[str, float | str]]:
        """Measure how far each layer is from the constraint of the theory; returns one row per layer.

        `within` is the mean of ‖U_kᵀU_k − I‖_F over heads, `across` is ‖UᵀU − I‖_F of U = [U_1 … U_K], and
        `dictionary` is ‖DᵀD − I‖_F. A layer without bases or without a dictionary has no such entry.
        """
        return [
            {"layer": name, **{key: float(gap.mean().detach()) for key, gap in orthogonality_gaps(layer).items()}}
            for name, layer in self.named_modules()
            if isinstance(layer, Layer)
        ]

    def orthogonality_penalty(self) -> Tensor:
        """Compute Σ over layers of ‖UᵀU − I‖² + ‖DᵀD − I‖², differentiable."""
        layers = [orthogonality_gaps(layer) for layer in self.modules() if isinstance(layer, Layer)]
        gaps = [gap.square() for layer in layers for key, gap in layer.items() if key != "within"]
        return torch.stack(gaps).sum() if gaps else torch.zeros((), device=self.device)

    def regularized(self, loss: Tensor, share: float | Tensor = 1.0, objective: Tensor | None = None) -> Tensor:
        """Add the orthogonality penalty and the layers' own objective to a training loss if the config asks for them.

        `share` is the part of an optimizer step that this batch is, if the loss is that part of its mean; `objective`
        is that of the output of the body.
        """
        if self.training and self.config.orthogonality == "penalty":
            loss = loss + self.config.orthogonality_weight * share * self.orthogonality_penalty()
        return loss if objective is None else loss + self.config.objective_weight * share * objective

    def mean_loss(
        self,
        function: Callable[..., Tensor],
        logits: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None,
        objective: Tensor | None = None,
    ) -> Tensor:
        """Compute the training loss by a function of PyTorch: its mean over the labels that are not −100.

        transformers' Trainer passes the number of labels of all the batches of an optimizer step, on all processes, as
        `num_items_in_batch`. The loss is then the part that this batch adds to the mean over all of them.
        """
        distributions = function is F.cross_entropy and labels.is_floating_point()  # one term per row, not per number
        try:
            if num_items_in_batch is None:
                return self.regularized(function(logits, labels), objective=objective)
            total = function(logits, labels, reduction="sum") * (labels.shape[-1] if distributions else 1)
        except (IndexError, ValueError) as error:  # PyTorch finds a bad label without waiting for a GPU
            raise CrateError(f"labels do not fit logits {tuple(logits.shape)}: {error}") from error
        count = torch.as_tensor(num_items_in_batch, device=logits.device)
        return self.regularized(total / count, labels.ne(-100).sum() / count, objective)

    def classification_loss(
        self,
        logits: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None = None,
        objective: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of logits (batch, classes) by the `problem_type` of the config, as transformers does.

        Without one, a single output means regression. Otherwise labels are class indices (batch,) or distributions
        (batch, classes), the targets of mixed images.
        """
        kind = self.config.problem_type or ("regression" if logits.shape[-1] == 1 else "single_label_classification")
        if kind == "single_label_classification":
            guessed = self.config.problem_type is None and labels.is_floating_point()
            if guessed and not torch.compiler.is_compiling() and bool(((labels.sum(-1) - 1).abs() > 1e-2).any()):
                raise CrateError(
                    "labels do not sum to 1 in each row; set problem_type to 'multi_label_classification' if they are "
                    "several classes per sample, or to 'single_label_classification' if they are weights of classes"
                )
            return self.mean_loss(F.cross_entropy, logits, labels, num_items_in_batch, objective)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        function = F.mse_loss if kind == "regression" else F.binary_cross_entropy_with_logits
        return self.mean_loss(function, logits, labels.to(logits.dtype).view_as(logits), num_items_in_batch, objective)

    def set_attn_implementation(self, attn_implementation: str | dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Choose between fused and eager attention; others are refused, which the operators would not call."""
        if attn_implementation not in ("sdpa", "eager"):
            raise CrateError(
                f"attn_implementation {attn_implementation!r} is not supported, because the attention of these models "
                "is chosen by the config field `attention`; use 'sdpa' or 'eager'"
            )
        super().set_attn_implementation(attn_implementation, *args, **kwargs)

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Checkpoint every n-th layer; transformers would count only layers of a class whose import is slow."""
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, offload=offload)
        for index, layer in enumerate(module for module in self.modules() if isinstance(module, Layer)):
            layer.gradient_checkpointing = index % every_n_layers == 0

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Count the parameters and, unless `only_trainable`, the frozen tables, which published sizes include.

        Frozen tables (sinusoidal positions, unit gains of prototypes) are buffers. The center of DINO is not counted.
        """
        frozen = 0 if only_trainable else sum(b.numel() for name, b in self.named_buffers() if name != "center")
        return int(super().num_parameters(only_trainable, exclude_embeddings)) + frozen

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load weights and config from a folder or a hub id; a run folder is refused with the call that opens it."""
        folder = Path(str(pretrained_model_name_or_path))
        if (folder / "recipe.yaml").is_file() and not (folder / "config.json").is_file():
            raise CrateError(f"{folder}: is a run folder; codingrate.load({str(folder)!r}) loads its model")
        kwargs.setdefault("trust_remote_code", False)  # or transformers would ask, and run code after a "y"
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
        if model.config.modality == "vision" and pretrained_model_name_or_path is not None:
            model.preprocessing = stored_settings(pretrained_model_name_or_path, kwargs)
        return loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save weights and config, and for vision models the model's image processor, which pipelines look for."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if self.config.modality == "vision" and kwargs.get("is_main_process", True):
            default = image_processor(self.config.image_sides, self.config.num_channels).to_dict()
            write_json(Path(save_directory) / "preprocessor_config.json", self.preprocessing or default)


class CrateModel(CratePreTrainedModel):
    """The body: f^pre, then f^1 … f^L (paper 2.5). `CrateModel(config)` of a text config is a `CrateTextModel`."""

    def __new__(cls, config: CrateConfig | None = None, *_: Any, **__: Any) -> CrateModel:
        """Create the body of the modality that the config names."""
        text = cls is CrateModel and config is not None and config.modality == "text"
        return super().__new__(CrateTextModel if text else cls)

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        self.embedding = PatchEmbedding(config) if config.modality == "vision" else TextEmbedding(config)
        self.layers = nn.ModuleList(
            EncoderLayer(config, rate, config.momentum and index > 0)
            for index, rate in enumerate(config.drop_path_rates)
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.head_norm_eps) if config.final_norm else nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embedding, or the patch projection."""
        return getattr(self.embedding, "project" if self.config.modality == "vision" else "words")

    def set_input_embeddings(self, value: nn.Module) -> None:
        setattr(self.embedding, "project" if self.config.modality == "vision" else "words", value)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Collection[int] | None = None,
        num_queries: int | None = None,
        **_: Any,
    ) -> CrateModelOutput:
        """Map images (batch, channels, height, width) to Z^{L+1} (batch, n, d).

        Args:
            output_hidden_states: Whether to return the tokens of all layers, or the layers to return, from 0.
            num_queries: Number of tokens from the front that the last layer computes; ignored if hidden states or
                attention are returned.
        """
        if pixel_values is None:
            raise CrateError("pixel_values is missing; a vision model reads (batch, channels, height, width)")
        trace = self.trace(output_hidden_states, output_attentions)
        z = self.norm(trace.run(self.layers, self.embedding(pixel_values), num_queries=num_queries))
        return CrateModelOutput(last_hidden_state=z, pooler_output=self.pool(z), **trace.outputs())

    def pool(self, z: Tensor) -> Tensor:
        """Return the token that a head reads (batch, d): the class token, or a mean of tokens (batch, n, d)."""
        if self.config.pooling == "class":
            return z[:, 0]
        front = int(self.config.class_token and self.config.pooling == "patches")
        return z[:, front:].mean(dim=1)

    def pooled(self, pixel_values: Tensor | None, **kwargs: Any) -> tuple[CrateModelOutput, Tensor]:
        """Run the body on images; return its output, and the class token or the mean of all tokens, (batch, d).

        The last layer computes only the tokens that are read, unless a trace is requested.
        """
        queries = 1 if self.config.pooling == "class" else None
        body = self(pixel_values, return_dict=True, num_queries=queries, **kwargs)
        return body, body.pooler_output

    def trace(self, states: bool | Collection[int] | None, attentions: bool | None) -> Trace:
        """Return a trace that records what the caller or else the config asks for."""
        states = bool(self.config.output_hidden_states) if states is None else states
        attentions = bool(self.config.output_attentions if attentions is None else attentions)
        return Trace(states, attentions, self.config._attn_implementation == "eager", measured=self.measured_layers())

    def measured_layers(self) -> list[int]:
        """Return the layers whose own objective this training step adds to the loss, counted from 0."""
        depth = len(self.layers)
        if not (self.training and self.config.objective_weight):
            return []
        return list(range(depth)) if self.config.objective_layers == "all" else torch.randint(depth, (1,)).tolist()


class CrateTextModel(CrateModel):
    """The body of a text model."""

    config_class = CrateTextConfig
    main_input_name = "input_ids"
    input_modalities = ["text"]  # noqa: RUF012 (as transformers declares it)

    @can_return_tuple
    def forward(  # type: ignore[override]  # it reads other inputs
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Collection[int] | None = None,
        **_: Any,
    ) -> CrateModelOutput:
        """Map ids (batch, n) to the tokens after the final norm (batch, n, d).

        Args:
            attention_mask: 1 for real tokens, (batch, n). With a cache it covers the earlier tokens as well. A mask of
                pairs (batch or 1, K or 1, n, tokens) is Boolean or added to the scores, and replaces the causal one.
            position_ids: Positions in the table. In a causal model without a mask, positions that restart begin another
                sequence, which does not attend to those before it.
            past_key_values: Any cache of transformers, whose sequences a causal text model continues.
            use_cache: True starts a new cache if none is passed; False does not return it. Default: that of the config.
            output_hidden_states: Whether to return the tokens of all layers, or the layers to return, from 0.
        """
        trace = self.trace(output_hidden_states, output_attentions)
        use_cache = self.config.use_cache if use_cache is None else use_cache
        cache = self.prepare_cache(past_key_values, use_cache)
        past_length = cached_length(cache)
        z = self.embedding(input_ids, inputs_embeds, position_ids, token_type_ids, attention_mask, past_length)
        mask = _check_mask(attention_mask, z, past_length)
        caches: list[LayerCache] = []
        if cache is not None:
            caches = [LayerCache(cache, index, past_length) for index in range(len(self.layers))]
            if mask is None or mask.ndim == 2:
                mask = cached_attention_mask(cache, past_length, mask, z.shape[1], z.device)
        if mask is None and position_ids is not None and self.config.causal and isinstance(past_length, int):
            mask = None if past_length else packed_attention_mask(position_ids)
        z = trace.run(self.layers, z, mask, caches=caches)
        last, unnormalized = self.norm(z), None
        if trace.hidden and trace.hidden[-1] is not None:
            trace.hidden[-1], unnormalized = last, z
        return CrateModelOutput(
            last_hidden_state=last,
            past_key_values=None if use_cache is False else cache,
            unnormalized_state=unnormalized,
            **trace.outputs(),
        )

    def prepare_cache(self, cache: Cache | None, use_cache: bool | None) -> Cache | None:
        """Return the cache that was passed, a new one if `use_cache` asks for it, or None."""
        if cache is None and not use_cache:
            return None
        layers = cast("list[EncoderLayer]", list(self.layers))
        tensors = layers[0].attention.cache_tensors
        if not self.config.causal or not tensors:
            kind = f"attention {self.config.attention!r}" if self.config.causal else "a model without causal=True"
            raise CrateError(f"{kind} does not support caching; pass use_cache=False")
        if self.training and layers[0].gradient_checkpointing:  # each layer would be cached twice
            if cache is None:
                return None
            raise CrateError("past_key_values cannot be used with gradient checkpointing, which runs layers twice")
        cache = DynamicCache() if cache is None else cache
        if tensors == 1:
            use_projection_layers(cache)
        return cache


def _check_mask(attention_mask: Tensor | None, z: Tensor, past_length: int | Tensor) -> Tensor | None:
    """Convert a mask of tokens to Boolean after checking its shape; a mask of pairs may hold numbers to add."""
    if attention_mask is None:
        return None
    if attention_mask.ndim == 4:
        return attention_mask.to(z.dtype if attention_mask.is_floating_point() else torch.bool)
    batch, tokens = z.shape[:2]
    expected = (batch, past_length + tokens if isinstance(past_length, int) else attention_mask.shape[-1])
    if tuple(attention_mask.shape) != expected:
        raise CrateError(f"attention_mask has shape {tuple(attention_mask.shape)}; expected {expected}")
    return attention_mask.bool()
