"""What training starts from: a model by name, or weights from elsewhere with a fresh head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CrateError
from ..models.autoencoder import CrateForMaskedAutoencoding
from ..models.base import CratePreTrainedModel
from ..models.classifier import CrateForImageClassification
from ..models.distillation import CrateForSelfDistillation
from ..models.loading import load_model, transfer_body
from ..models.presets import create_model
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
        with name_source():
            return transfer_body(source, {**fields, **given.config})
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
    """Load a model from a run folder, a released checkpoint file, a saved model's folder or a hub id."""
    path = Path(source)
    with name_source():
        return load_model(saved_model(path) if path.is_dir() else source)


@contextmanager
def name_source() -> Iterator[None]:
    """Put the recipe key `model.from` in front of errors about the source model."""
    try:
        yield
    except CrateError as error:
        raise CrateError(f"model.from: {error}") from error


def saved_model(folder: Path, which: str = "best") -> Path:
    """The folder that from_pretrained reads: of a run its best model (or its last), else the folder itself."""
    for name in (which, "best", "last"):
        if (folder / "model" / name / "config.json").is_file():
            return folder / "model" / name
    if (folder / "config.json").is_file():
        return folder
    raise CrateError(f"{folder}: holds no saved model; give a run folder or one that save_pretrained wrote")
