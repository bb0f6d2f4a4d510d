"""What training on text starts from: a tokenizer, and a language model or a classifier of sentences that fits it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ..data import Documents, check_tokenizer, id_count, load_tokenizer
from ..errors import CrateError
from ..models.base import CrateModel, CratePreTrainedModel
from ..models.checkpoint_file import write_folder
from ..models.config import CrateConfig
from ..models.language import CrateForSequenceClassification
from ..models.loading import inherited_config, load_body
from ..models.presets import build_config, create_model, preset
from .recipe import Recipe
from .start import given_source, load_weights, name_source, saved_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run_tokenizer(
    recipe: Recipe, folder: Path | None, texts: Documents | Iterable[str], kind: Literal["masked", "causal"]
) -> PreTrainedTokenizerBase:
    """The tokenizer of a run, made once and kept in its folder, so that a resumed run learns no other."""
    kept = None if folder is None else folder / "tokenizer"
    if kept is not None and kept.is_dir():
        return load_tokenizer(str(kept))
    tokenizer = _tokenizer(recipe, texts, kind)
    if kept is None:
        return tokenizer
    write_folder(kept, tokenizer.save_pretrained, overwrite=True)
    return load_tokenizer(str(kept))


def _tokenizer(recipe: Recipe, texts: Documents | Iterable[str], kind: Literal["masked", "causal"]) -> Any:
    """The one that is named, or that of the weights to start from; they cannot be two different ones."""
    source, spec = given_source(recipe), recipe.text.tokenizer
    own = None if source is None else saved_tokenizer(source)
    if spec is None and source is not None:
        if own is None:
            raise CrateError(
                f"model.from={source}: no tokenizer is saved there; name another model, or the one it was trained with "
                "by text.tokenizer"
            )
        return own
    made = load_tokenizer(spec or "bytes", texts, kind=kind, vocab_size=recipe.text.vocab_size)
    if own is not None and made.get_vocab() != own.get_vocab():
        raise CrateError(
            f"text.tokenizer={spec}: has another vocabulary than that of model.from={source}; take text.tokenizer=null"
        )
    return made


def saved_tokenizer(source: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside the weights in a run, a saved model or a hub repository; None where there is none."""
    path = Path(source)
    if path.is_file():
        return None
    folder = saved_model(path) if path.is_dir() else None
    if folder is not None and not (folder / "tokenizer_config.json").is_file():
        return None
    try:
        return load_tokenizer(str(folder or source))
    except CrateError:
        if folder is not None:  # it is there, but damaged
            raise
        return None


def build_language_model(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, kind: type[CratePreTrainedModel], such_as: str
) -> CratePreTrainedModel:
    """The language model of a recipe, fresh or to be trained further, with an embedding for every id."""
    from transformers import set_seed

    given, source, block = recipe.model, given_source(recipe), recipe.text.block
    set_seed(recipe.run.seed)
    if source is None:
        model = create_model(given.name, **{**_fields(tokenizer, block), **given.config})
    elif given.config:
        raise CrateError("model.from: is trained further as it is; leave model.config out")
    else:
        model = load_weights(source)
    if not isinstance(model, kind):
        raise CrateError(f"model {source or given.name}: task: {recipe.task} needs a model such as {such_as}")
    _check(model.config, tokenizer, "text.block", block)
    return model


def build_sentence_classifier(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, classes: tuple[str, ...] | None
) -> CrateForSequenceClassification:
    """The classifier of sentences of a recipe, or for no classes the regression; a fresh head on any text body."""
    from transformers import set_seed

    given, where, length = recipe.model, given_source(recipe), recipe.text.max_length
    labels: dict[str, Any] = {"num_labels": 1}
    if classes is not None:
        labels = {"id2label": dict(enumerate(classes)), "label2id": {name: i for i, name in enumerate(classes)}}
    set_seed(recipe.run.seed)
    source = None if where is None else load_weights(where)
    if source is None:
        fields = {**preset(given.name).fields, **_fields(tokenizer, length)}
        config = cast(CrateConfig, build_config({**fields, **labels, **given.config}))
    else:
        config = inherited_config(source, {**labels, **given.config})
    if config.modality != "text":
        raise CrateError(f"model {where or given.name}: task: {recipe.task} needs a text model such as crate-bert-base")
    _check(config, tokenizer, "text.max_length", length)
    model = CrateForSequenceClassification(config)
    if source is not None:
        with name_source():
            load_body(model.crate, cast(CrateModel, source.base_model).state_dict())
    if recipe.model.freeze:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(("dense.", "head.")))
    return model


def _fields(tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, Any]:
    """Config fields that follow from the tokenizer and the length of a text."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return {"vocab_size": id_count(tokenizer), "max_position_embeddings": length, **ids}


def _check(config: CrateConfig, tokenizer: PreTrainedTokenizerBase, key: str, length: int) -> None:
    check_tokenizer(tokenizer, config)
    if length > config.max_tokens:
        raise CrateError(f"{key} is {length}, but the model has positions for {config.max_tokens} tokens; lower {key}")
