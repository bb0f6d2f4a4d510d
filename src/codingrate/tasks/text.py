"""Tasks on text: the tokenizer, the model that fits it, and samples for inspection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from .._distributed import ListedBatches, SharedBatches
from .._files import atomic_folder
from ..data import Documents, load_tokenizer
from ..data.tokens import check_tokenizer, id_count
from ..errors import CrateError, check_positive
from ..models.base import CratePreTrainedModel
from ..models.config import CrateConfig
from ..models.presets import create_model
from ..recipes.schema import MUST_GIVE
from .base import Reading, Task, no_progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextTask(Task):
    """Learning from text."""

    sample_unit: ClassVar[str] = "seq"
    modality: ClassVar[str] = "text"
    default_split: ClassVar[str] = "validation"

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the run or of the saved model, or the one that opening the data builds."""
        saved = self._saved_tokenizer()
        if saved is None and self.recipe.data.name == MUST_GIVE:
            raise CrateError(f"{self.paths.source}: there is no tokenizer; save it beside the weights, or give a run")
        return self.data.tokenizer if saved is None else saved

    def _saved_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Return the tokenizer kept in the run, or for a model outside of runs the one beside its weights."""
        if self.paths.tokenizer is not None:
            return saved_tokenizer(self.paths.tokenizer)
        return None if self.paths.source is None else saved_tokenizer(self.paths.source)

    @property
    def processor(self) -> Any:
        return self.tokenizer

    def save(self, model: CratePreTrainedModel, weights: dict[str, Tensor] | None, folder: Path) -> None:
        """Write the model, its tokenizer, which knows the longest text that the model reads, and a model card."""
        self.tokenizer.model_max_length = model.config.max_tokens
        super().save(model, weights, folder)
        self.tokenizer.save_pretrained(folder)

    def loaded(self, model: CratePreTrainedModel, dataset: Any, reading: Reading) -> SharedBatches[dict[str, Any]]:
        """Return the batches of a dataset as evaluation reads them, on the model's device."""
        check_positive(batch_size=reading.get("batch_size", 64))

        def load(rows: Sequence[int]) -> dict[str, Any]:
            batch = self.prepare(self.collate(rows_of(dataset, rows)), None, model)
            reading.get("progress", no_progress)(len(rows))
            return {name: value.to(model.device) for name, value in batch.items()}

        return ListedBatches(batched(range(len(dataset)), reading), load)

    def data_source(self) -> dict[str, Any]:
        """Return the arguments of `load_text` and `load_sentences` that say which data to open."""
        section = self.recipe.data
        return {"name": self.recipe.data_name, "path": section.path, "split_seed": section.split_seed}

    def build_tokenizer(
        self, texts: Documents | Iterable[str], kind: Literal["masked", "causal"]
    ) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the run: the one kept in its folder, or a new one, which is then kept there."""
        kept, saved = self.paths.tokenizer, self._saved_tokenizer()
        if saved is not None:
            return saved
        tokenizer = self._new_tokenizer(texts, kind)
        if kept is None:
            return tokenizer
        with atomic_folder(kept) as draft:
            tokenizer.save_pretrained(draft)
        return load_tokenizer(str(kept))

    def _new_tokenizer(self, texts: Documents | Iterable[str], kind: Literal["masked", "causal"]) -> Any:
        """Return the tokenizer that the recipe names, or that of the source model; they must not differ."""
        source, name = self.paths.source, self.recipe.text.tokenizer
        own = None if source is None else saved_tokenizer(source)
        if name is None and source is not None:
            if own is None:
                raise CrateError(
                    f"model.from={source}: the source has no tokenizer; name the one it was trained with in "
                    "text.tokenizer, or start from another model"
                )
            return own
        section = self.recipe.text
        options: dict[str, Any] = {"vocab_size": section.vocab_size, "uncased": section.uncased}
        tokenizer = load_tokenizer(name or "bytes", texts, kind=kind, **options)
        if own is not None and tokenizer.get_vocab() != own.get_vocab():
            raise CrateError(
                f"text.tokenizer={name}: its vocabulary differs from that of model.from={source}; "
                "use text.tokenizer=null to take the source's tokenizer"
            )
        return tokenizer

    def build_language_model(self, kind: type[CratePreTrainedModel], example: str) -> CratePreTrainedModel:
        """Build the language model of the recipe, new or to continue training, with an embedding for every id."""
        section, source, block = self.recipe.model, self.paths.source, self.recipe.text.block
        if source is None:
            model = create_model(section.name, **{**token_fields(self.tokenizer, block), **section.config})
        elif section.config:
            raise CrateError("model.from: training continues with the model as it is; leave out model.config")
        else:
            model = self.load_source()
            self.log_source(model, model)
        if not isinstance(model, kind):
            raise CrateError(f"model {source or section.name}: task {self.recipe.task} needs a model such as {example}")
        check_context(model.config, self.tokenizer, "text.block", block)
        return model


def saved_tokenizer(source: str | Path) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer saved beside the weights in a folder or a hub repository, or None."""
    path = Path(source)
    local = path.is_dir() or isinstance(source, Path)
    if path.is_file() or (local and not (path / "tokenizer_config.json").is_file()):
        return None
    try:
        return load_tokenizer(str(source))
    except CrateError:
        if path.is_dir():  # the tokenizer is there, but damaged
            raise
        return None


def token_fields(tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, Any]:
    """Return the config fields that follow from the tokenizer and the context length."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return {"vocab_size": id_count(tokenizer), "max_position_embeddings": length, **ids}


def check_context(config: CrateConfig, tokenizer: PreTrainedTokenizerBase, key: str, length: int) -> None:
    """Refuse a tokenizer or a context length that does not fit the model."""
    check_tokenizer(tokenizer, config)
    if length > config.max_tokens:
        raise CrateError(f"{key} is {length}, but the model has positions for {config.max_tokens} tokens; lower {key}")


def rows_of(dataset: Any, rows: Sequence[int]) -> list[Any]:
    """Return rows of a dataset, with a single look-up if it has one."""
    several = getattr(dataset, "__getitems__", None)
    return [dataset[row] for row in rows] if several is None else list(several(list(rows)))


def spread(total: int, reading: Reading) -> list[Sequence[int]]:
    """Return batches of indices spread evenly over a dataset without classes, at most the limit of them."""
    count = min(reading.get("limit", total), total)
    return batched([number * total // count for number in range(count)], reading)


def batched(indices: Sequence[int], reading: Reading) -> list[Sequence[int]]:
    """Return indices in parts of the batch size."""
    size = reading.get("batch_size", 64)
    return [indices[start : start + size] for start in range(0, len(indices), size)]
