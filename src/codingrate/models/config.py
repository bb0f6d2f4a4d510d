"""Typed configurations of the models: what all share, what images add, and what texts add.

Annotations are not postponed here, because `strict` reads the types of the fields.
"""

import copy
import dataclasses
import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..errors import CrateError, unknown_name
from ..operators import ATTENTION, SPARSIFIERS

_REFUSED = ("auto_map", "quantization_config", "per_layer_config")
"""Settings of transformers that run code of the model's folder, or that no model of this package has."""
_DTYPES = ("float32", "float64", "float16", "bfloat16")
_MOST_LABELS = 2**20
_MOST_PATCHES = 2**20


class Range(NamedTuple):
    """The values that a field may have; None stands for a default.

    The largest counts are far above those of any real model: a file that declares more is damaged, or is meant to fill
    the memory.
    """

    low: float
    high: float
    above: bool = False  # whether `low` itself is left out
    below: bool = False  # whether `high` itself is left out

    def __contains__(self, value: Any) -> bool:
        inside = value is None or self.low <= value <= self.high
        return inside and not (self.above and value == self.low) and not (self.below and value == self.high)

    def __str__(self) -> str:
        return (
            f"{'above' if self.above else 'at least'} {self.low} and {'below' if self.below else 'at most'} {self.high}"
        )


def within(default: Any, low: float, high: float, above: bool = False, below: bool = False) -> Any:
    """Declare a field with its default and its range."""
    return dataclasses.field(default=default, metadata={"range": Range(low, high, above, below)})


def _check_count(name: str, value: Any, high: int) -> None:
    """Raise an error if a number that is no field is not a whole one up to `high`."""
    if type(value) is not int or value not in Range(0, high):
        raise CrateError(f"{name} is {value!r:.60}; it must be a whole number from 0 to {high}")


def _as_number(value: Any) -> Any:
    """Return the number that a string of digits denotes, and any other value as it is."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value


def _misnamed(config: Any) -> bool:
    """Return whether `id2label` does not name the labels 0, 1, …, or `label2id` does not lead back to them."""
    labels, ids = config.id2label or {}, config.label2id or {}
    return not (
        isinstance(ids, dict)
        and all(isinstance(name, str) for name in (*labels.values(), *ids))
        and sorted(labels) == list(range(len(labels)))
        and all(isinstance(index, int) and index in labels for index in ids.values())
    )


Rule = tuple[Callable[[Any], object], str]
"""A combination of values that no model has, as a function of the config, and the error, a format string of it."""

_RULES: tuple[Rule, ...] = (
    (
        lambda c: c.dtype is not None and str(c.dtype).removeprefix("torch.") not in _DTYPES,
        "dtype is {c.dtype!r:.60}; use float32, float64, float16 or bfloat16",
    ),
    (
        lambda c: c._attn_implementation not in (None, "sdpa", "eager"),
        "attn_implementation is {c._attn_implementation!r:.60}; use 'sdpa' or 'eager', because the attention of these "
        "models is chosen by the config field `attention`",
    ),
    (_misnamed, "id2label must name the labels 0, 1, … in this order, and label2id lead back to them"),
    (
        lambda c: c.head_dim is None and c.hidden_size % c.num_attention_heads,
        "num_attention_heads {c.num_attention_heads} does not divide hidden_size {c.hidden_size}; use a divisor or set "
        "head_dim",
    ),
    (
        lambda c: c.orthogonality == "parametrize" and c.num_attention_heads * c.subspace_dim > c.hidden_size,
        "{c.num_attention_heads} subspaces of dimension {c.subspace_dim} cannot be orthonormal in {c.hidden_size} "
        "dimensions; lower head_dim or use orthogonality='per-head'",
    ),
    (
        lambda c: c.orthogonality == "per-head" and c.subspace_dim > c.hidden_size,
        "orthogonality 'per-head' needs head_dim {c.subspace_dim} to be at most hidden_size {c.hidden_size}; lower it",
    ),
    (
        lambda c: c.neumann_order is not None and c.attention != "rate-gradient",
        "neumann_order needs attention 'rate-gradient', not {c.attention!r}; leave it out",
    ),
    (
        lambda c: c.prox_alpha is None and (c.causal or c.sparsifier != "prox"),
        "prox_alpha=None is for sparsifier 'prox' in a model that is not causal; give a number",
    ),
    (
        lambda c: c.ista_steps > 1 and c.sparsifier not in ("ista", "ista-soft"),
        "ista_steps needs sparsifier 'ista' or 'ista-soft', not {c.sparsifier!r}",
    ),
    (
        lambda c: c.step == "derived" and c.attention not in ("mssa", "mssa-tied"),
        "step 'derived' needs attention 'mssa' or 'mssa-tied', not {c.attention!r}",
    ),
    (
        lambda c: c.learn_step and c.step != "derived",
        "learn_step needs step='derived'; with step='sum' there is no share to learn",
    ),
    (
        lambda c: c.subspace_metric and not c.attention.startswith("mssa"),
        "subspace_metric needs attention 'mssa' or 'mssa-tied', not {c.attention!r}",
    ),
    (
        lambda c: c.attention == "mssa-transposed" and c.num_attention_heads * c.subspace_dim != c.hidden_size,
        "attention 'mssa-transposed' needs K·p = d, not {c.num_attention_heads} · {c.subspace_dim} and "
        "{c.hidden_size}; change head_dim",
    ),
    (
        lambda c: c.scaled_output_init and c.initializer != "normal",
        "scaled_output_init needs initializer='normal', not {c.initializer!r}",
    ),
)

_IMAGE_RULES: tuple[Rule, ...] = (
    (
        lambda c: not isinstance(c.image_size, int) and len(c.image_size) != 2,
        "image_size is {c.image_size}; give one side, or height and width",
    ),
    (
        lambda c: c.num_patches > _MOST_PATCHES,
        f"number of patches is {{c.num_patches}}; it must be at most {_MOST_PATCHES}",
    ),
    (
        lambda c: c.stem == "convolution" and (c.patch_size.bit_count() != 1 or c.hidden_size % c.patch_size),
        "stem 'convolution' needs a patch_size that is a power of 2 and divides hidden_size {c.hidden_size}, not "
        "{c.patch_size}; use stem='patches'",
    ),
    (
        lambda c: c.positions == "sinusoidal" and c.hidden_size % 4,
        "sinusoidal positions need an even split of hidden_size {c.hidden_size}; use a multiple of 4",
    ),
    (
        lambda c: c.pooling == "class" and not c.class_token,
        "pooling 'class' needs class_token=True; use pooling='mean'",
    ),
    (
        lambda c: c.mask_ratio == 0 and c.loss_on == "masked",
        "mask_ratio 0 removes no patch to measure the loss on; use loss_on='all'",
    ),
    (
        lambda c: c.decoder_type == "tied" and c.decoder_layers not in (None, c.num_hidden_layers),
        "decoder_type 'tied' has one layer for each of the encoder, not {c.decoder_layers}",
    ),
    (
        lambda c: c.decoder_type == "tied" and c.sparsifier not in ("ista", "ista-soft", "prox"),
        "decoder_type 'tied' needs a dictionary D (d, d), which {c.sparsifier!r} has not",
    ),
)

_DECODER_RULES: tuple[Rule, ...] = (
    (
        lambda c: c.mask_space != "drop" or c.decoder_type != "forward" or c.subtract_positions,
        "decoder_width and decoder_heads are for the black-box MAE (mask_space='drop', decoder_type='forward', "
        "subtract_positions=False); leave them out",
    ),
    (
        lambda c: c.head_dim is None and c.hidden_size % c.num_attention_heads,
        "decoder_heads {c.num_attention_heads} does not divide decoder_width {c.hidden_size}; use a divisor",
    ),
    (
        lambda c: c.positions == "sinusoidal" and c.hidden_size % 4,
        "sinusoidal positions need a decoder_width that is a multiple of 4, not {c.hidden_size}",
    ),
    *_RULES,
)
"""Rules of a decoder with a width or heads of its own, as `decoder_config` names them."""

_TEXT_RULES: tuple[Rule, ...] = (
    (lambda c: c.norm == "post" and c.skip != "residual", "norm 'post' needs skip='residual'; use norm='pre'"),
    (
        lambda c: not 0 <= c.position_offset < c.max_position_embeddings,
        "position_offset is {c.position_offset}; it must be a row of the position table",
    ),
    (
        lambda c: c.position_offset and c.causal,
        "position_offset is for masked models; a causal model counts from 0",
    ),
    (
        lambda c: c.positions == "rotary" and (c.subspace_dim % 2 or c.attention in ("tssa", "rate-gradient")),
        "positions 'rotary' need an even head_dim and an attention with a softmax, not {c.attention!r}",
    ),
    (
        lambda c: c.positions == "sinusoidal" and c.hidden_size % 2,
        "sinusoidal positions need an even split of hidden_size {c.hidden_size}; use a multiple of 2",
    ),
)


class CrateConfig(PreTrainedConfig):
    """Configuration of a model. Defaults follow the paper; a field describes each difference of the released code.

    This class holds what all models share. `CrateConfig(modality="text")` creates a `CrateTextConfig`, and without a
    modality a `CrateImageConfig`, which hold the other fields.
    """

    model_type: ClassVar[str] = "crate"
    attribute_map: ClassVar[dict[str, str]] = {  # names of other models in transformers: ours
        "layer_norm_epsilon": "layer_norm_eps", "n_embd": "hidden_size", "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads", "n_positions": "max_position_embeddings", "hidden_dropout_prob": "dropout",
    }  # fmt: skip
    rules: ClassVar[tuple[Rule, ...]] = _RULES

    modality: Literal["vision", "text"] = "vision"
    """Input of the embedding: `pixel_values` or `input_ids`."""

    # The layers (paper 2.3-2.5)
    hidden_size: int = within(384, 1, 2**16)
    """Token width d."""
    num_hidden_layers: int = within(12, 1, 1000)
    """Number of layers L."""
    num_attention_heads: int = within(6, 1, 2**12)
    """Number of subspaces K."""
    head_dim: int | None = within(None, 1, 2**16)
    """Dimension p of each subspace. Default: d/K."""
    attention: str = "mssa"
    """Name of the attention operator."""
    sparsifier: str = "ista"
    """Name of the sparsifier."""
    causal: bool = False
    """Whether token t attends to tokens 1..t only."""
    skip: Literal["normalized", "residual"] = "normalized"
    """Start of the skip around attention: LN(Z) + MSSA(LN(Z)), as in the paper's pseudocode, or
    Z + MSSA(LN(Z)), as in the released code and every black-box transformer."""
    step: Literal["sum", "derived"] = "sum"
    """Step from the start S of that skip along attention: S + MSSA, the coefficients 1 and 1 of the pseudocode, or
    (1 − s)S + s·MSSA with 0 < s < 1, as the paper derives it with s = βκ for `mssa` and `mssa-tied`."""
    step_share: float | int = within(0.5, 0, 1, above=True, below=True)
    """Share s of the derived step."""
    learn_step: bool = False
    """Whether each layer learns its own s, the sigmoid of a scalar, from `step_share` on."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each half of a layer or, as in BERT and RoBERTa, after its skip: LN(Z + MSSA(Z))."""
    step_size: float | int = within(0.1, 0, 10**6)
    """Step η of ISTA."""
    sparsity: float | int = within(0.1, 0, 10**6)
    """Weight λ of the ℓ1 norm in ISTA."""
    ista_steps: int = within(1, 1, 1000)
    """Number of steps of `ista` and `ista-soft` in a layer, with one dictionary. The paper takes one."""
    momentum: bool = False
    """Whether layer ℓ > 1 of the body reads Z^ℓ + μ_ℓ(Z^ℓ − Z^{ℓ−1}) with a learned μ_ℓ, from 0, as FISTA accelerates
    ISTA (Beck and Teboulle, 2009). This is not in the paper, which names advanced optimization as a direction."""
    prox_alpha: float | int | None = within(1.0, 0, 10**6, above=True)
    """α of the `prox` sparsifier: a constant or, if None, d/(nε²) of the derivation with ε = `coding_precision`, from
    the number n of real tokens of each sample; not for causal models."""
    expansion: int = within(4, 1, 2**10)
    """Hidden width of `mlp` and dictionary width of `odl`, in units of d."""
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    """Activation of `mlp`: GELU, or its approximation by a tanh, which GPT-2 uses."""
    attention_scale: float | int | None = within(None, -(10**6), 10**6)
    """Factor inside the softmax. Default: p^-½ (pseudocode, released code), for `mssa-tied` and its variants 1."""
    subspace_metric: bool = False
    """Whether the scores of `mssa`, `mssa-tied` and its variants are measured in a learned metric of each subspace,
    W M Wᵀ. This is not in the paper; docs/language.md explains it."""
    coding_precision: float | int = within(0.5, 1e-6, 10**6)
    """ε of β = p/(nε²) in `mssa-tied`, `mssa-negative`, `mssa-transposed` and `rate-gradient`, and of α in `prox`."""
    neumann_order: int | None = within(None, 0, 100)
    """Highest power of the Neumann series that takes the place of the inverse in `rate-gradient`; 1 is the paper's
    approximation. Default: the exact inverse."""
    projection_bias: bool = False
    """Bias of the projections of `mhsa` and `tssa`."""
    output_bias: bool = True
    """Bias of the trainable output map W, which is in the pseudocode and released code, not in the equations."""
    layer_norm_eps: float | int = within(1e-5, 0, 1, above=True)
    """ε of the LayerNorms inside the layers."""
    dropout: float | int = within(0.0, 0, 1, below=True)
    """Dropout of embeddings, attention and output maps."""
    drop_path: float | int = within(0.0, 0, 1, below=True)
    """Stochastic depth in training: probability that the last layer leaves out a sample's residual branch. It grows
    linearly from 0 in the first layer. ISTA is no residual branch, so that in a CRATE this acts on attention only."""
    orthogonality: Literal["none", "penalty", "parametrize", "per-head"] = "none"
    """Constraint of the theory on U and D: not enforced, added to the training loss, or built in. `per-head` builds in
    what the paper assumes of U: every U_k is orthonormal by itself, so that K·p may exceed d; D stays free."""
    orthogonality_weight: float | int = within(1e-4, 0, 10**6)
    """Weight of the penalty Σ‖UᵀU − I‖² + ‖DᵀD − I‖²."""
    objective_weight: float | int = within(0.0, 0, 10**6)
    """Weight γ of the layers' own objective in the training loss. This is not in the paper; Hu et al. (2024) add the
    sparse rate reduction of a random layer to the loss."""
    objective: Literal["compression", "layer", "sparse-rate-reduction"] = "compression"
    """Objective that a layer adds: R^c after attention over R^c before it, of unit tokens on orthonormal bases; the
    mean of this ratio and that of ISTA's LASSO objective; or −[ΔR − λ‖Z‖₁]/n of its output (Hu et al.)."""
    objective_layers: Literal["one", "all"] = "one"
    """Layers whose objective a training step adds: one drawn at random, which costs little, or the mean of all."""
    quantized: bool = False
    """Whether linear maps and ISTA steps have 8-bit weights, for inference; `quantize` sets it."""

    # From data to tokens
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """Position table: trained, or frozen sines and cosines (two-dimensional for images). Rotary positions (text only)
    have no table: each layer rotates queries and keys by their positions."""
    position_scale: float | int = within(1.0, 0, 10**6, above=True)
    """Amplitude of sinusoidal positions. At 1 they dominate word embeddings, which start at N(0, 0.02²). For small text
    models use about three times `initializer_range`."""

    # From tokens to the task
    final_norm: bool = False
    """LayerNorm after the last layer of the body."""
    head_norm_eps: float | int = within(1e-5, 0, 1, above=True)
    """ε of the LayerNorms outside the layers."""
    pooling: Literal["class", "mean", "patches"] = "class"
    """Input of a classifier's head: the class token (of a text, its first token, or its last if the model is causal),
    the mean of all tokens or, as in the released ViT, the mean of all tokens but the class token."""
    initializer: Literal["torch", "xavier", "normal"] = "torch"
    """Initialization of linear maps: PyTorch's (released classifier), Xavier-uniform (MAE), N(0, 0.02²) (text)."""
    initializer_range: float | int = within(0.02, 0, 10**6)
    """Standard deviation of normal initialization."""
    scaled_output_init: bool = False
    """Whether the output maps of attention and MLP start smaller, at N(0, 0.02²/2L), as in nanoGPT."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the fields of the modality

    def __new__(cls, **fields: Any) -> "CrateConfig":
        """Create the config of the modality that the fields name."""
        kind = CrateTextConfig if fields.get("modality", cls.modality) == "text" else CrateImageConfig
        if issubclass(kind, cls):
            return super().__new__(kind)
        return kind(**fields)  # such as from a folder of the other modality, which the model then refuses by name

    def __post_init__(self, **kwargs: Any) -> None:
        for key in kwargs.keys() - self.attribute_map:  # transformers keeps unknown fields; refuse a misspelled one
            if difflib.get_close_matches(key, type(self).field_names(), n=1, cutoff=0.85):
                raise unknown_name("config field", key, type(self).field_names())
            if key in _REFUSED or callable(getattr(type(self), key, None)) or key.startswith("__"):
                raise CrateError(f"{key} is not supported in a config of these models; remove it")
        for key, value in (vars(self) | kwargs).items():  # transformers and the checks below print what they refuse
            try:
                repr(value)
            except ValueError as error:
                raise CrateError(f"{key} holds a number of thousands of digits; give a smaller one") from error
        if kwargs.get("num_labels") is not None:  # before transformers names every label
            _check_count("num_labels", kwargs["num_labels"], _MOST_LABELS)
        try:
            super().__post_init__(**kwargs)
        except (AttributeError, OverflowError, TypeError, ValueError) as error:  # a value of the wrong type or form
            raise CrateError(f"the config cannot be used ({error})") from error
        names = [] if self.architectures is None else self.architectures
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise CrateError(f"architectures is {names!r:.60}; it must be a list of names")
        self.architectures = list(names)  # an Auto class of several models iterates over them
        self.check()

    def __setattr__(self, key: str, value: Any) -> None:
        """Set a field; ids of labels may be strings, as in JSON and in transformers' guides, and become numbers."""
        if isinstance(value, dict) and key == "id2label":
            value = {_as_number(index): label for index, label in value.items()}
        elif isinstance(value, dict) and key == "label2id":
            value = {label: _as_number(index) for label, index in value.items()}
        super().__setattr__(key, value)

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the fields that a user may set, sorted."""
        return sorted(field.name for field in dataclasses.fields(cls))

    def check(self) -> None:
        """Raise an error of one line if no model can be built from this config."""
        ATTENTION.check(self.attention)
        SPARSIFIERS.check(self.sparsifier)
        for field in dataclasses.fields(self):
            allowed, value = field.metadata.get("range"), getattr(self, field.name)
            if allowed is not None and value not in allowed:
                raise CrateError(f"{field.name} is {value!r:.60}; it must be {allowed}")
        _check_count("num_labels", len(self.id2label or {}), _MOST_LABELS)
        self.obey(self.rules)

    def obey(self, rules: tuple[Rule, ...]) -> None:
        """Raise the error of the first rule that these values break."""
        for broken, message in rules:
            if broken(self):
                raise CrateError(message.format(c=self))

    @property
    def subspace_dim(self) -> int:
        """Dimension p of each subspace."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def drop_path_rates(self) -> list[float]:
        """Probability of stochastic depth of each layer, from 0 to `drop_path`."""
        layers = self.num_hidden_layers
        return [self.drop_path * index / max(layers - 1, 1) for index in range(layers)]

    @property
    def attention_settings(self) -> dict[str, Any]:
        """Keyword arguments of the attention operators."""
        return {
            "dim": self.hidden_size, "num_heads": self.num_attention_heads, "head_dim": self.subspace_dim,
            "causal": self.causal, "scale": self.attention_scale, "eps": self.coding_precision,
            "order": self.neumann_order, "projection_bias": self.projection_bias, "output_bias": self.output_bias,
            "dropout": self.dropout, "rotary": self.positions == "rotary", "metric": self.subspace_metric,
            "orthonormal": "per-head" if self.orthogonality == "per-head" else self.orthogonality == "parametrize",
            "max_tokens": self.max_position_embeddings if self.modality == "text" else 0,
        }  # fmt: skip

    @property
    def sparsifier_settings(self) -> dict[str, Any]:
        """Keyword arguments of the sparsifiers."""
        return {
            "dim": self.hidden_size, "step_size": self.step_size, "sparsity": self.sparsity, "steps": self.ista_steps,
            "alpha": self.prox_alpha, "expansion": self.expansion, "activation": self.activation,
            "orthonormal": self.orthogonality == "parametrize", "dropout": self.dropout, "eps": self.coding_precision,
        }  # fmt: skip


@strict
class CrateImageConfig(CrateConfig):
    """Configuration of an image model: classifier, masked autoencoder or self-distillation."""

    rules: ClassVar[tuple[Rule, ...]] = (*_RULES, *_IMAGE_RULES)
    modality: Literal["vision"] = "vision"
    norm: Literal["pre"] = "pre"
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    image_size: int | list[int] | tuple[int, int] = 224
    """Side, or height and width, of images that fit the position table; for others it is interpolated."""
    patch_size: int = within(16, 1, 2**12)
    """Side P of a patch."""
    num_channels: int = within(3, 1, 2**12)
    """Channels of an image."""
    stem: Literal["patches", "convolution"] = "patches"
    """Values of a patch that W_pre maps to a token: the pixels (paper), or the features of log₂ P convolutions of 3 × 3
    pixels, each followed by a maximum over 2 × 2 and a ReLU (Xiao et al., 2021; Hassani et al., 2021)."""
    patch_norm: bool = True
    """LayerNorm before and after the patch projection (pseudocode of the classifier)."""
    patch_dropout: float | int = within(0.0, 0, 1, below=True)
    """Share of the patches that a training step leaves out, at random and for each image (Liu et al., 2022), to save
    time. Evaluation sees all of them. This is not in the paper."""
    class_token: bool = True
    """Whether to prepend a class token."""
    interpolate_offset: float | int = within(0.0, 0, 1)
    """Number added to the target side when a position table is resized; 0.1 in the released patch-8 code."""
    head_norm: bool = True
    """LayerNorm between pooling and the classifier (pseudocode)."""

    # The masked autoencoder (paper 3.3, 4.1.2)
    mask_ratio: float | int = within(0.75, 0, 1, below=True)
    """Share of patches removed; 0 for an autoencoder of whole images, for the consistency X ≈ g(f(X)) of the paper."""
    mask_space: Literal["pixel", "embedding", "drop"] = "pixel"
    """Stage at which the mask token replaces a removed patch: before the patch projection (paper), after it (released
    code), or in the decoder, if the encoder drops the patch (black-box MAE)."""
    decoder_type: Literal["mirror", "forward", "tied"] = "mirror"
    """Decoder layers: g^ℓ, which undoes f^ℓ, with weights of its own; layers like those of the encoder (black-box
    MAE); or g^ℓ with V^ℓ = U^{L−ℓ} and E^ℓ = D^{L−ℓ} of the encoder, the values that the derivation gives (3.3)."""
    decoder_layers: int | None = within(None, 1, 1000)
    """Number of decoder layers. Default: that of the encoder."""
    decoder_width: int | None = within(None, 1, 2**16)
    """Token width of the decoder of a black-box MAE. Default: that of the encoder."""
    decoder_heads: int | None = within(None, 1, 2**12)
    """Number of heads of that decoder. Default: that of the encoder."""
    subtract_positions: bool = True
    """Whether to subtract positions before the last map, W_post(Z − E_pos) (paper)."""
    loss_on: Literal["all", "masked"] = "all"
    """Patches in the reconstruction loss: the whole image (paper) or the removed ones (released code)."""
    normalize_pixels: bool = False
    """Whether to center each target patch and scale it to unit variance."""

    # Self-distillation (paper 4.1.3)
    projection_head: Literal["released", "paper"] = "released"
    """Head of student and teacher: DINO's with prototypes, or the paper's equation, three maps of width d."""
    projection_hidden: int = within(2048, 1, 2**20)
    """Hidden width of the released projection head."""
    projection_bottleneck: int = within(256, 1, 2**20)
    """Width of the unit vectors that are compared with the prototypes."""
    prototypes: int = within(65536, 1, 2**24)
    """Number P of prototypes, the rows of the last map of the head."""
    normalize_prototypes: bool = True
    """Whether prototypes keep unit length. DINO advises False for its small model and True for its base model."""

    def check(self) -> None:
        """Raise an error of one line if no model can be built from this config."""
        super().check()
        for side in self.image_sides:
            if side % self.patch_size or side < 1:
                fit = side // self.patch_size * self.patch_size or self.patch_size
                raise CrateError(f"image_size {side} is not divisible by patch_size {self.patch_size}; use {fit}")
        if (self.decoder_width, self.decoder_heads) != (None, None):
            self.decoder_config.obey(_DECODER_RULES)

    @property
    def image_sides(self) -> tuple[int, int]:
        """Height and width of an image."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.image_sides
        return height // self.patch_size, width // self.patch_size

    @property
    def num_patches(self) -> int:
        """Number N of patches of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def patch_dim(self) -> int:
        """Number of values in a patch, channels · P²."""
        return self.num_channels * self.patch_size**2

    @property
    def decoder_config(self) -> "CrateImageConfig":
        """Config of the decoder layers, which differ from the encoder's in width and heads if the config says so."""
        other = copy.copy(self)
        other.hidden_size = self.decoder_width or self.hidden_size
        other.num_attention_heads = self.decoder_heads or self.num_attention_heads
        return other


@strict
class CrateTextConfig(CrateConfig):
    """Configuration of a text model: masked or causal language model, or classifier of sequences."""

    rules: ClassVar[tuple[Rule, ...]] = (*_RULES, *_TEXT_RULES)
    modality: Literal["text"] = "text"
    pooling: Literal["class", "mean"] = "class"
    vocab_size: int = within(50265, 1, 2**24)
    """Number of token ids."""
    max_position_embeddings: int = within(514, 1, 2**22)
    """Rows of the position table of a text model."""
    position_offset: int = 0
    """Row of the first token. RoBERTa uses 2, numbers only tokens that are not padding, and gives padding row 1."""
    type_vocab_size: int = within(0, 0, 2**16)
    """Rows of the token-type table; 0 for no table."""
    text_form: Literal["published", "paper"] = "published"
    """Parts around the layers of a text model: those that `type_vocab_size`, `embedding_norm`, `final_norm` and
    `prediction_transform` name, which the published sizes suggest, or none of them, as in the paper's equations."""
    embedding_norm: bool = False
    """LayerNorm on the sum of the text embeddings."""
    pad_token_id: int | None = None
    """Id of the padding token."""
    bos_token_id: int | None = None
    """Id of the token that begins a text, also a generated text without a prompt."""
    eos_token_id: int | list[int] | None = None
    """Id or ids of tokens that end a generated text."""
    use_cache: bool | None = None
    """Whether a causal model returns a key-value cache if the caller does not say. Default: only `generate` caches."""
    prediction_transform: bool = False
    """Whether the masked-LM head has a linear map, GELU and LayerNorm before it and a bias, as in RoBERTa."""
    tie_word_embeddings: bool = True
    """Whether the head of a language model is tied to the word embedding."""

    def __post_init__(self, **kwargs: Any) -> None:
        if self.text_form == "paper":
            self.type_vocab_size = 0
            self.embedding_norm = self.final_norm = self.prediction_transform = False
        super().__post_init__(**kwargs)

    def check(self) -> None:
        """Raise an error of one line if no model can be built from this config."""
        super().check()
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            value = getattr(self, name)
            for index in value if isinstance(value, list) else [] if value is None else [value]:
                if index < 0:
                    raise CrateError(f"{name} is {index!r:.60}; it must be at least 0")
                if index >= self.vocab_size:
                    more = f"set vocab_size to {index + 1} or more" if index < 2**24 else "give another id"
                    raise CrateError(f"{name} is {index!r:.60}, but the model has only {self.vocab_size} ids; {more}")

    @property
    def max_tokens(self) -> int:
        """Length of the longest text that the position table covers."""
        return self.max_position_embeddings - self.position_offset
