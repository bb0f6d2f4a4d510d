"""The masked autoencoder (paper 3.3, 4.1.2): encoder f, decoder g, and a mask token for removed patches."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..errors import CrateError
from .base import CrateModel, CratePreTrainedModel
from .config import CrateConfig
from .embedding import PatchEmbedding, PositionTable, unpatchify
from .layers import DecoderLayer, EncoderLayer, TiedDecoderLayer
from .outputs import CrateAutoencoderOutput, can_return_tuple


def kept_patches(patches: int, ratio: float) -> int:
    """Return how many patches are kept, ⌊N(1 − ratio)⌋."""
    return int(patches * (1 - ratio) + 1e-9)  # 10 patches at ratio 0.9 keep one, however 1 − 0.9 is rounded


def random_mask(
    batch: int, patches: int, ratio: float, device: torch.device | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw a mask (batch, N), True = removed, that removes exactly N − ⌊N(1 − ratio)⌋ patches of every image."""
    rank = torch.rand(batch, patches, device=device, generator=generator).argsort(dim=1).argsort(dim=1)
    return rank >= kept_patches(patches, ratio)


class CrateForMaskedAutoencoding(CratePreTrainedModel):
    """g ∘ f on masked images, or on whole ones with `mask_ratio=0`.

    The default is the paper's form; the released one and the black-box MAE are fields of the config.

    Paper: mask token in pixel space, f^pre(X) = W_pre X + E_pos without class token, decoder layers g^ℓ,
    g^post(Z) = W_post(Z − E_pos), squared error over the whole image. Here the error is averaged over patches and
    pixels, which changes the loss by a constant factor only.
    """

    accepts_loss_kwargs = False  # its loss is a mean over patches, so transformers' Trainer averages it over batches

    rules = (
        (
            lambda c: c.patch_dropout,
            "a masked autoencoder removes patches by mask_ratio; set patch_dropout to 0",
        ),
        (
            lambda c: c.stem != "patches",
            "a convolution would let kept patches see the removed ones; use stem='patches'",
        ),
        (
            lambda c: not 0 < kept_patches(c.num_patches, c.mask_ratio) < c.num_patches + (c.mask_ratio == 0),
            "mask_ratio {c.mask_ratio} keeps none or all of {c.num_patches} patches; change it, patch_size or "
            "image_size so that some are kept and some removed",
        ),
    )

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        decoder = config.decoder_config
        d = decoder.hidden_size
        self.crate = CrateModel(config)
        self.mask_token = nn.Parameter(torch.empty(config.patch_dim if config.mask_space == "pixel" else d))
        depth = config.num_hidden_layers if config.decoder_layers is None else config.decoder_layers
        dropped = config.mask_space == "drop"
        self.decoder_embed = nn.Linear(config.hidden_size, d) if dropped else nn.Identity()
        self.decoder_positions = PositionTable(decoder) if dropped and config.positions != "none" else None
        if config.decoder_type == "tied":
            encoder = cast("list[EncoderLayer]", list(self.crate.layers))
            self.decoder_layers = nn.ModuleList(TiedDecoderLayer(decoder, layer) for layer in reversed(encoder))
        else:
            layer = DecoderLayer if config.decoder_type == "mirror" else EncoderLayer
            self.decoder_layers = nn.ModuleList(layer(decoder) for _ in range(depth))
        self.decoder_norm = nn.LayerNorm(d, eps=config.head_norm_eps) if config.final_norm else nn.Identity()
        self.predict = nn.Linear(d, config.patch_dim)
        self.post_init()

    @property
    def embedding(self) -> PatchEmbedding:
        """f^pre, whose positions the decoder shares."""
        return cast(PatchEmbedding, self.crate.embedding)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CrateForMaskedAutoencoding):
            init.normal_(module.mask_token, std=self.config.initializer_range)

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor | None = None, mask: Tensor | None = None, **kwargs: Any
    ) -> CrateAutoencoderOutput:
        """Reconstruct images from their kept patches.

        `mask` (batch, N) is True for removed patches; it is drawn at random if it is None. `output_hidden_states` and
        `output_attentions` are those of the body.
        """
        if pixel_values is None:
            raise CrateError("pixel_values is missing; an autoencoder reads (batch, channels, height, width)")
        patches, grid = self.embedding.patches(pixel_values)
        mask = self._check_mask(mask, patches)

        trace = self.crate.trace(kwargs.get("output_hidden_states"), kwargs.get("output_attentions"))
        z = trace.run(self.crate.layers, self.encode(patches, mask, grid))
        z = self.enter_decoder(self.crate.norm(z), mask, grid)
        decoded = self.decoder_norm(trace.run(self.decoder_layers, z))
        reconstruction = self.leave_decoder(decoded, grid)

        counted = mask if self.config.loss_on == "masked" else torch.ones_like(mask)
        errors = self.patch_errors(patches, reconstruction) * counted
        shared = trace.outputs()
        return CrateAutoencoderOutput(
            loss=self.regularized(errors.sum() / counted.sum().clamp(min=1), objective=shared.get("objective")),
            losses=errors.sum(dim=1) / counted.sum(dim=1).clamp(min=1),
            reconstruction=reconstruction,
            mask=mask,
            decoder_input=z if trace.records(len(self.crate.layers)) else None,
            **shared,
        )

    def _check_mask(self, mask: Tensor | None, patches: Tensor) -> Tensor:
        """Return the mask as Booleans, or a random one; raise an error if it does not fit the patches."""
        batch, count = patches.shape[:2]
        if mask is None:
            return random_mask(batch, count, self.config.mask_ratio, patches.device)
        if mask.shape != (batch, count):
            raise CrateError(f"mask has shape {tuple(mask.shape)}; expected {(batch, count)}, True = removed")
        if self.config.mask_space == "drop" and not torch.compiler.is_exporting():  # a graph cannot look at values
            kept = kept_patches(count, self.config.mask_ratio)
            if bool(((~mask.bool()).sum(dim=1) != kept).any()):
                raise CrateError(f"mask must keep {kept} of {count} patches of every image; set mask_ratio to fit")
        return mask.bool()

    def features(self, pixel_values: Tensor) -> Tensor:
        """Compute the mean of all tokens of the unmasked image, (batch, d), as the paper's probes do."""
        return self.crate(pixel_values, return_dict=True).last_hidden_state.mean(dim=1)

    def encode(self, patches: Tensor, mask: Tensor, grid: tuple[int, int]) -> Tensor:
        """Compute Z^1 (batch, n, d) of the masked image."""
        tokens = self.embedding(patches, grid, mask, self.mask_token)
        if self.config.mask_space != "drop":
            return tokens
        front = int(self.config.class_token)
        kept = tokens[:, front:].gather(1, self.kept(mask)[..., None].expand(-1, -1, tokens.shape[-1]))
        return torch.cat([tokens[:, :front], kept], dim=1)

    def kept(self, mask: Tensor) -> Tensor:
        """Return the indices of the kept patches in order, (batch, kept); every image keeps equally many."""
        count = mask.shape[1]
        order = mask.long() * count + torch.arange(count, device=mask.device)  # kept patches first, each in its order
        return order.argsort(dim=1)[:, : kept_patches(count, self.config.mask_ratio)]

    def enter_decoder(self, z: Tensor, mask: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return the input of the decoder: the code itself or, for the black-box MAE, with mask tokens inserted."""
        if self.config.mask_space != "drop":
            return z
        front = int(self.config.class_token)
        z = self.decoder_embed(z)
        tokens = self.mask_token.to(z.dtype).expand(*mask.shape, -1)
        tokens = tokens.scatter(1, self.kept(mask)[..., None].expand(-1, -1, z.shape[-1]), z[:, front:])
        tokens = torch.cat([z[:, :front], tokens], dim=1)
        return tokens if self.decoder_positions is None else self.decoder_positions(tokens, grid)

    def leave_decoder(self, z: Tensor, grid: tuple[int, int]) -> Tensor:
        """Apply g^post, W_post(Z − E_pos) or W_post Z, without the class token: (batch, N, channels·P²)."""
        positions = self.embedding.positions
        if self.config.subtract_positions and positions is not None:
            z = positions(z, grid, sign=-1)
        return self.predict(z[:, int(self.config.class_token) :])

    def patch_errors(self, patches: Tensor, reconstruction: Tensor) -> Tensor:
        """Compute the mean squared error per pixel of every patch, (batch, N)."""
        if self.config.normalize_pixels:
            mean, var = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
            patches = (patches - mean) / (var + 1e-6).sqrt()
        return (reconstruction - patches).square().mean(dim=-1)

    def image(self, reconstruction: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Convert patches to images (batch, channels, height, width), normalized like the input."""
        return unpatchify(reconstruction, self.config.patch_size, grid or self.config.grid)
