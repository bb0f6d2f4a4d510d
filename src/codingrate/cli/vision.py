"""What verbs that look at images share: a vision model by run, folder, file or name, and how it wants images."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CrateError
from .runs import open_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from PIL import Image

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
    loaded = open_model(source, which)
    if loaded.note is not None:
        say_note(loaded.note)
    model = loaded.model
    if model.config.modality != "vision":
        raise CrateError(f"{source}: holds a {type(model).__name__}, which reads text; give a vision model")
    from ..data import Augment

    augment = Augment(channels=model.config.num_channels) if loaded.recipe is None else loaded.recipe.augment
    return Vision(source, model, augment, loaded.folder)


def say_note(text: str) -> None:
    """Something to know that is no error, on standard error."""
    print(f"note: {text}", file=sys.stderr)


def picture_names(images: Sequence[Path]) -> list[str]:
    """A name for the pictures of each image: its own, with a number where another has the same."""
    names: list[str] = []
    for path in images:
        same = sum(other.stem == path.stem for other in images[: len(names)])
        names.append(f"{path.stem}-{same + 1}" if same else path.stem)
    return names


def write_pictures(folder: Path, pictures: Mapping[str, Image.Image]) -> list[str]:
    """Write pictures by their file's name, each whole or not at all, and give their paths in the same order."""
    from .._files import atomic_write

    for file, picture in pictures.items():
        with atomic_write(folder / file) as draft:
            picture.save(draft, format="PNG")
    return [str(folder / file) for file in pictures]
