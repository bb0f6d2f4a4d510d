"""Publish a run: a small folder with 16-bit weights, recipe, metrics, model card and a sample to check them with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

from .._files import atomic_folder, write_json, write_text
from .._report import EvaluationReport
from .._state import quiet_transformers
from ..errors import CrateError
from ..models.checkpoint_file import read_json
from ..recipes import save_recipe
from ..recipes.schema import MUST_GIVE
from ..tasks.card import model_card
from .folder import SAMPLE, Checkpoint, read_sample
from .run import Run


def publish(
    run: Run,
    folder: str | Path,
    *,
    data: str | None = None,
    about: str = "",
    samples: int = 32,
    checkpoint: Checkpoint = "last",
) -> Path:
    """Write a run to share to a new folder, which `Run` opens like the run itself, and return the folder.

    `data` is the name under which others know the dataset; a local path is left out of the recipe. `about` are further
    paragraphs of the model card, such as results, license and limits. `samples` of the evaluation data are stored with
    the metrics of the model on them, so that a damaged copy or a change of code is noticed (`check_published`).
    """
    folder, recipe = Path(folder), run.recipe
    if recipe is None:
        raise CrateError(f"{run.source}: only a run can be published, because its recipe tells how it was trained")
    if folder.exists():
        raise CrateError(f"{folder}: exists already; give another folder")
    own = MUST_GIVE if Path(recipe.data.name).exists() else recipe.data.name  # a path here is no path elsewhere
    public = dataclasses.replace(recipe.data, name=data or own, path=None)
    recipe = dataclasses.replace(recipe, data=public)
    with atomic_folder(folder) as draft:
        target = draft / "model" / "last"
        model = cast(Any, run.model(checkpoint)).half()
        with quiet_transformers():
            model.save_pretrained(target)
        if run.task.modality == "text":
            run.processor.save_pretrained(target)
        config = read_json(target / "config.json")
        write_json(target / "config.json", {**config, "dtype": "float32"})  # models are stored in 16 bits, not trained
        save_recipe(recipe, draft / "recipe.yaml")
        lines = run.history[lambda table: table["kind"].isin(["evaluation", "end"])].to_dict("records")
        entries = [{key: value for key, value in line.items() if value == value} for line in lines]  # without NaN
        write_text(draft / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))
        card = model_card(model, recipe, folder.name, f"{folder.name}/model/last", about)
        write_text(draft / "README.md", card)
        sample = run.task.write_sample(draft, samples)
        write_json(draft / SAMPLE, {"data": sample and sample.name, "metrics": {}})  # now it is published
        if sample is not None:
            metrics = cast(EvaluationReport, Run(draft).evaluate(str(sample))).metrics
            write_json(draft / SAMPLE, {"data": sample.name, "metrics": metrics})
    return folder


def check_published(run: Run, tolerance: float = 1e-3) -> dict[str, tuple[float, float]]:
    """Measure a published model on its stored sample; return stored and measured metrics, which must agree."""
    if run.folder is None or not (run.folder / SAMPLE).is_file():
        raise CrateError(f"{run.source}: has no {SAMPLE}; only published runs can be checked")
    stored = read_sample(run.folder)
    measured = cast(EvaluationReport, run.evaluate()).metrics
    pairs = {name: (value, measured[name]) for name, value in stored["metrics"].items()}
    for name, (before, now) in pairs.items():
        if not abs(before - now) <= tolerance * max(1.0, abs(before)):
            raise CrateError(f"{run.source}: {name} is {now:.4f} on its sample, but was {before:.4f}; get it again")
    return pairs
