"""Fine-tuning as a probe: the paper's numbers, on images as the run saw them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .output import print_json

if TYPE_CHECKING:
    from ..training import Recipe


def finetune(recipe: Recipe, folder: Path, overrides: list[str], output: Path, resume: bool, as_json: bool) -> None:
    """Train the whole model in `folder`, with a fresh head, into the run folder `output`, and print its accuracy."""
    from ..training import load_recipe, train

    loaded = load_recipe("finetune-cifar10", [*changes(recipe, folder), *overrides])
    result = train(loaded, output, resume=resume, quiet=as_json)
    if as_json:
        print_json({"run": str(output), "method": "finetune", "seconds": result.seconds, **result.figures})
        return
    print(f"{result.headline} after fine-tuning for {result.seconds:.0f} s")
    print(f"run: {output}; next: crate evaluate {output}")


def changes(recipe: Recipe, folder: Path) -> list[str]:
    """What fine-tuning takes from a run, as overrides of the recipe: model, data, seed and how images look.

    How images are varied in training is the paper's, which is made for colour; grey ones keep the run's own way.
    """
    augment = recipe.to_dict()["augment"]
    if recipe.augment.channels == 3:
        looks = ("image_size", "interpolation", "mean", "std", "evaluation_ratio")
        augment = {name: augment[name] for name in looks} | {"evaluation": recipe.augment.evaluation_crop}
    machine = {"seed": recipe.run.seed, "precision": recipe.run.precision, "layerwise_epochs": 0}
    sections = {"data": dataclasses.asdict(recipe.data), "augment": augment, "run": machine}
    found = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    return [f"{key}={json.dumps(value)}" for key, value in {"model.from": str(folder), **found}.items()]
