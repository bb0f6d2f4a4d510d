"""What verbs on text share: a language model with its tokenizer, and the tokens it is measured on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CrateError, unknown_name
from .output import progress

if TYPE_CHECKING:
    from ..data import TextData, TokenFile
    from ..training import Recipe

KINDS = {
    "CrateForCausalLM": ("a causal language model", "pydoc-gpt"),
    "CrateForMaskedLM": ("a masked language model", "pydoc-bert"),
}
"""What verbs ask for, by class: in words, and the recipe of an example."""

SPLITS = ("train", "validation", "test")

COUNTED = 20_000_000
"""Training tokens that a baseline counts at most: a minute or so."""


@dataclass(frozen=True)
class Opened:
    """A text model that is ready to be asked."""

    run: Path
    model: Any
    tokenizer: Any
    recipe: Recipe | None
    """None for a saved model that is not part of a run."""

    @property
    def special_tokens(self) -> Any:
        """Special tokens added to documents, as in training (`training.tasks`)."""
        return "eos" if self.model.config.causal else "bos_eos"


def open_text_model(run: Path, which: str, kind: str, verb: str) -> Opened:
    """The model of a run, or of a folder that save_pretrained wrote, if it is of this kind."""
    if which not in ("best", "last"):
        raise unknown_name("--which", which, ("best", "last"))
    from .. import models
    from ..training import load_recipe, saved_model
    from ..training.start_text import saved_tokenizer

    folder = saved_model(run, which)
    recipe = load_recipe(str(run / "recipe.yaml")) if (run / "recipe.yaml").is_file() else None
    words, example = KINDS[kind]
    found = _architecture(folder)
    if found != kind:
        raise CrateError(f"{run}: holds a {found}; crate {verb} takes {words}, such as crate train {example} makes")
    tokenizer = saved_tokenizer(str(folder))
    if tokenizer is None:
        raise CrateError(f"{folder}: holds no tokenizer; save the one of the model there (save_pretrained)")
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = getattr(models, kind).from_pretrained(folder)
    return Opened(run, model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer, recipe)


def _architecture(folder: Path) -> str:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str((config.get("architectures") or [config.get("model_type")])[0])
    except (OSError, ValueError, AttributeError) as error:
        raise CrateError(f"{folder / 'config.json'}: cannot be read; save the model again") from error


def open_text(opened: Opened, data: str | None, column: str | None, separate: str | None) -> TextData:
    """The text of the run, or another: of one without splits all is measured on."""
    from ..data import load_text, text_names
    from ..training.tasks.text import text_source

    if data is not None:
        share = None if data in text_names() else 1
        return load_text(data, text_column=column, separate=separate or "document", validation_share=share)
    if column is not None or separate is not None:
        raise CrateError("--text-column and --separate say how --data is read; give it, or leave them out")
    recipe = opened.recipe
    if recipe is None:
        raise CrateError(f"{opened.run}: is a saved model, not a run; say with --data what to measure it on")
    reading: Any = {"text_column": recipe.text.text_column, "separate": recipe.text.separate}
    return load_text(**text_source(recipe), **reading, validation_share=recipe.data.test_share)


def open_tokens(opened: Opened, text: TextData, split: str) -> TokenFile:
    """A split of a text as token ids; in the run's folder, where training has left its own."""
    from ..data import pack_text

    if split not in SPLITS:
        raise unknown_name("--split", split, SPLITS)
    documents = {"train": text.train, "validation": text.validation, "test": text.test}[split]
    if documents is None:
        raise CrateError(f"{text.name} has no test split; take --split validation")
    recipe = opened.recipe
    folder = None if recipe is None else recipe.text.cache or opened.run / "tokens"
    with progress(f"tokenise {text.name}", 0) as advance:
        return pack_text(
            documents,
            opened.tokenizer,
            name=f"{text.name}-{split}",
            folder=folder,
            special_tokens=opened.special_tokens,
            progress=lambda _: advance(0),
        )
