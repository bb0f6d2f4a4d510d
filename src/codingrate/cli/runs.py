"""What verbs that take a run folder, or a model by any other name, share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CrateError, unknown_name

if TYPE_CHECKING:
    from ..training import Recipe


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, on the device there is."""

    source: str
    """What it was asked for by."""
    model: Any
    recipe: Recipe | None
    """None where it is not that of a run."""
    run: Path | None
    """The run's folder, also of a checkpoint or of a model saved in it."""
    folder: Path | None
    """The run's or the saved model's folder; None for a file or a name."""
    note: str | None
    """What to know of it: that its weights are random."""

    @property
    def name(self) -> str:
        """What it is called where paths would be too long."""
        return self.source if self.folder is None else self.folder.resolve().name


def open_model(source: str, which: str) -> Loaded:
    """The model of a run, a folder that save_pretrained wrote, a released checkpoint file, or a preset untrained."""
    _check_which(which)
    import torch

    from .. import models
    from ..training import load_recipe, load_weights, saved_model

    path, note = Path(source), None
    folder = path if path.is_dir() else None
    model: Any
    if path.exists():
        model = load_weights(str(path if folder is None else saved_model(path, which)))
    elif source in models.list_models():
        torch.manual_seed(0)
        model = models.create_model(source)
        note = f"{source} has random weights, so what it shows means little; give a run or a checkpoint file"
    else:
        raise unknown_name("run folder, checkpoint file or model", source, models.list_models())
    run = next((place for place in (path, path.parent.parent) if (place / "recipe.yaml").is_file()), None)
    run = None if folder is None else run
    recipe = None if run is None else load_recipe(str(run / "recipe.yaml"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Loaded(source, model.eval().to(device), recipe, run, folder, note)


def open_run(run: Path, which: str) -> tuple[Recipe, Path]:
    """The recipe of a run, and the folder of its best or last model."""
    _check_which(which)
    if not (run / "recipe.yaml").is_file():
        raise CrateError(f"{run}: is not a run folder (no recipe.yaml); train one with crate train")
    from ..training import load_recipe, saved_model

    return load_recipe(str(run / "recipe.yaml")), saved_model(run, which)


def _check_which(which: str) -> None:
    if which not in ("best", "last"):
        raise unknown_name("--which", which, ("best", "last"))
