"""One typed configuration for every model: vision and text, white box and black box.

Annotations are not postponed here, because `strict` reads the types of the fields.
"""

import copy
import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..errors import CrateError, unknown_name
from ..operators import ATTENTION, SPARSIFIERS

_LIMITS = {
    "hidden_size": (1, 2**16), "num_hidden_layers": (1, 1000), "num_attention_heads": (1, 2**12),
    "head_dim": (1, 2**16), "expansion": (1, 2**10), "patch_size": (1, 2**12), "num_channels": (1, 2**12),
    "decoder_layers": (1, 1000), "decoder_width": (1, 2**16), "decoder_heads": (1, 2**12),
    "projection_hidden": (1, 2**20), "projection_bottleneck": (1, 2**20),
    "prototypes": (1, 2**24), "num_labels": (0, 2**20), "vocab_size": (1, 2**24), "type_vocab_size": (0, 2**16),
    "neumann_order": (0, 100), "ista_steps": (1, 1000),
    "max_position_embeddings": (1, 2**22), "number of patches": (1, 2**20),
}  # fmt: skip
"""Smallest and largest value of each count. The largest are far above those of any real model: a file that declares
more is damaged, or is meant to fill the memory."""
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{
        name: (lambda value: 0 <= value <= 1e6, "be at least 0 and at most 1e6")
        for name in ("step_size", "sparsity", "orthogonality_weight", "objective_weight", "initializer_range")
    },
    **{
        name: (lambda value: 0 < value <= 1, "be above 0 and at most 1") for name in ("layer_norm_eps", "head_norm_eps")
    },
    "attention_scale": (lambda value: value is None or abs(value) <= 1e6, "lie between -1e6 and 1e6"),
    "prox_alpha": (lambda value: value is None or 0 < value <= 1e6, "be above 0 and at most 1e6, or None for d/(nε²)"),
    "coding_precision": (lambda value: 1e-6 <= value <= 1e6, "lie between 1e-6 and 1e6"),
    "interpolate_offset": (lambda value: 0 <= value <= 1, "lie between 0 and 1"),
    **{
        name: (lambda value: 0 <= value < 1, "be at least 0 and below 1")
        for name in ("dropout", "drop_path", "patch_dropout")
    },
    "mask_ratio": (lambda value: 0 <= value < 1, "be at least 0 and below 1"),
    "step_share": (lambda value: 0 < value < 1, "lie between 0 and 1"),
    "position_scale": (lambda value: 0 < value <= 1e6, "be above 0; positions='none' leaves positions out"),
}
_REFUSED = ("auto_map", "quantization_config", "per_layer_config")
"""Settings of transformers that run code of the model's folder, or that no model of this package has."""
_DTYPES = (None, torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_limits(fields: Mapping[str, Any]) -> None:
    """Raise an error if a count in `fields` is not a whole number within its limits; None stands for a default."""
    for name, (low, high) in _LIMITS.items():
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise CrateError(f"{name} is {value!r:.60}; it must be a whole number")
        if not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            shown = value if abs(value) < 10**20 else "a number of more than 20 digits"
            raise CrateError(f"{name} is {shown}; it must be {bound}")


def _number(value: Any) -> Any:
    """Return the number that a string of digits denotes, and any other value as it is."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value


_VISION_FIELDS = frozenset({
    "image_size", "patch_size", "num_channels", "stem", "patch_norm", "patch_dropout", "class_token",
    "interpolate_offset", "head_norm", "mask_ratio", "mask_space", "decoder_type", "decoder_layers",
    "decoder_width", "decoder_heads", "subtract_positions", "loss_on", "normalize_pixels", "projection_head",
    "projection_hidden", "projection_bottleneck", "prototypes", "normalize_prototypes",
})  # fmt: skip
_TEXT_FIELDS = frozenset({
    "vocab_size", "max_position_embeddings", "position_offset", "type_vocab_size", "text_form", "embedding_norm",
    "pad_token_id", "bos_token_id", "eos_token_id", "prediction_transform", "tie_word_embeddings", "use_cache",
})  # fmt: skip


@strict
class CrateConfig(PreTrainedConfig):
    """Configuration of a model. Defaults follow the paper; a field describes each difference of the released code."""

    model_type: ClassVar[str] = "crate"
    attribute_map: ClassVar[dict[str, str]] = {  # names of other models in transformers: ours
        "layer_norm_epsilon": "layer_norm_eps", "n_embd": "hidden_size", "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads", "n_positions": "max_position_embeddings", "hidden_dropout_prob": "dropout",
    }  # fmt: skip

    modality: Literal["vision", "text"] = "vision"
    """Input of the embedding: `pixel_values` or `input_ids`."""

    # The layers (paper 2.3-2.5)
    hidden_size: int = 384
    """Token width d."""
    num_hidden_layers: int = 12
    """Number of layers L."""
    num_attention_heads: int = 6
    """Number of subspaces K."""
    head_dim: int | None = None
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
    step_share: float | int = 0.5
    """Share s of the derived step."""
    learn_step: bool = False
    """Whether each layer learns its own s, the sigmoid of a scalar, from `step_share` on."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each half of a layer or, as in BERT and RoBERTa, after its skip: LN(Z + MSSA(Z))."""
    step_size: float | int = 0.1
    """Step η of ISTA."""
    sparsity: float | int = 0.1
    """Weight λ of the ℓ1 norm in ISTA."""
    ista_steps: int = 1
    """Number of steps of `ista` and `ista-soft` in a layer, with one dictionary. The paper takes one."""
    momentum: bool = False
    """Whether layer ℓ > 1 of the body reads Z^ℓ + μ_ℓ(Z^ℓ − Z^{ℓ−1}) with a learned μ_ℓ, from 0, as FISTA accelerates
    ISTA (Beck and Teboulle, 2009). This is not in the paper, which names advanced optimization as a direction."""
    prox_alpha: float | int | None = 1.0
    """α of the `prox` sparsifier: a constant or, if None, d/(nε²) of the derivation with ε = `coding_precision`, from
    the number n of real tokens of each sample; not for causal models."""
    expansion: int = 4
    """Hidden width of `mlp` and dictionary width of `odl`, in units of d."""
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    """Activation of `mlp`: GELU, or its approximation by a tanh, which GPT-2 uses."""
    attention_scale: float | int | None = None
    """Factor inside the softmax. Default: p^-½ (pseudocode, released code), for `mssa-tied` and its variants 1."""
    subspace_metric: bool = False
    """Whether the scores of `mssa`, `mssa-tied` and its variants are measured in a learned metric of each subspace,
    W M Wᵀ. This is not in the paper; docs/language.md explains it."""
    coding_precision: float | int = 0.5
    """ε of β = p/(nε²) in `mssa-tied`, `mssa-negative`, `mssa-transposed` and `rate-gradient`, and of α in `prox`."""
    neumann_order: int | None = None
    """Highest power of the Neumann series that takes the place of the inverse in `rate-gradient`; 1 is the paper's
    approximation. Default: the exact inverse."""
    projection_bias: bool = False
    """Bias of the projections of `mhsa` and `tssa`."""
    output_bias: bool = True
    """Bias of the trainable output map W, which is in the pseudocode and released code, not in the equations."""
    layer_norm_eps: float | int = 1e-5
    """ε of the LayerNorms inside the layers."""
    dropout: float | int = 0.0
    """Dropout of embeddings, attention and output maps."""
    drop_path: float | int = 0.0
    """Stochastic depth in training: probability that the last layer leaves out a sample's residual branch. It grows
    linearly from 0 in the first layer. ISTA is no residual branch, so that in a CRATE this acts on attention only."""
    orthogonality: Literal["none", "penalty", "parametrize", "per-head"] = "none"
    """Constraint of the theory on U and D: not enforced, added to the training loss, or built in. `per-head` builds in
    what the paper assumes of U: every U_k is orthonormal by itself, so that K·p may exceed d; D stays free."""
    orthogonality_weight: float | int = 1e-4
    """Weight of the penalty Σ‖UᵀU − I‖² + ‖DᵀD − I‖²."""
    objective_weight: float | int = 0.0
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
    image_size: int | list[int] | tuple[int, int] = 224
    """Side, or height and width, of images that fit the position table; for others it is interpolated."""
    patch_size: int = 16
    """Side P of a patch."""
    num_channels: int = 3
    """Channels of an image."""
    stem: Literal["patches", "convolution"] = "patches"
    """Values of a patch that W_pre maps to a token: the pixels (paper), or the features of log₂ P convolutions of 3 × 3
    pixels, each followed by a maximum over 2 × 2 and a ReLU (Xiao et al., 2021; Hassani et al., 2021)."""
    patch_norm: bool = True
    """LayerNorm before and after the patch projection (pseudocode of the classifier)."""
    patch_dropout: float | int = 0.0
    """Share of the patches that a training step leaves out, at random and for each image (Liu et al., 2022), to save
    time. Evaluation sees all of them. This is not in the paper."""
    class_token: bool = True
    """Whether to prepend a class token."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """Position table: trained, or frozen sines and cosines (two-dimensional for images). Rotary positions (text only)
    have no table: each layer rotates queries and keys by their positions."""
    position_scale: float | int = 1.0
    """Amplitude of sinusoidal positions. At 1 they dominate word embeddings, which start at N(0, 0.02²). For small text
    models use about three times `initializer_range`."""
    interpolate_offset: float | int = 0.0
    """Number added to the target side when a position table is resized; 0.1 in the released patch-8 code."""
    vocab_size: int = 50265
    """Number of token ids."""
    max_position_embeddings: int = 514
    """Rows of the position table of a text model."""
    position_offset: int = 0
    """Row of the first token. RoBERTa uses 2, numbers only tokens that are not padding, and gives padding row 1."""
    type_vocab_size: int = 0
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

    # From tokens to the task
    final_norm: bool = False
    """LayerNorm after the last layer of the body."""
    head_norm: bool = True
    """LayerNorm between pooling and the classifier (pseudocode)."""
    head_norm_eps: float | int = 1e-5
    """ε of the LayerNorms outside the layers."""
    pooling: Literal["class", "mean", "patches"] = "class"
    """Input of a classifier's head: the class token (of a text, its first token, or its last if the model is causal),
    the mean of all tokens or, as in the released ViT, the mean of all tokens but the class token."""
    prediction_transform: bool = False
    """Whether the masked-LM head has a linear map, GELU and LayerNorm before it and a bias, as in RoBERTa."""
    tie_word_embeddings: bool = True
    """Whether the head of a language model is tied to the word embedding."""
    initializer: Literal["torch", "xavier", "normal"] = "torch"
    """Initialization of linear maps: PyTorch's (released classifier), Xavier-uniform (MAE), N(0, 0.02²) (text)."""
    initializer_range: float | int = 0.02
    """Standard deviation of normal initialization."""
    scaled_output_init: bool = False
    """Whether the output maps of attention and MLP start smaller, at N(0, 0.02²/2L), as in nanoGPT."""

    # The masked autoencoder (paper 3.3, 4.1.2)
    mask_ratio: float | int = 0.75
    """Share of patches removed; 0 for an autoencoder of whole images, for the consistency X ≈ g(f(X)) of the paper."""
    mask_space: Literal["pixel", "embedding", "drop"] = "pixel"
    """Stage at which the mask token replaces a removed patch: before the patch projection (paper), after it (released
    code), or in the decoder, if the encoder drops the patch (black-box MAE)."""
    decoder_type: Literal["mirror", "forward", "tied"] = "mirror"
    """Decoder layers: g^ℓ, which undoes f^ℓ, with weights of its own; layers like those of the encoder (black-box
    MAE); or g^ℓ with V^ℓ = U^{L−ℓ} and E^ℓ = D^{L−ℓ} of the encoder, the values that the derivation gives (3.3)."""
    decoder_layers: int | None = None
    """Number of decoder layers. Default: that of the encoder."""
    decoder_width: int | None = None
    """Token width of the decoder of a black-box MAE. Default: that of the encoder."""
    decoder_heads: int | None = None
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
    projection_hidden: int = 2048
    """Hidden width of the released projection head."""
    projection_bottleneck: int = 256
    """Width of the unit vectors that are compared with the prototypes."""
    prototypes: int = 65536
    """Number P of prototypes, the rows of the last map of the head."""
    normalize_prototypes: bool = True
    """Whether prototypes keep unit length. DINO advises False for its small model and True for its base model."""

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
        if self.text_form == "paper" and self.modality == "text":
            self.type_vocab_size, self.embedding_norm, self.final_norm, self.prediction_transform = (
                0,
                False,
                False,
                False,
            )
        check_limits({"num_labels": kwargs.get("num_labels")})  # before transformers names every label
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
            value = {_number(index): label for index, label in value.items()}
        elif isinstance(value, dict) and key == "label2id":
            value = {label: _number(index) for label, index in value.items()}
        super().__setattr__(key, value)

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the fields that a user may set, sorted."""
        return sorted(field.name for field in dataclasses.fields(cls))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary, without those of the other modality."""
        other = _TEXT_FIELDS if self.modality == "vision" else _VISION_FIELDS
        return {key: value for key, value in super().to_dict().items() if key not in other}

    def check(self) -> None:
        """Raise an error of one line if no model can be built from this config."""
        ATTENTION.check(self.attention)
        SPARSIFIERS.check(self.sparsifier)
        check_limits(vars(self))
        for name, (valid, words) in _RANGES.items():
            if not valid(getattr(self, name)):
                raise CrateError(f"{name} is {getattr(self, name)!r:.60}; it must {words}")
        self._check_names()
        if not isinstance(self.image_size, int) and len(self.image_size) != 2:
            raise CrateError(f"image_size is {self.image_size}; give one side, or height and width")
        d, K, p, vision = self.hidden_size, self.num_attention_heads, self.subspace_dim, self.modality == "vision"
        if self.head_dim is None and d % K:
            raise CrateError(f"num_attention_heads {K} does not divide hidden_size {d}; use a divisor or set head_dim")
        if self.orthogonality == "parametrize" and K * p > d:
            raise CrateError(
                f"{K} subspaces of dimension {p} cannot be orthonormal in {d} dimensions; "
                "lower head_dim or use orthogonality='per-head'"
            )
        if self.orthogonality == "per-head" and p > min(d, self.decoder_width or d):
            raise CrateError(f"orthogonality 'per-head' needs head_dim {p} to be at most hidden_size {d}; lower it")
        if self.neumann_order is not None and self.attention != "rate-gradient":
            raise CrateError(f"neumann_order needs attention 'rate-gradient', not {self.attention!r}; leave it out")
        if self.prox_alpha is None and (self.causal or self.sparsifier != "prox"):
            raise CrateError("prox_alpha=None is for sparsifier 'prox' in a model that is not causal; give a number")
        if self.ista_steps > 1 and self.sparsifier not in ("ista", "ista-soft"):
            raise CrateError(f"ista_steps needs sparsifier 'ista' or 'ista-soft', not {self.sparsifier!r}")
        if self.step == "derived" and self.attention not in ("mssa", "mssa-tied"):
            raise CrateError(f"step 'derived' needs attention 'mssa' or 'mssa-tied', not {self.attention!r}")
        if self.learn_step and self.step != "derived":
            raise CrateError("learn_step needs step='derived'; with step='sum' there is no share to learn")
        if (self.decoder_width, self.decoder_heads) != (None, None):
            if self.mask_space != "drop" or self.decoder_type != "forward" or self.subtract_positions:
                raise CrateError(
                    "decoder_width and decoder_heads are for the black-box MAE (mask_space='drop', "
                    "decoder_type='forward', subtract_positions=False); leave them out"
                )
            width, heads = self.decoder_width or d, self.decoder_heads or K
            if self.head_dim is None and width % heads:
                raise CrateError(f"decoder_heads {heads} does not divide decoder_width {width}; use a divisor")
            if self.positions == "sinusoidal" and width % 4:
                raise CrateError(f"sinusoidal positions need a decoder_width that is a multiple of 4, not {width}")
        if vision and self.mask_ratio == 0 and self.loss_on == "masked":
            raise CrateError("mask_ratio 0 removes no patch to measure the loss on; use loss_on='all'")
        if vision and self.decoder_type == "tied":
            if self.decoder_layers not in (None, self.num_hidden_layers):
                raise CrateError(
                    f"decoder_type 'tied' has one layer for each of the encoder, not {self.decoder_layers}"
                )
            if self.sparsifier not in ("ista", "ista-soft", "prox"):
                raise CrateError(f"decoder_type 'tied' needs a dictionary D (d, d), which {self.sparsifier!r} has not")
        if self.norm == "post" and (vision or self.skip != "residual"):
            raise CrateError("norm 'post' needs modality='text' and skip='residual'; use norm='pre'")
        if not 0 <= self.position_offset < self.max_position_embeddings:
            raise CrateError(f"position_offset is {self.position_offset}; it must be a row of the position table")
        if self.position_offset and self.causal:
            raise CrateError("position_offset is for masked models; a causal model counts from 0")
        if self.positions == "rotary" and (vision or p % 2 or self.attention in ("tssa", "rate-gradient")):
            raise CrateError(
                "positions 'rotary' need modality='text', an even head_dim and an attention with a softmax, not "
                f"{self.attention!r}"
            )
        if self.subspace_metric and not self.attention.startswith("mssa"):
            raise CrateError(f"subspace_metric needs attention 'mssa' or 'mssa-tied', not {self.attention!r}")
        if self.attention == "mssa-transposed" and (K * p != d or self.decoder_width not in (None, d)):
            raise CrateError(f"attention 'mssa-transposed' needs K·p = d, not {K} · {p} and {d}; change head_dim")
        if self.positions == "sinusoidal" and d % (4 if vision else 2):
            raise CrateError(f"sinusoidal positions need an even split of hidden_size {d}; use a multiple of 4")
        if self.scaled_output_init and self.initializer != "normal":
            raise CrateError(f"scaled_output_init needs initializer='normal', not {self.initializer!r}")
        for side in self.image_sides if vision else ():
            if side % self.patch_size or side < 1:
                fit = side // self.patch_size * self.patch_size or self.patch_size
                raise CrateError(f"image_size {side} is not divisible by patch_size {self.patch_size}; use {fit}")
        if vision and self.stem == "convolution" and (self.patch_size.bit_count() != 1 or d % self.patch_size):
            raise CrateError(
                f"stem 'convolution' needs a patch_size that is a power of 2 and divides hidden_size {d}, "
                f"not {self.patch_size}; use stem='patches'"
            )
        check_limits({"number of patches": self.num_patches if vision else None})
        if vision and self.pooling == "class" and not self.class_token:
            raise CrateError("pooling 'class' needs class_token=True; use pooling='mean'")
        if self.pooling == "patches" and not vision:
            raise CrateError("pooling 'patches' is for images; use pooling='mean'")

    def _check_names(self) -> None:
        """Check what a config names: the dtype, the attention function, labels, and special tokens."""
        if self.dtype not in _DTYPES:
            raise CrateError(f"dtype is {self.dtype!r:.60}; use float32, float64, float16 or bfloat16")
        if self._attn_implementation not in (None, "sdpa", "eager"):
            raise CrateError(
                f"attn_implementation is {self._attn_implementation!r:.60}; use 'sdpa' or 'eager', because the "
                "attention of these models is chosen by the config field `attention`"
            )
        labels, ids = ({} if value is None else value for value in (self.id2label, self.label2id))
        check_limits({"num_labels": len(labels)})
        named = isinstance(ids, dict) and all(isinstance(name, str) for name in (*labels.values(), *ids))
        if not (
            named
            and sorted(labels) == list(range(len(labels)))
            and all(isinstance(index, int) and index in labels for index in ids.values())
        ):
            raise CrateError(f"id2label must name the labels 0 to {len(labels) - 1}, and label2id lead back to them")
        for name in ("pad_token_id", "bos_token_id", "eos_token_id") if self.modality == "text" else ():
            value = getattr(self, name)
            for index in value if isinstance(value, list) else [] if value is None else [value]:
                if index < 0:
                    raise CrateError(f"{name} is {index!r:.60}; it must be at least 0")
                if index >= self.vocab_size:
                    more = f"set vocab_size to {index + 1} or more" if index < 2**24 else "give another id"
                    raise CrateError(f"{name} is {index!r:.60}, but the model has only {self.vocab_size} ids; {more}")

    @property
    def subspace_dim(self) -> int:
        """Dimension p of each subspace."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def max_tokens(self) -> int:
        """Length of the longest text that the position table covers."""
        return self.max_position_embeddings - self.position_offset

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
    def decoder_config(self) -> "CrateConfig":
        """Config of the decoder layers, which differ from the encoder's in width and heads if the config says so."""
        other = copy.copy(self)
        other.hidden_size = self.decoder_width or self.hidden_size
        other.num_attention_heads = self.decoder_heads or self.num_attention_heads
        return other

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
