"""What verbs that look at images share: a vision model by run, folder, file or name, and how it wants images."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CrateError, unknown_name

if TYPE_CHECKING:
    from ..data import Augment


@dataclass(frozen=True)
class Vision:
    """A vision model that is ready to look."""

    name: str
    model: Any
    augment: Augment
    """How images are normalised: the run's, or ImageNet's."""
    folder: Path | None
    """The run's or the saved model's folder."""


def open_vision_model(source: str, which: str) -> Vision:
    """The model of a run, a folder that save_pretrained wrote, a released checkpoint file, or a preset untrained."""
    if which not in ("best", "last"):
        raise unknown_name("--which", which, ("best", "last"))
    import torch

    from .. import models
    from ..data import Augment
    from ..training import load_recipe, load_weights, saved_model

    path = Path(source)
    folder = path if path.is_dir() else None
    model: Any
    if path.exists():
        model = load_weights(str(path if folder is None else saved_model(path, which)))
    elif source in models.list_models():
        torch.manual_seed(0)
        model = models.create_model(source)
        say_note(f"{source} has random weights, so what it shows means little; give a run or a checkpoint file")
    else:
        raise unknown_name("run folder, checkpoint file or model", source, models.list_models())
    if model.config.modality != "vision":
        raise CrateError(f"{source}: holds a {type(model).__name__}, which reads text; give a vision model")
    recipe = path / "recipe.yaml"
    augment = load_recipe(str(recipe)).augment if recipe.is_file() else Augment(channels=model.config.num_channels)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Vision(source, model.eval().to(device), augment, folder)


def say_note(text: str) -> None:
    """Something to know that is no error, on standard error."""
    print(f"note: {text}", file=sys.stderr)
