"""`crate evaluate` for runs on text: each task's own measure."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import CrateError, unknown_name
from .output import print_json, print_table, progress
from .text import COUNTED, Opened, open_text, open_text_model, open_tokens

if TYPE_CHECKING:
    from ..data import TokenFile
    from ..training import Recipe


def evaluate_text(
    recipe: Recipe,
    run: Path,
    folder: Path,
    *,
    data: str | None,
    split: str | None,
    which: str,
    batch: int,
    output: Path,
    baseline: bool,
    as_json: bool,
) -> None:
    """Perplexity, the loss on hidden tokens, or the metrics of sentences, printed and written to `output`."""
    about: dict[str, Any] = {"run": str(run), "which": which}
    if recipe.task == "sequence-classification":
        _sentences(recipe, run, folder, data, split, batch, output, about, baseline, as_json)
        return
    if baseline:
        other = "`crate evaluate` of hidden tokens has its own" if recipe.task == "masked-lm" else "`crate perplexity`"
        raise CrateError(f"--baseline is for runs on labelled sentences; for this one see {other}")
    masked = recipe.task == "masked-lm"
    opened = open_text_model(run, which, "CrateForMaskedLM" if masked else "CrateForCausalLM", "evaluate")
    text = open_text(opened, data, None, None)
    tokens, split = open_tokens(opened, text, split or "validation"), split or "validation"
    from ..evaluation import masked_loss, perplexity

    report: Any
    with progress("evaluate", len(tokens)) as advance:
        if masked:
            options: dict[str, Any] = {"block": recipe.text.block, "probability": recipe.text.mask_probability}
            report = masked_loss(opened.model, tokens, opened.tokenizer, **options, batch_size=batch, progress=advance)
        else:
            report = perplexity(opened.model, tokens, block=recipe.text.block, batch_size=batch, progress=advance)
    report.save(output)
    chance = {"unigram_cross_entropy": _unigram(opened, tokens)} if masked else {}
    if as_json:
        print_json({**about, "data": text.name, "split": split, **report.to_json(), **chance, "folder": str(output)})
        return
    where = f"the {split} split of {text.name}"
    if masked:
        print(f"loss {report.cross_entropy:.4f} nats per hidden token, accuracy {report.accuracy:.2%}; "
              f"{report.tokens:,} hidden tokens of {where}")  # fmt: skip
        print(f"by how often tokens come, knowing nothing of what stands around: {chance['unigram_cross_entropy']:.4f}")
        print(f"metrics.json in {output}; next: crate fill {run} 'some text with <mask>'")
        return
    print(f"{report.cross_entropy:.4f} nats per token, perplexity {report.perplexity:.2f}, "
          f"{report.bits_per_byte:.4f} bits per byte; {report.tokens:,} tokens of {where}, "
          f"windows of {report.block}, stride {report.stride}")  # fmt: skip
    print(f"metrics.json in {output}; next: crate generate {run} 'some text'")


def _unigram(opened: Opened, tokens: TokenFile) -> float:
    """What the frequencies of tokens in the run's training text give by themselves."""
    from ..data import Masking
    from ..evaluation import unigram_cross_entropy

    train, masking = open_tokens(opened, open_text(opened, None, None, None), "train"), Masking.of(opened.tokenizer)
    counted = train.array()[:COUNTED]
    special = masking.special_ids
    return unigram_cross_entropy(counted, tokens.array(), vocab_size=masking.vocab_size, special_ids=special)


def _sentences(
    recipe: Recipe,
    run: Path,
    folder: Path,
    data: str | None,
    split: str | None,
    batch: int,
    output: Path,
    about: dict[str, Any],
    baseline: bool,
    as_json: bool,
) -> None:
    from ..evaluation import save_scores

    if data is not None:
        if baseline:
            raise CrateError("--baseline learns from the run's own sentences; it does not go with --data")
        recipe = dataclasses.replace(
            recipe, data=dataclasses.replace(recipe.data, name=data, path=None, test_share=1.0)
        )
    found = score_sets(recipe, run, folder, batch, split)
    save_scores(found, output / "metrics.json")
    words = _by_words(recipe, run, list(found)) if baseline else {}
    if as_json:
        counted = {"bag_of_words": words} if baseline else {}
        print_json({**about, "data": recipe.data.name, "splits": found, **counted, "folder": str(output)})
        return
    names = [name for name in next(iter(found.values())) if name not in ("loss", "rows")]
    rows = [
        (name, *(f"{100 * scores[metric]:.2f}" for metric in names), f"{scores['loss']:.4f}", f"{scores['rows']:,}")
        for name, scores in found.items()
    ] + [
        (f"{name}, bag of words", *(f"{100 * scores[metric]:.2f}" for metric in names), "", f"{found[name]['rows']:,}")
        for name, scores in words.items()
    ]
    print_table(f"{run}, {about['which']} model, {recipe.data.name}", ("split", *names, "loss", "sentences"), rows)
    print(f"metrics.json in {output}")


def _by_words(recipe: Recipe, run: Path, splits: list[str]) -> dict[str, dict[str, float]]:
    """What the words alone tell of each split, learned from the sentences the run learned from."""
    from ..evaluation import bag_of_words

    task, data = _open_sentences(recipe, run)
    sentences, found = data.sentences, {}
    sets = {"train": sentences.train, **sentences.validation}
    with progress("bag of words", len(splits)) as advance:
        for name in splits:
            found[name] = bag_of_words(
                sentences.train, sets[name], sentences.columns, task.metrics, label_column=sentences.label_column
            )
            advance()
    return found


def _open_sentences(recipe: Recipe, run: Path) -> tuple[Any, Any]:
    """The task of a recipe, its metrics decided on, and the data of the run."""
    from ..training import task_of

    task = cast(Any, task_of(recipe))
    data = task.load_data(run)
    task.datasets(data, 0, 1)  # which decides on the metrics
    return task, data


def score_sets(
    recipe: Recipe, run: Path, folder: Path, batch: int, split: str | None = None
) -> dict[str, dict[str, float]]:
    """Loss, metrics and number of `rows` of each development set of a recipe, or of one split, by the model there."""
    from transformers.utils import logging

    from ..data import SentenceDataset
    from ..evaluation import score_sentences
    from ..training import load_weights

    logging.disable_progress_bar()
    task, data = _open_sentences(recipe, run)
    sentences = data.sentences
    sets = dict(sentences.validation)
    if split is not None:
        every = {"train": sentences.train, **sets}
        if split not in every:
            raise unknown_name("--split", split, every)
        sets = {split: every[split]}
    model, found = load_weights(str(folder)), {}
    known = tuple((model.config.id2label or {}).values())
    if sentences.classes not in (None, known, tuple(map(str, range(len(known))))):  # bare numbers are its own
        raise CrateError(f"the classes of {sentences.name} are {', '.join(sentences.classes)}; "
                         f"the model's are {', '.join(known)}, in this order")  # fmt: skip
    for name, rows in sets.items():
        if len(rows) == 0:
            raise CrateError(f"the {name} split of {sentences.name} has no rows; take another --split")
        options: Any = (sentences.columns, data.tokenizer, recipe.text.max_length, sentences.label_column)
        with progress(f"{sentences.name}, {name}", len(rows)) as advance:
            scores = score_sentences(
                model, SentenceDataset(rows, *options), task.metrics, batch_size=batch, progress=advance
            )
        found[name] = {**scores, "rows": len(rows)}
    return found
