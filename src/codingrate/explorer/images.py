"""Measures of one image for the explorer: prediction, attention of a patch, its sparse code, similar patches, curves.

One forward pass per image and intervention is traced and kept by value; everything else is derived from its tokens.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data import EvaluationBatches, UnreadableImageError, decode_image, read_image, unnormalize
from ..data.image_files import open_image, stack_images
from ..errors import CrateError
from ..inspection import ForwardTrace, Intervention, rank_heads, trace
from ..inspection.measure.rates import PRECISION, layer_measures
from ..inspection.measure.sparse_units import codes
from ..inspection.measure.tracing import ColorBasis, UnavailableError
from ..models import CrateForImageClassification, CrateForMaskedAutoencoding
from ..objective.signal import orthonormal_columns
from ..recipes.schema import MUST_GIVE
from ..tasks import Autoencoding, ImageTask
from ..tasks.classification import class_names
from ..tasks.reports import Reconstruction
from .draw import data_url
from .library import CURVES, Curves, Entry, Library, Prediction, top_predictions

UPLOAD_BYTES, UPLOAD_PIXELS = 10 * 2**20, 40_000_000
"""Largest file and largest picture that are read."""
STORED_SIDE = 1024
"""Longest side of a picture that is kept for other models."""
SAMPLES, SAMPLE_BYTES = 48, 96 * 2**20
"""Largest number of sample images, and memory that their codes may take."""


def read_upload(content: bytes, name: str) -> Image.Image:
    """Decode a picture that someone uploaded; refuse what is too large, damaged or not an image, such as an SVG."""
    short = name if len(name) <= 60 else f"{name[:57]}…"
    if len(content) > UPLOAD_BYTES:
        size = f"{len(content) / 2**20:.1f} MB"
        raise CrateError(f"{short}: the file has {size}; the limit is {UPLOAD_BYTES // 2**20} MB. Scale it down first")
    try:
        with open_image(io.BytesIO(content)) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise CrateError(f"{short}: has too many pixels; scale it down first") from None
    except Exception:  # PIL's readers raise many types on damaged files
        raise CrateError(f"{short}: is not an image that can be read; use a JPEG, PNG or WebP file") from None
    if width * height > UPLOAD_PIXELS:
        size = f"{width:,} × {height:,} pixels"
        raise CrateError(
            f"{short}: has {size}; the limit is {UPLOAD_PIXELS // 10**6} million pixels. Scale it down first"
        )
    if min(width, height) < 2:
        raise CrateError(f"{short}: is only {width} × {height} pixels; use a larger image")
    try:
        return decode_image(content, 3)
    except UnreadableImageError:
        raise CrateError(f"{short}: is damaged and cannot be decoded; save it again") from None


@dataclass(frozen=True)
class ImageInput:
    """An image as a model reads it: the evaluation crop, 8 bits, (channels, side, side), as bytes with its shape."""

    content: bytes
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, entry: Entry, picture: Image.Image) -> ImageInput:
        """Crop a picture for a model."""
        crop = read_image(picture, entry.run.task.recipe.augment).numpy()
        return cls(crop.tobytes(), cast(tuple[int, int, int], crop.shape))

    @classmethod
    def of_crop(cls, picture: Image.Image) -> ImageInput:
        """Take a picture that is a crop already."""
        crop = stack_images([picture])[0].numpy()
        return cls(crop.tobytes(), cast(tuple[int, int, int], crop.shape))

    def fits(self, entry: Entry) -> bool:
        """Return whether a model reads crops of this shape."""
        augment = entry.run.task.recipe.augment
        return self.shape == (augment.channels, augment.image_size, augment.image_size)

    @cached_property
    def key(self) -> str:
        """A digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def pixels(self, entry: Entry) -> Tensor:
        """Return normalized pixels (1, channels, side, side) on the model's device."""
        crop = torch.frombuffer(bytearray(self.content), dtype=torch.uint8).view(1, *self.shape)
        task = cast(ImageTask, entry.run.task)
        return cast(Tensor, task.augment.eval()(crop)).to(entry.model.device, entry.model.dtype)

    def arguments(self, entry: Entry) -> dict[str, Tensor]:
        """Return the arguments of a model."""
        return {"pixel_values": self.pixels(entry)}

    @cached_property
    def url(self) -> str:
        """The crop as a data URL."""
        return data_url(self.picture)

    @property
    def picture(self) -> Image.Image:
        """The crop as a picture."""
        array = np.frombuffer(self.content, np.uint8).reshape(self.shape).transpose(1, 2, 0)
        return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else np.ascontiguousarray(array))


def shrink(picture: Image.Image) -> Image.Image:
    """Return a copy of a picture that is at most `STORED_SIDE` pixels long."""
    copy = picture.copy()
    copy.thumbnail((STORED_SIDE, STORED_SIDE))
    return copy


def grid(entry: Entry, image: ImageInput) -> tuple[int, int]:
    """Return the number of rows and columns of patches."""
    side = int(entry.model.config.patch_size)
    return image.shape[1] // side, image.shape[2] // side


def first_patch(entry: Entry) -> int:
    """Return the index of the first patch among the tokens: 1 after a class token."""
    return int(entry.model.config.class_token)


def predict(library: Library, name: str, image: ImageInput, changes: Intervention, top: int = 5) -> list[Prediction]:
    """Return the most probable classes with their probabilities before and after an intervention."""
    entry = library.entry(name)
    if not isinstance(entry.model, CrateForImageClassification) or not entry.model.config.num_labels:
        raise UnavailableError("this model has no classes; look at its layers")
    now, before = (
        cast(Tensor, library.look(name, image, one).logits)[0].double().softmax(-1).cpu()
        for one in (changes, Intervention())
    )
    return top_predictions(class_names(entry.model).__getitem__, now, before, top)


def reconstruct(library: Library, name: str, image: ImageInput) -> Reconstruction:
    """Remove patches of an image, which depend on the image alone, and let an autoencoder reconstruct them."""
    entry = library.entry(name)
    if not isinstance(entry.whole, CrateForMaskedAutoencoding):
        raise UnavailableError("this model has no classes; look at its layers")
    return cast(Autoencoding, entry.run.task).reconstruct_pixels(entry.whole, [name], image.pixels(entry), seed=0)


def important_heads(
    library: Library, name: str, image: ImageInput, progress: Callable[[int, int], object] | None = None
) -> pd.DataFrame:
    """Rank the heads by how much the probability of the predicted class drops without each of them."""
    entry = library.entry(name)
    if not isinstance(entry.model, CrateForImageClassification) or not entry.model.config.num_labels:
        raise UnavailableError("this model has no classes, so heads cannot be ranked")
    return rank_heads(entry.model, progress=progress, pixel_values=image.pixels(entry))


def patch_attention(passed: ForwardTrace, entry: Entry, layer: int, patch: int) -> NDArray[np.float64]:
    """Return the attention of a patch over all patches by head, (K, N); what goes to the class token is left out."""
    first = first_patch(entry)
    return passed.attention_of(layer, first + patch)[0, :, first:].double().cpu().numpy()


def patch_code(passed: ForwardTrace, entry: Entry, layer: int, patch: int) -> NDArray[np.float32]:
    """Return the sparse code of a patch after a layer, (U,), or its token if the model makes no sparse code."""
    at = slice(first_patch(entry) + patch, first_patch(entry) + patch + 1)
    return _codes(passed, entry, layer, at)[0, 0].float().cpu().numpy()


def has_code(entry: Entry) -> bool:
    """Return whether the layers of a model make a sparse code."""
    return entry.white_box or entry.model.config.sparsifier == "odl"


def _codes(passed: ForwardTrace, entry: Entry, layer: int, at: slice) -> Tensor:
    if not has_code(entry):
        return passed.tokens[layer + 1][:, at]
    with torch.inference_mode():
        return codes(passed, layer, at)


@dataclass(frozen=True, eq=False)
class Reference:
    """The sample set of a model: images, and what is measured on all of them."""

    images: tuple[ImageInput, ...]
    labels: tuple[str, ...]
    """The true class of each image; empty if it is not known."""
    table: Curves
    """Means over the images, as `inspection.layerwise` gives them."""
    codes: tuple[Tensor, ...]
    """Codes of all patches by layer, scaled to length one, (images · N, U)."""
    exciting: tuple[NDArray[np.int64], ...]
    """The patches that excite each unit most, as indices of rows of `codes`, strongest first, by layer, (U, 3)."""
    colors: tuple[ColorBasis, ...]
    """Principal components of the patches by layer."""


def reference(library: Library, name: str) -> Reference:
    """Return the sample set of a model, measured on first use."""
    entry = library.entry(name)
    return cast(Reference, entry.once("reference", lambda: _measure_reference(entry)))


def _measure_reference(entry: Entry) -> Reference:
    pixels, labels = sample_images(entry)
    count, first, depth = _affordable(entry, len(pixels)), first_patch(entry), entry.depth
    pixels, labels = pixels[:count], labels[:count]
    values: list[list[dict[str, Tensor]]] = [[] for _ in range(depth)]
    code: list[list[Tensor]] = [[] for _ in range(depth)]
    exciting: list[NDArray[np.int64]] = []
    tokens: list[list[Tensor]] = [[] for _ in range(depth)]
    for part in pixels.split(8):
        with torch.inference_mode():
            passed = trace(entry.model, part.to(entry.model.device, entry.model.dtype))
        for layer in range(depth):
            values[layer].append(layer_measures(passed, layer, PRECISION["paper"], only=CURVES))
            found = _codes(passed, entry, layer, slice(first, None)).flatten(0, 1).float().cpu()
            code[layer].append(found)
            tokens[layer].append(passed.tokens[layer + 1][:, first:].flatten(0, 1).float().cpu())
    for layer in range(depth):
        whole = torch.cat(code[layer])
        exciting.append(whole.abs().topk(min(3, len(whole)), dim=0).indices.T.numpy())
        code[layer] = [torch.nn.functional.normalize(whole, dim=-1)]
    table: Curves = {"layer": list(range(1, depth + 1))}
    for name in CURVES:
        table[name] = [float(torch.cat([one[name] for one in parts]).double().mean()) for parts in values]
    augment = entry.run.task.recipe.augment
    return Reference(
        images=tuple(map(ImageInput.of_crop, unnormalize(pixels, augment))),
        labels=labels,
        table=table,
        codes=tuple(normalized for (normalized,) in code),
        exciting=tuple(exciting),
        colors=tuple(ColorBasis.fit(torch.cat(parts)) for parts in tokens),
    )


def sample_images(entry: Entry) -> tuple[Tensor, tuple[str, ...]]:
    """Return normalized sample images, and their classes: the stored sample of a published run, or test images."""
    task = cast(ImageTask, entry.run.on_data(None))
    data, augment, _ = task.inspected
    crops = EvaluationBatches(data, augment, split=task.default_split, limit=SAMPLES, batch_size=SAMPLES)
    pixels, labels = zip(*crops, strict=True)
    names = () if task.recipe.data.name == MUST_GIVE else data.classes
    known = torch.cat(labels).tolist()
    return torch.cat(pixels), tuple(str(names[label]) if names else "" for label in known)


def _affordable(entry: Entry, count: int) -> int:
    """Return how many images have codes that fit into the memory for them."""
    config: Any = entry.model.config
    patches = (max(config.image_sides) // config.patch_size) ** 2
    one = 4 * patches * config.hidden_size * entry.depth
    return max(4, min(count, SAMPLE_BYTES // one))


@dataclass(frozen=True)
class Neighbor:
    """A patch of a sample image, with the cosine of its code and that of the selected patch."""

    image: int
    patch: int
    cosine: float


def nearest_patches(sample: Reference, layer: int, code: NDArray[np.float32], count: int = 8) -> list[Neighbor]:
    """Return the patches of the sample with the most similar code, at most two of each image."""
    unit = torch.nn.functional.normalize(torch.from_numpy(code), dim=0)
    cosines = (sample.codes[layer] @ unit).unflatten(0, (len(sample.images), -1))  # (images, N)
    two = cosines.topk(min(2, cosines.shape[1]), dim=1)
    best = two.values.flatten().topk(min(count, two.values.numel()))
    places = two.indices.flatten()[best.indices].tolist()
    each = two.values.shape[1]
    return [
        Neighbor(index // each, patch, value)
        for index, patch, value in zip(best.indices.tolist(), places, best.values.tolist(), strict=True)
    ]


def component_colors(passed: ForwardTrace, entry: Entry, sample: Reference, layer: int) -> NDArray[np.float64]:
    """Color the patches of an image by the sample's principal components, (N, 3) in [0, 1]."""
    return sample.colors[layer].colors(passed.tokens[layer + 1][0, first_patch(entry) :])


def nearest_subspaces(passed: ForwardTrace, entry: Entry, layer: int) -> NDArray[np.int64]:
    """Return for each patch the head whose subspace U_k holds most of the attention's input, (N,), from 0."""
    bases = passed.bases[layer]
    if bases is None:
        raise UnavailableError("a black box has no subspaces; choose principal components")
    frames = entry.once(("frames", layer), lambda: orthonormal_columns(bases))  # (K, d, p)
    z = passed.attention_input(layer)[0, first_patch(entry) :]
    energy = torch.einsum("nd,kdp->nkp", z, frames).square().sum(-1)
    return energy.argmax(-1).cpu().numpy()
