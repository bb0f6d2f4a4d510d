"""What training starts from: a model by name, or weights from elsewhere with a fresh head."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import CrateError
from ..models.autoencoder import CrateForMaskedAutoencoding
from ..models.base import CrateModel, CratePreTrainedModel
from ..models.classifier import CrateForImageClassification
from ..models.config import CrateConfig
from ..models.distillation import CrateForSelfDistillation
from ..models.embedding import PatchEmbedding
from ..models.presets import build_config, create_model
from .recipe import MUST_GIVE, Recipe


def build_classifier(recipe: Recipe, classes: tuple[str, ...]) -> CrateForImageClassification:
    """The classifier of a recipe for these classes, its weights drawn from the run's seed or taken from elsewhere."""
    fields = {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: index for index, name in enumerate(classes)},
    }
    model = build_vision(recipe, fields, {"num_labels": len(classes)})
    if not isinstance(model, CrateForImageClassification):
        raise CrateError(f"model.name {recipe.model.name}: classification needs an image classifier")
    if recipe.model.freeze:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head"))
    return model


def build_autoencoder(recipe: Recipe) -> CrateForMaskedAutoencoding:
    """The masked autoencoder of a recipe, fresh or to be trained further."""
    model = build_vision(recipe, further=True)
    if not isinstance(model, CrateForMaskedAutoencoding):
        name = recipe.model.from_ or recipe.model.name
        raise CrateError(f"model {name}: autoencoding needs a masked autoencoder such as crate-mae-base")
    return model


def build_distillation(recipe: Recipe) -> CrateForSelfDistillation:
    """Student and teacher of a recipe, equal at the start."""
    body = build_vision(recipe, {"num_labels": 0})
    if not isinstance(body, CrateForImageClassification):
        raise CrateError(f"model.name {recipe.model.name}: distillation needs a body such as crate-dino-small-patch16")
    for size in (recipe.augment.image_size, recipe.views.local_size) if recipe.views.local_count else ():
        if size % body.config.patch_size:
            raise CrateError(
                f"views.local_size {recipe.views.local_size} is not divisible by patch_size {body.config.patch_size}"
            )
    model = CrateForSelfDistillation(body.config)
    if recipe.model.from_ is not None:
        model.start_from(body)
    return model


def build_vision(
    recipe: Recipe,
    fields: dict[str, Any] | None = None,
    defaults: dict[str, Any] | None = None,
    *,
    further: bool = False,
) -> CratePreTrainedModel:
    """The model a recipe names, fresh; or the classifier on the body that `model.from` holds, or with `further` that
    model itself. `fields` stand over the preset's, `defaults` over a fresh model's only; model.config over all."""
    from transformers import set_seed

    given = recipe.model
    size = {"image_size": recipe.augment.image_size, "num_channels": recipe.augment.channels}
    fields = {**size, **(fields or {})}
    set_seed(recipe.run.seed)
    where = given_source(recipe)
    if where is None:
        return create_model(given.name, **{**(defaults or {}), **fields, **given.config})
    source = load_weights(where)
    if not further:
        return start_from(source, {**fields, **given.config})
    if given.config or any(getattr(source.config, key) != value for key, value in fields.items()):
        raise CrateError("model.from: is trained further as it is; leave model.config out and keep its image size")
    return source


def given_source(recipe: Recipe) -> str | None:
    """What `model.from` names; None for a fresh model."""
    if recipe.model.from_ == MUST_GIVE:
        raise CrateError("this recipe starts from trained weights; give model.from=RUN, a checkpoint file or a hub id")
    return recipe.model.from_


def given_data(recipe: Recipe) -> str:
    """What `data.name` names."""
    if recipe.data.name == MUST_GIVE:
        raise CrateError("this recipe has no data of its own; give data.name or --data, a path or a hub id")
    return recipe.data.name


def load_weights(source: str) -> CratePreTrainedModel:
    """A model from a run folder, a released checkpoint file, a saved model's folder or a hub id."""
    from transformers import AutoConfig
    from transformers.utils import logging as transformers_logging

    from .. import models

    path = Path(source)
    if path.is_file():
        return models.load_released(path)
    folder = saved_model(path) if path.is_dir() else None
    where = str(folder or source)
    if folder is not None:
        transformers_logging.disable_progress_bar()  # a bar for what takes a blink
    try:
        config = AutoConfig.from_pretrained(where)
    except (OSError, ValueError) as error:
        raise CrateError(f"model.from={source}: is no run, checkpoint file, saved model or reachable hub id") from error
    if config.model_type != "crate" or not config.architectures:
        raise CrateError(f"model.from={source}: holds a {config.model_type} model, not one of ours")
    architecture: Any = getattr(models, config.architectures[0])
    return cast(CratePreTrainedModel, architecture.from_pretrained(where))


def saved_model(folder: Path, which: str = "best") -> Path:
    """The folder that from_pretrained reads: of a run its best model (or its last), else the folder itself."""
    for name in (which, "best", "last"):
        if (folder / "model" / name / "config.json").is_file():
            return folder / "model" / name
    if (folder / "config.json").is_file():
        return folder
    raise CrateError(f"{folder}: holds no saved model; give a run folder or one that save_pretrained wrote")


def start_from(source: CratePreTrainedModel, fields: dict[str, Any]) -> CrateForImageClassification:
    """A classifier with the body of `source`, its positions resized to the new images, and a fresh head."""
    if source.config.modality != "vision":
        raise CrateError(f"model.from: holds a {source.config.modality} model; classification starts from a vision one")
    model = CrateForImageClassification(inherited_config(source, fields))
    body, start = model.crate, cast(CrateModel, source.base_model)
    weights = start.state_dict()
    if start.embedding.positions is not None:
        grid = cast(PatchEmbedding, body.embedding).config.grid
        weights["embedding.positions.weight"] = start.embedding.positions.for_grid(grid).detach()
    load_body(body, weights)
    return model


def inherited_config(source: CratePreTrainedModel, fields: dict[str, Any]) -> CrateConfig:
    """The config of `source` with other values of some fields, for another head on its body."""
    known = {key: value for key, value in source.config.to_dict().items() if key in type(source.config).field_names()}
    drop = {"architectures", "transformers_version", "dtype", "problem_type"}
    return cast(CrateConfig, build_config({**{k: v for k, v in known.items() if k not in drop}, **fields}))


@torch.no_grad()
def load_body(body: CrateModel, weights: dict[str, Tensor]) -> None:
    """Put the weights of another body into this one; refuses those that do not fit."""
    own = body.state_dict()
    read = "channels, patch size" if body.config.modality == "vision" else "vocabulary, positions"
    for key, tensor in own.items():
        if key not in weights:
            raise CrateError(f"model.from: its body has no {key}; leave model.config as it was")
        if weights[key].shape != tensor.shape:
            raise CrateError(
                f"model.from: {key} is {tuple(weights[key].shape)} there and {tuple(tensor.shape)} here; "
                f"{read} and width cannot change"
            )
    body.load_state_dict({key: weights[key] for key in own})
