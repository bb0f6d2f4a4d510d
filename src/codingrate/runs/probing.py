"""Probes of a run's features: logistic regression, nearest neighbors, and fine-tuning."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from .._state import seeded
from ..errors import CrateError
from ..evaluation import Features, ProbeReport, extract_features, pixel_features, probe_features, probe_steps
from ..models.base import CratePreTrainedModel
from ..recipes import load_recipe
from ..tasks import ImageTask
from .run import Checkpoint, FeatureSource, Run
from .training import train


def probe_run(
    run: Run,
    method: str = "logistic",
    features: FeatureSource = "trained",
    *,
    data: str | None = None,
    path: str | None = None,
    checkpoint: Checkpoint = "last",
    limit: int | None = None,
    batch_size: int = 256,
    cache: Path | None = None,
    **options: Any,
) -> ProbeReport:
    """Measure features of images by a classifier on them; see `Run.probe`."""
    task = run.on_data(data, path, held_out=False)
    model = run.model(checkpoint)
    if not isinstance(task, ImageTask) or not hasattr(model, "features"):
        raise CrateError(f"{run.source}: a {type(model).__name__} has no image features; probe a vision model")
    if features == "untrained":
        with seeded(task.recipe.run.seed):
            model = cast(Any, type(model))(type(model.config).from_dict(model.config.to_dict())).to(model.device)
    settings = {
        "cache": cache or run.output_folder("features"),
        "batch_size": batch_size,
        "limit": limit,
        "workers": task.recipe.data.workers,
        "max_corrupt": task.recipe.data.max_corrupt,
    }
    train_set, test_set = (
        _features(run, task, None if features == "pixels" else model, f"{features}, {split}", split, settings)
        for split in ("train", "test")
    )
    about = {"run": run.source, "checkpoint": str(checkpoint), "data": task.recipe.data.name, "features": features}
    steps = probe_steps(len(train_set), len(test_set), method, options)
    with run.progress(f"{method} on {features} features", steps) as advance:
        return probe_features(train_set, test_set, method, progress=advance, about=about, **options)


def _features(
    run: Run, task: ImageTask, model: CratePreTrainedModel | None, name: str, split: str, settings: dict[str, Any]
) -> Features:
    samples = task.data.train if split == "train" else task.data.test
    known = len(samples) if hasattr(samples, "__len__") else settings["limit"] or 0
    with run.progress(name, min(known, settings["limit"] or known)) as advance:
        options = {**settings, "split": split, "progress": advance}
        if model is None:
            return pixel_features(task.data, task.recipe.augment, **options)
        return extract_features(model, task.data, task.recipe.augment, **options)


def fine_tune_run(
    run: Run,
    output: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    data: str | None = None,
    path: str | None = None,
    checkpoint: Checkpoint = "last",
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Fine-tune the whole model with a new head; see `Run.finetune`.

    The recipe is the paper's (`finetune-cifar10`) with model, data, seed and image format of the run. The paper's
    augmentation is made for color images; runs on gray images keep their own.
    """
    recipe = run.on_data(data, path, held_out=False).recipe
    augment = recipe.to_dict()["augment"]
    if recipe.augment.channels == 3:
        format_keys = ("image_size", "interpolation", "mean", "std", "evaluation_ratio")
        augment = {name: augment[name] for name in format_keys} | {"evaluation": recipe.augment.evaluation_crop}
    execution = {"seed": recipe.run.seed, "precision": recipe.run.precision, "layerwise_epochs": 0}
    sections = {"data": dataclasses.asdict(recipe.data), "augment": augment, "run": execution}
    values = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    changes = {"model.from": str(run.model_folder(checkpoint)), **values}
    tuned = load_recipe("finetune-cifar10", [*(f"{key}={json.dumps(v)}" for key, v in changes.items()), *overrides])
    return train(tuned, output or run.output_folder("finetune"), resume=resume, quiet=quiet)
