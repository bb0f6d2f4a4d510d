"""The masked autoencoder (paper 3.3, 4.1.2): encoder f, decoder g, a mask token for what was removed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..errors import CrateError
from .base import CrateModel, CratePreTrainedModel
from .config import CrateConfig
from .embedding import PatchEmbedding, PositionTable, unpatchify
from .layers import DecoderLayer, EncoderLayer
from .outputs import CrateAutoencoderOutput


def kept_patches(patches: int, ratio: float) -> int:
    """How many patches stay, ⌊N(1 − ratio)⌋."""
    return int(patches * (1 - ratio) + 1e-9)  # 10 patches at ratio 0.9 keep one, whatever 1 − 0.9 rounds to


def random_mask(
    batch: int,
    patches: int,
    ratio: float,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A mask (batch, N), True = removed, with exactly N − ⌊N(1 − ratio)⌋ patches removed of every image."""
    kept = kept_patches(patches, ratio)
    rank = torch.rand(batch, patches, device=device, generator=generator).argsort(dim=1).argsort(dim=1)
    return rank >= kept


def reconstruction_targets(patches: Tensor, normalize: bool) -> Tensor:
    """The patches to be reconstructed, each centred and scaled to unit variance if `normalize`."""
    if not normalize:
        return patches
    mean, var = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
    return (patches - mean) / (var + 1e-6).sqrt()


class CrateForMaskedAutoencoding(CratePreTrainedModel):
    """g ∘ f on masked images: the paper's form by default, the released one and the black-box MAE by config.

    Paper: mask token in pixel space, f^pre(X) = W_pre X + E_pos without class token, decoder layers g^ℓ,
    g^post(Z) = W_post(Z − E_pos), squared error over the whole image. It is averaged over patches and pixels
    here, which changes the loss by a constant factor only.
    """

    def __init__(self, config: CrateConfig) -> None:
        self.expect_modality(config, "vision")
        kept = kept_patches(config.num_patches, config.mask_ratio)
        if not 0 < kept < config.num_patches:
            raise CrateError(
                f"mask_ratio {config.mask_ratio} keeps {kept} of {config.num_patches} patches; "
                "change it, patch_size or image_size so that some are kept and some removed"
            )
        super().__init__(config)
        d = config.hidden_size
        self.crate = CrateModel(config)
        self.mask_token = nn.Parameter(torch.empty(config.patch_dim if config.mask_space == "pixel" else d))
        layer = DecoderLayer if config.decoder_type == "mirror" else EncoderLayer
        depth = config.num_hidden_layers if config.decoder_layers is None else config.decoder_layers
        dropped = config.mask_space == "drop"
        self.decoder_embed = nn.Linear(d, d) if dropped else nn.Identity()
        self.decoder_positions = PositionTable(config) if dropped and config.positions != "none" else None
        self.decoder_layers = nn.ModuleList(layer(config) for _ in range(depth))
        norm = nn.LayerNorm(d, eps=config.head_norm_eps) if config.final_norm else nn.Identity()
        self.decoder_norm = norm
        self.predict = nn.Linear(d, config.patch_dim)
        self.post_init()

    @property
    def embedding(self) -> PatchEmbedding:
        """f^pre, shared by the encoder and, for its positions, the decoder."""
        return cast(PatchEmbedding, self.crate.embedding)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CrateForMaskedAutoencoding):
            init.normal_(module.mask_token, std=self.config.initializer_range)

    def forward(
        self,
        pixel_values: Tensor | None = None,
        mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Collection[int] | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> CrateAutoencoderOutput | tuple[Any, ...]:
        """Images and a mask (batch, N), True = removed and drawn at random when None, to a reconstruction."""
        if pixel_values is None:
            raise CrateError("pixel_values is missing; an autoencoder reads (batch, channels, height, width)")
        patches, grid = self.embedding.patches(pixel_values)
        batch, count = patches.shape[:2]
        if mask is None:
            mask = random_mask(batch, count, self.config.mask_ratio, patches.device)
        elif mask.shape != (batch, count):
            raise CrateError(f"mask has shape {tuple(mask.shape)}; expected {(batch, count)}, True = removed")
        elif self.config.mask_space == "drop":
            kept = kept_patches(count, self.config.mask_ratio)
            if bool(((~mask.bool()).sum(dim=1) != kept).any()):
                raise CrateError(f"mask must keep {kept} of {count} patches of every image; set mask_ratio to fit")
        mask = mask.bool()

        trace = self.crate.trace(output_hidden_states, output_attentions)
        z = trace.run(self.crate.layers, trace.start(self.encode(patches, mask, grid)))
        z = self.enter_decoder(self.crate.norm(z), mask, grid)
        decoded = self.decoder_norm(trace.run(self.decoder_layers, z))
        reconstruction = self.leave_decoder(decoded, grid)

        counted = mask if self.config.loss_on == "masked" else torch.ones_like(mask)
        errors = self.patch_errors(patches, reconstruction) * counted
        output = CrateAutoencoderOutput(
            loss=self.regularized(errors.sum() / counted.sum().clamp(min=1)),
            losses=errors.sum(dim=1) / counted.sum(dim=1).clamp(min=1),
            reconstruction=reconstruction,
            mask=mask,
            decoder_input=z if trace.keeps(len(self.crate.layers)) else None,
            **trace.outputs(),
        )
        return output if self.crate.returns_dict(return_dict) else output.to_tuple()

    def features(self, pixel_values: Tensor) -> Tensor:
        """The mean of all tokens of the whole image's code, (batch, d), as the paper's probes take it."""
        return self.crate(pixel_values, return_dict=True).last_hidden_state.mean(dim=1)

    def encode(self, patches: Tensor, mask: Tensor, grid: tuple[int, int]) -> Tensor:
        """Z^1 of the masked image (batch, n, d)."""
        embedding = self.embedding
        if self.config.mask_space == "pixel":
            patches = torch.where(mask[..., None], self.mask_token.to(patches.dtype), patches)
        tokens = embedding.tokens(patches)
        if self.config.mask_space == "embedding":
            tokens = torch.where(mask[..., None], self.mask_token.to(tokens.dtype), tokens)
        tokens = embedding.dropout(embedding.add_positions(tokens, grid))
        if self.config.mask_space != "drop":
            return tokens
        front = int(self.config.class_token)
        kept = tokens[:, front:].gather(1, self.kept(mask)[..., None].expand(-1, -1, tokens.shape[-1]))
        return torch.cat([tokens[:, :front], kept], dim=1)

    def kept(self, mask: Tensor) -> Tensor:
        """Indices of the patches that stay, (batch, kept), in order; the count is the same in every image."""
        count = kept_patches(mask.shape[1], self.config.mask_ratio)
        return mask.byte().argsort(dim=1, stable=True)[:, :count]

    def enter_decoder(self, z: Tensor, mask: Tensor, grid: tuple[int, int]) -> Tensor:
        """What the decoder starts from: the code itself, or the black-box MAE's with mask tokens put in."""
        if self.config.mask_space != "drop":
            return z
        front = int(self.config.class_token)
        z = self.decoder_embed(z)
        tokens = self.mask_token.to(z.dtype).expand(*mask.shape, -1)
        tokens = tokens.scatter(1, self.kept(mask)[..., None].expand(-1, -1, z.shape[-1]), z[:, front:])
        tokens = torch.cat([z[:, :front], tokens], dim=1)
        return tokens if self.decoder_positions is None else tokens + self.decoder_positions.for_grid(grid)

    def leave_decoder(self, z: Tensor, grid: tuple[int, int]) -> Tensor:
        """g^post: W_post(Z − E_pos), or W_post Z, without the class token: (batch, N, channels·P²)."""
        positions = self.embedding.positions
        if self.config.subtract_positions and positions is not None:
            z = z - positions.for_grid(grid)
        return self.predict(z[:, int(self.config.class_token) :])

    def patch_errors(self, patches: Tensor, reconstruction: Tensor) -> Tensor:
        """Mean squared error per pixel of every patch, (batch, N)."""
        targets = reconstruction_targets(patches, self.config.normalize_pixels)
        return (reconstruction - targets).square().mean(dim=-1)

    def image(self, reconstruction: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Reconstructed patches as images (batch, channels, height, width), in the input's normalisation."""
        return unpatchify(reconstruction, self.config.patch_size, grid or self.config.grid)
