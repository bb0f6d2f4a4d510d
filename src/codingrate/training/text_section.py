"""How text is read: the section of a recipe for tasks on text.

Annotations are not postponed here, as pydantic reads them.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from ..errors import CrateError

_ANY = ("tokenizer", "vocab_size")
_BLOCKS = (*_ANY, "block", "separate", "text_column", "cache")
READS: dict[str, tuple[str, ...]] = {
    "causal-lm": _BLOCKS,
    "masked-lm": (*_BLOCKS, "mask_probability"),
    "sequence-classification": (*_ANY, "columns", "max_length", "regression"),
}
"""The tasks on text, and what of the section each of them reads."""


@dataclass(frozen=True)
class TextSection:
    """How text becomes tokens."""

    tokenizer: str | None = None
    """`bytes`, `bpe` learnt from the training text, a folder or a hub id. None is the tokenizer saved with what
    `model.from` names, and `bytes` for a fresh model."""
    vocab_size: int = 8192
    """Number of ids that `bpe` learns, special ones among them."""
    block: int = 256
    """Tokens of a sample of a language model, and rows of its position table."""
    separate: Literal["document", "line", "paragraph"] = "document"
    """What is one document in a text file: all of it, a line, or what stands between blank lines."""
    text_column: str | None = None
    """Column of a table that holds the text, if it cannot be guessed."""
    cache: str | None = None
    """Folder for files of token ids that several runs share; None is one in the run's own folder."""
    mask_probability: float = 0.15
    """Share of tokens a masked language model is asked for."""
    columns: tuple[str, ...] | None = None
    """Column of the labelled sentences, or of both sentences of a pair, if they cannot be guessed."""
    max_length: int = 128
    """Tokens a labelled sentence or pair is cut to."""
    regression: bool | None = None
    """Whether labels are numbers to be predicted; None is yes where they are fractions."""

    def check(self, task: str) -> None:
        """Refuse what the task does not read, and what is out of range."""
        for field in dataclasses.fields(self):
            if getattr(self, field.name) != field.default and field.name not in READS.get(task, ()):
                raise CrateError(f"text.{field.name} is not for task: {task}; leave it out")
        for name, least in (("block", 2), ("max_length", 1), ("vocab_size", 1)):
            if getattr(self, name) < least:
                raise CrateError(f"text.{name} is {getattr(self, name)}; it must be at least {least}")
        if self.vocab_size != TextSection.vocab_size and self.tokenizer != "bpe":
            raise CrateError("text.vocab_size is what bpe learns; set text.tokenizer=bpe or leave it out")
        if not 0 < self.mask_probability < 1:
            raise CrateError(f"text.mask_probability is {self.mask_probability}; it must lie between 0 and 1")
