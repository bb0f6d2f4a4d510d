"""One typed configuration for every model: vision and text, white box and black box.

`strict` reads the types of the fields, so that annotations are not postponed here.
"""

import dataclasses
import difflib
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..errors import CrateError, unknown_name
from ..operators import ATTENTION, SPARSIFIERS, AttentionSpec, SparsifierSpec


@strict
class CrateConfig(PreTrainedConfig):
    """Everything that defines a model. Defaults are the paper's; where the released code differs, a field says so."""

    model_type: ClassVar[str] = "crate"

    modality: Literal["vision", "text"] = "vision"
    """What the embedding reads: `pixel_values` or `input_ids`."""

    # The layers (paper 2.3-2.5)
    hidden_size: int = 384
    """Token width d."""
    num_hidden_layers: int = 12
    """Number of layers L."""
    num_attention_heads: int = 6
    """Number of subspaces K."""
    head_dim: int | None = None
    """Dimension p of each subspace; None is d/K."""
    attention: str = "mssa"
    """Attention operator, by name."""
    sparsifier: str = "ista"
    """Sparsifier, by name."""
    causal: bool = False
    """Whether token t sees tokens 1..t only."""
    skip: Literal["normalized", "residual"] = "normalized"
    """Where the skip around attention starts: LN(Z) + MSSA(LN(Z)), the paper's pseudocode, or
    Z + MSSA(LN(Z)), the released code and every black-box transformer."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each half of a layer, or, in BERT and RoBERTa, after its skip: LN(Z + MSSA(Z))."""
    step_size: float | int = 0.1
    """Step η of ISTA."""
    sparsity: float | int = 0.1
    """Weight λ of the ℓ1 norm in ISTA."""
    prox_alpha: float | int = 1.0
    """Constant α of the `prox` sparsifier."""
    expansion: int = 4
    """Hidden width of `mlp` and dictionary width of `odl`, in units of d."""
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    """Activation of `mlp`: GELU, or its approximation by a tanh, which GPT-2 was trained with."""
    attention_scale: float | int | None = None
    """Factor inside the softmax. None: p^-½ (pseudocode, released code); `mssa-tied`: 1 (the equations)."""
    coding_precision: float | int = 0.5
    """ε of β = p/(nε²) in `mssa-tied`."""
    projection_bias: bool = False
    """Bias of the projections of `mhsa` and `tssa`."""
    output_bias: bool = True
    """Bias of the trainable output map W (pseudocode and released code; not in the equations)."""
    layer_norm_eps: float | int = 1e-5
    """ε of the LayerNorms inside the layers."""
    dropout: float | int = 0.0
    """Dropout of embeddings, attention and output maps."""
    orthogonality: Literal["none", "penalty", "parametrize"] = "none"
    """The theory's constraint on U and D: not enforced, added to the training loss, or built in."""
    orthogonality_weight: float | int = 1e-4
    """Weight of the penalty Σ‖UᵀU − I‖² + ‖DᵀD − I‖²."""

    # From data to tokens
    image_size: int | list[int] | tuple[int, int] = 224
    """Height and width of the images the position table is made for; others are interpolated."""
    patch_size: int = 16
    """Side P of a patch."""
    num_channels: int = 3
    """Channels of an image."""
    patch_norm: bool = True
    """LayerNorm before and after the patch projection (pseudocode of the classifier)."""
    class_token: bool = True
    """Whether a class token goes in front."""
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """Position table: trained, or frozen sines and cosines (two-dimensional for images)."""
    position_scale: float | int = 1.0
    """Amplitude of sinusoidal positions. At 1 they drown words that start at N(0, 0.02²); about three times the
    words' own `initializer_range` lets small text models see both."""
    interpolate_offset: float | int = 0.0
    """Added to the target side when a position table is resized; the released patch-8 code takes 0.1."""
    vocab_size: int = 50265
    """Number of token ids."""
    max_position_embeddings: int = 514
    """Rows of the position table of a text model."""
    position_offset: int = 0
    """Row of the first token. RoBERTa takes 2, numbers only tokens that are not padding, and gives padding row 1."""
    type_vocab_size: int = 0
    """Rows of the token-type table; 0 leaves it out."""
    embedding_norm: bool = False
    """LayerNorm on the sum of the text embeddings."""
    pad_token_id: int | None = None
    """Id of padding."""
    bos_token_id: int | None = None
    """Id that begins a text, a generated one without a prompt too."""
    eos_token_id: int | list[int] | None = None
    """Id or ids that end a generated text."""

    # From tokens to the task
    final_norm: bool = False
    """LayerNorm after the last layer of the body."""
    head_norm: bool = True
    """LayerNorm between pooling and the classifier (pseudocode)."""
    head_norm_eps: float | int = 1e-5
    """ε of the LayerNorms outside the layers."""
    pooling: Literal["class", "mean"] = "class"
    """What an image classifier reads: the class token, or the mean of all tokens."""
    prediction_transform: bool = False
    """Linear, GELU and LayerNorm before the tied masked-LM head (RoBERTa), with a bias per word."""
    tie_word_embeddings: bool = True
    """Whether the language-model head is the embedding itself."""
    initializer: Literal["torch", "xavier", "normal"] = "torch"
    """Linear maps: PyTorch's default (released classifier), Xavier-uniform (MAE) or N(0, 0.02²) (language)."""
    initializer_range: float | int = 0.02
    """Standard deviation of normal initialisation."""
    scaled_output_init: bool = False
    """Whether the maps that end attention and MLP are drawn smaller, N(0, 0.02²/2L), as in nanoGPT."""

    # The masked autoencoder (paper 3.3, 4.1.2)
    mask_ratio: float | int = 0.75
    """Share of patches removed."""
    mask_space: Literal["pixel", "embedding", "drop"] = "pixel"
    """Where a removed patch becomes the mask token: before the patch projection (paper), after it (released
    code), or it is dropped from the encoder and enters the decoder (the black-box MAE)."""
    decoder_type: Literal["mirror", "forward"] = "mirror"
    """Decoder layers: g^ℓ, which undoes f^ℓ, or layers like the encoder's (the black-box MAE)."""
    decoder_layers: int | None = None
    """Depth of the decoder; None is the encoder's."""
    subtract_positions: bool = True
    """Whether positions are subtracted before the last map, W_post(Z − E_pos) (paper)."""
    loss_on: Literal["all", "masked"] = "all"
    """Patches the reconstruction loss counts: the whole image (paper) or the removed ones (released code)."""
    normalize_pixels: bool = False
    """Whether each target patch is centred and scaled to unit variance."""

    # Self-distillation (paper 4.1.3)
    projection_head: Literal["released", "paper"] = "released"
    """Head of student and teacher: DINO's with prototypes, or the paper's equation, three maps of width d."""
    projection_hidden: int = 2048
    """Hidden width of the released projection head."""
    projection_bottleneck: int = 256
    """Width of the unit vectors its prototypes are compared with."""
    prototypes: int = 65536
    """Rows P of its last map, the number of scores."""
    normalize_prototypes: bool = True
    """Whether prototypes keep unit length: DINO advises no for its small model, yes for its base."""

    def __post_init__(self, **kwargs: Any) -> None:
        for key in kwargs:  # transformers keeps what it does not know; a slip of the finger is not such a thing
            if difflib.get_close_matches(key, type(self).field_names(), n=1, cutoff=0.85):
                raise unknown_name("config field", key, type(self).field_names())
        super().__post_init__(**kwargs)
        self.architectures = self.architectures or []  # an Auto class of several models looks through them
        self.check()

    @classmethod
    def field_names(cls) -> list[str]:
        """The fields a user may set."""
        return sorted(field.name for field in dataclasses.fields(cls))

    def check(self) -> None:
        """Refuse what cannot be built, in one line."""
        ATTENTION.check(self.attention)
        SPARSIFIERS.check(self.sparsifier)
        d, K = self.hidden_size, self.num_attention_heads
        counts = ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "num_channels", "expansion")
        for name in (*counts, "projection_hidden", "projection_bottleneck", "prototypes"):
            if getattr(self, name) < 1:
                raise CrateError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.head_dim is None and d % K:
            raise CrateError(
                f"num_attention_heads {K} does not divide hidden_size {d}; choose a divisor or set head_dim"
            )
        if self.norm == "post" and (self.modality != "text" or self.skip != "residual"):
            raise CrateError("norm 'post' needs modality='text' and skip='residual'; take norm='pre'")
        if not 0 <= self.position_offset < self.max_position_embeddings:
            raise CrateError(f"position_offset is {self.position_offset}; it must be a row of the position table")
        if self.position_offset and self.causal:
            raise CrateError("position_offset is for masked models; a causal one counts from 0")
        if self.scaled_output_init and self.initializer != "normal":
            raise CrateError(f"scaled_output_init needs initializer='normal', not {self.initializer!r}; take it off")
        if not 0 <= self.dropout < 1:
            raise CrateError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        if not isinstance(self.image_size, int) and len(self.image_size) != 2:
            raise CrateError(f"image_size is {self.image_size}; give one side, or height and width")
        if self.modality == "vision":
            for side in self.image_sides:
                if side % self.patch_size or side < 1:
                    raise CrateError(
                        f"image_size {side} is not divisible by patch_size {self.patch_size}; "
                        f"take {side // self.patch_size * self.patch_size or self.patch_size}"
                    )
            if self.pooling == "class" and not self.class_token:
                raise CrateError("pooling 'class' needs class_token=True; take pooling='mean'")
        if not 0 < self.mask_ratio < 1:
            raise CrateError(f"mask_ratio is {self.mask_ratio}; it must lie between 0 and 1")
        if self.positions == "sinusoidal" and d % (4 if self.modality == "vision" else 2):
            raise CrateError(f"sinusoidal positions need an even split of hidden_size {d}; take a multiple of 4")
        if self.position_scale <= 0:
            raise CrateError(f"position_scale is {self.position_scale}; it must be above 0, or take positions='none'")
        if self.orthogonality == "parametrize" and K * self.subspace_dim > d:
            raise CrateError(
                f"{K} subspaces of dimension {self.subspace_dim} cannot be orthonormal in {d} dimensions; "
                "lower head_dim or take orthogonality='penalty'"
            )

    @property
    def subspace_dim(self) -> int:
        """Dimension p of each subspace."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def max_tokens(self) -> int:
        """The longest text the position table has rows for."""
        return self.max_position_embeddings - self.position_offset

    @property
    def image_sides(self) -> tuple[int, int]:
        """Height and width."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.image_sides
        return height // self.patch_size, width // self.patch_size

    @property
    def num_patches(self) -> int:
        """Patches N of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def patch_dim(self) -> int:
        """Numbers in a patch, channels · P²."""
        return self.num_channels * self.patch_size**2

    @property
    def attention_spec(self) -> AttentionSpec:
        """What every attention operator of the model is built from."""
        return AttentionSpec(
            dim=self.hidden_size,
            heads=self.num_attention_heads,
            head_dim=self.subspace_dim,
            causal=self.causal,
            scale=self.attention_scale,
            eps=self.coding_precision,
            projection_bias=self.projection_bias,
            output_bias=self.output_bias,
            max_tokens=self.max_position_embeddings if self.modality == "text" else 0,
            orthonormal=self.orthogonality == "parametrize",
            dropout=self.dropout,
        )

    @property
    def sparsifier_spec(self) -> SparsifierSpec:
        """What every sparsifier of the model is built from."""
        return SparsifierSpec(
            dim=self.hidden_size,
            step_size=self.step_size,
            sparsity=self.sparsity,
            alpha=self.prox_alpha,
            expansion=self.expansion,
            activation=self.activation,
            orthonormal=self.orthogonality == "parametrize",
            dropout=self.dropout,
        )
