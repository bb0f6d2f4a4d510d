"""What training starts from: a model by name, or weights from elsewhere with a fresh head."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import CrateError
from ..models.base import CrateModel, CratePreTrainedModel
from ..models.classifier import CrateForImageClassification
from ..models.embedding import PatchEmbedding
from ..models.presets import build_config, create_model
from .recipe import MUST_GIVE, Recipe


def build_classifier(recipe: Recipe, classes: tuple[str, ...]) -> CrateForImageClassification:
    """The classifier of a recipe for these classes, its weights drawn from the run's seed or taken from elsewhere."""
    from transformers import set_seed

    fields = {
        "image_size": recipe.augment.image_size,
        "num_channels": recipe.augment.channels,
        "id2label": dict(enumerate(classes)),
        "label2id": {name: index for index, name in enumerate(classes)},
    }
    set_seed(recipe.run.seed)
    if recipe.model.from_ == MUST_GIVE:
        raise CrateError("this recipe starts from trained weights; give model.from=RUN, a checkpoint file or a hub id")
    if recipe.model.from_ is None:
        model = create_model(recipe.model.name, **{"num_labels": len(classes), **fields, **recipe.model.config})
    else:
        model = start_from(load_weights(recipe.model.from_), {**fields, **recipe.model.config})
    if not isinstance(model, CrateForImageClassification):
        raise CrateError(f"model.name {recipe.model.name}: classification needs an image classifier")
    if recipe.model.freeze:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head"))
    return model


def load_weights(source: str) -> CratePreTrainedModel:
    """A model from a run folder, a released checkpoint file, a saved model's folder or a hub id."""
    from transformers import AutoConfig

    from .. import models

    path = Path(source)
    if path.is_file():
        return models.load_released(path)
    folder = saved_model(path) if path.is_dir() else None
    where = str(folder or source)
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
    known = {key: value for key, value in source.config.to_dict().items() if key in type(source.config).field_names()}
    drop = {"architectures", "transformers_version", "dtype", "problem_type"}
    config = build_config({**{k: v for k, v in known.items() if k not in drop}, **fields})
    model = CrateForImageClassification(config)
    body, start = model.crate, cast(CrateModel, source.base_model)
    weights = start.state_dict()
    if start.embedding.positions is not None:
        grid = cast(PatchEmbedding, body.embedding).config.grid
        weights["embedding.positions.weight"] = start.embedding.positions.for_grid(grid).detach()
    _load_body(body, weights)
    return model


@torch.no_grad()
def _load_body(body: CrateModel, weights: dict[str, Tensor]) -> None:
    own = body.state_dict()
    for key, tensor in own.items():
        if key not in weights:
            raise CrateError(f"model.from: its body has no {key}; leave model.config as it was")
        if weights[key].shape != tensor.shape:
            raise CrateError(
                f"model.from: {key} is {tuple(weights[key].shape)} there and {tuple(tensor.shape)} here; "
                "channels, patch size and width cannot change"
            )
    body.load_state_dict({key: weights[key] for key in own})
