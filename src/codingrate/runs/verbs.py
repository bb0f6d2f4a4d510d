"""The verbs of a run: what one can do with a trained model, each a function that `Run` has as a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from .. import evaluation, inspection, tasks
from .._distributed import on_first
from .._files import is_utf8
from .._report import Report
from ..data.classes import ClassMap
from ..errors import CrateError, check_positive, shown, unknown_name
from ..models.loading import untrained_like
from ..recipes import load_recipe
from .folder import UNTRAINED, Checkpoint, RunFolder
from .inspecting import inspect_runs, read_pictures

if TYPE_CHECKING:
    from .detection import DetectionReport
    from .run import Run

ITERATIONS = 1000
"""Number of random batches in the paper's protocol of the perplexity."""


def evaluate(
    run: Run,
    data: str | None = None,
    split: str | None = None,
    *,
    labels: ClassMap = None,
    checkpoint: Checkpoint = "last",
    batch_size: int = 64,
) -> Report:
    """Measure the model on a split of the run's data or of other data.

    Other data without splits are measured in full; the split `all` measures all splits together. Classes are
    matched by name. `labels` maps data classes to model classes where the names differ.
    """
    task, model = run.on_data(data), run.loaded(checkpoint)
    if labels is not None and not isinstance(task, (tasks.Classification, tasks.SequenceClassification)):
        raise CrateError(f"`labels` maps classes, and task {task.recipe.task} has none; leave it out")
    with run.progress("evaluate", 0) as advance:
        return task.evaluate(model, split=split, class_map=labels, batch_size=batch_size, progress=advance)


def evaluate_real(
    run: Run, labels: str | Path, *, data: str | None = None, checkpoint: Checkpoint = "last", batch_size: int = 64
) -> Report:
    """Measure a classifier by ImageNet's ReaL labels (real.json) as well."""
    run.expect_task("classification", "ReaL labels")
    task, model = cast(tasks.Classification, run.on_data(data)), run.loaded(checkpoint)
    with run.progress("evaluate", 0) as advance:
        return task.evaluate_real(model, labels, batch_size=batch_size, progress=advance)


def baseline(run: Run, split: str | None = None) -> dict[str, dict[str, float]]:
    """Measure a simple rival on the run's data: n-grams, token frequencies or a bag of words."""
    with run.progress("baseline", 0) as advance:
        return run.task.baseline(split, advance)


def predict(run: Run, inputs: Any, *, checkpoint: Checkpoint = "last", batch_size: int = 64) -> list[Any]:
    """Return labels with scores, features, or text for images or texts, by task."""
    single = isinstance(inputs, (str, Path)) or hasattr(inputs, "convert")
    values = [inputs] if single else list(inputs)
    _check_texts(values)
    check_positive(batch_size=batch_size)
    answers: list[Any] = []
    with run.progress("predict", len(values)) as advance:
        for start in range(0, len(values), batch_size):
            part = values[start : start + batch_size]
            answers += run.task.predict(run.loaded(checkpoint), part)
            advance(len(part))
    return answers


def export(run: Run, path: str | Path, *, checkpoint: Checkpoint = "last") -> dict[str, Any]:
    """Write the model to an ONNX file with a free batch size; see `codingrate.runs.export_onnx`."""
    from .exporting import export_onnx

    return export_onnx(run.model(checkpoint), path)


def reconstruct(
    run: Run, images: Sequence[Any] | None = None, *, count: int = 8, seed: int = 0, checkpoint: Checkpoint = "last"
) -> tasks.Reconstruction:
    """Reconstruct masked images with an autoencoder: the given ones, or a balanced sample of the test split."""
    run.expect_task("autoencoding", "reconstruct")
    task, model = cast(tasks.Autoencoding, run.on_data(None)), run.loaded(checkpoint)
    return task.reconstruct(model, images, seed) if images else task.reconstruct_samples(model, count, seed)


# Language models


def generate(run: Run, prompt: str, *, checkpoint: Checkpoint = "last", **options: Any) -> tasks.Generation:
    """Continue a prompt; see `codingrate.tasks.generate` for the options."""
    run.expect_task("causal-lm", "generate")
    return tasks.generate(run.loaded(checkpoint), run.processor, prompt, **options)


def fill(run: Run, text: str, top: int = 5, *, checkpoint: Checkpoint = "last") -> list[list[evaluation.Candidate]]:
    """Return the `top` most probable tokens for each mask of a text."""
    run.expect_task("masked-lm", "fill")
    return evaluation.fill_masks(run.loaded(checkpoint), run.processor, text, top)


def perplexity(
    run: Run,
    data: str | None = None,
    *,
    split: str | None = None,
    text_column: str | None = None,
    separate: str | None = None,
    sampled: bool = False,
    block: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    end_of_document: bool = True,
    batch_size: int = 8,
    checkpoint: Checkpoint = "last",
) -> evaluation.PerplexityReport:
    """Measure the perplexity by sliding windows, or with `sampled` by the paper's random windows.

    The split is by default the validation split, or all of other data without splits. `text_column` and `separate`
    say how other data are read. The end-of-document token after each document counts unless `end_of_document` is
    false. For the layout of the windows see `codingrate.evaluation.perplexity`.
    """
    sliding = {"stride": stride is not None, "limit": limit is not None}
    for name, given in {**sliding, "end_of_document=False": not end_of_document}.items():
        if sampled and given:
            raise CrateError(f"`{name}` has no effect with `sampled=True`; leave one of them out")
    task, model = _causal_task(run, data, text_column, separate), run.loaded(checkpoint)
    split = split or task.default_split
    tokens = task.tokens(split)
    if sampled:
        block = block or model.config.max_tokens
        with run.progress("perplexity", ITERATIONS * 4 * block) as advance:
            options: dict[str, Any] = {"block": block, "iterations": ITERATIONS, "progress": advance}
            return dataclasses.replace(evaluation.sampled_loss(model, tokens, **options), split=split)
    windows: dict[str, Any] = {"block": block, "stride": stride, "batch_size": batch_size, "limit": limit}
    windows["end_of_document"] = end_of_document
    with run.progress("perplexity", min(limit or len(tokens), len(tokens)) - 1) as advance:
        return dataclasses.replace(evaluation.perplexity(model, tokens, **windows, progress=advance), split=split)


def ngram(
    run: Run,
    data: str | None = None,
    *,
    split: str | None = None,
    order: int = 3,
    limit: int | None = None,
    text_column: str | None = None,
    separate: str | None = None,
    end_of_document: bool = True,
) -> dict[str, Any]:
    """Measure an n-gram model of the run's training text on the tokens that `perplexity` measures."""
    if run.recipe is None:
        raise CrateError(f"{run.source}: `baseline` counts the training text of a run; this is only a saved model")
    task = _causal_task(run, data, text_column, separate)
    tokens = task.tokens(split or task.default_split)
    options: dict[str, Any] = {"order": order, "limit": limit, "end_of_document": end_of_document}
    return cast(tasks.CausalLM, run.task).baseline(tokens=tokens, **options)[f"{order}-gram"]


def lambada(
    run: Run,
    passages: str | Path,
    *,
    text_column: str | None = None,
    generated: bool = False,
    batch_size: int = 8,
    checkpoint: Checkpoint = "last",
) -> evaluation.LambadaReport:
    """Measure how often the last word of the passages in a file is predicted."""
    from ..data import load_text

    tokenizer = _causal_task(run, None, None, None).processor
    documents = load_text(str(passages), text_column=text_column, separate="line", validation_share=1).validation
    texts = [text for text in documents if text.strip()]
    options: dict[str, Any] = {"generate": generated, "batch_size": batch_size}
    with run.progress("lambada", len(texts)) as advance:
        return evaluation.lambada_accuracy(run.loaded(checkpoint), tokenizer, texts, **options, progress=advance)


def _causal_task(run: Run, data: str | None, text_column: str | None, separate: str | None) -> tasks.CausalLM:
    run.expect_task("causal-lm", "this measure")
    if data is None and (text_column is not None or separate is not None):
        raise CrateError("`text_column` and `separate` say how `data` is read; give `data` or leave them out")
    options = {} if data is None else {"text_column": text_column, "separate": separate}
    return cast(tasks.CausalLM, run.on_data(data, **options))


# Features


def probe(
    run: Run,
    method: str = "logistic",
    features: Literal["trained", "untrained", "pixels"] = "trained",
    *,
    data: str | None = None,
    path: str | None = None,
    checkpoint: Checkpoint = "last",
    cache: Path | None = None,
    limit: int | None = None,
    batch_size: int = 256,
    protocol: Literal["default", "paper"] = "default",
    **options: Any,
) -> evaluation.ProbeReport:
    """Measure image features by logistic regression or nearest neighbors (`method="knn"`).

    `features` are those of the trained model, of the same model untrained, or the pixels. With `protocol="paper"`
    they are the bare token before any LayerNorm, logistic regression does not standardize them, and k is chosen
    with training images that vote for themselves (appendix C.2, C.3). `options` are those of the probe, such as
    `ks` and `metric`.
    """
    if protocol not in ("default", "paper"):
        raise unknown_name("protocol", protocol, ("default", "paper"))
    if protocol == "paper":
        options = {**({"own_vote": True} if method == "knn" else {"standardize": False}), **options}
    task, model = run.on_data(data, path, held_out=False), run.loaded(checkpoint)
    if not isinstance(task, tasks.ImageTask) or not hasattr(model, "features"):
        raise CrateError(f"{run.source}: a {type(model).__name__} has no image features; probe a vision model")
    if features == "untrained":
        model = untrained_like(model, task.recipe.run.seed)
    settings: dict[str, Any] = {
        "cache": cache or run.output_folder("features"),
        "batch_size": batch_size,
        "limit": limit,
        "workers": task.recipe.data.workers,
        "max_corrupt": task.recipe.data.max_corrupt,
    }
    parts, total = [], {}
    for split, images in (("train", task.data.train), ("test", task.data.test)):
        total[split] = None if task.data.streaming else len(images)
        known = total[split] or limit or 0
        with run.progress(f"{features}, {split}", min(known, limit or known)) as advance:
            reading = {**settings, "split": split, "progress": advance}
            if features == "pixels":
                parts.append(evaluation.pixel_features(task.data, task.recipe.augment, **reading))
            else:
                reader = evaluation.BareFeatures(model) if protocol == "paper" else model
                parts.append(evaluation.extract_features(reader, task.data, task.recipe.augment, **reading))
    train, test = parts
    about = {"run": run.source, "checkpoint": str(checkpoint), "data": task.recipe.data.name, "features": features}
    about |= {} if protocol == "default" else {"protocol": protocol}
    about |= {"metric": options["metric"]} if "metric" in options else {}
    steps = evaluation.probe_steps(len(train), len(test), method, options)
    with run.progress(f"{method} on {features} features", steps) as advance:
        facts: dict[str, Any] = {"about": about, "total": total}
        return on_first(lambda: evaluation.probe_features(train, test, method, progress=advance, **facts, **options))


def finetune(
    run: Run,
    output: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    data: str | None = None,
    path: str | None = None,
    checkpoint: Checkpoint = "last",
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Fine-tune the whole model with a new head and return the new run.

    The recipe is the paper's (`finetune-cifar10`) with model, data, seed and image format of the run. The paper's
    augmentation is made for color images; runs on gray images keep their own. With little data, settings that are
    not in `overrides` follow their amount, see `codingrate.recipes.fit_to_data`.
    """
    from .training import train

    recipe = run.on_data(data, path, held_out=False).recipe
    augment = recipe.to_dict()["augment"]
    if recipe.augment.channels == 3:
        format_keys = ("image_size", "interpolation", "mean", "std", "evaluation_ratio")
        augment = {name: augment[name] for name in format_keys} | {"evaluation": recipe.augment.evaluation_crop}
    execution = {"seed": recipe.run.seed, "precision": recipe.run.precision, "layerwise_epochs": 0}
    sections = {"data": dataclasses.asdict(recipe.data), "augment": augment, "run": execution}
    changes: dict[str, Any] = {f"{name}.{key}": v for name, part in sections.items() for key, v in part.items()}
    changes["model.from"] = str(run.model_folder(checkpoint))
    tuned = load_recipe("finetune-cifar10", [changes, *overrides])
    return train(tuned, output or run.output_folder("finetune"), resume=resume, quiet=quiet)


# Inside the model


def inspect(
    run: Run,
    *,
    compare: Iterable[Run | str | Path] = (),
    data: str | None = None,
    path: str | None = None,
    checkpoint: Checkpoint = "last",
    split: str | None = None,
    limit: int = 1000,
    batch_size: int = 64,
    controls: bool = True,
    **options: Any,
) -> inspection.InspectionReport:
    """Measure every layer against the objective and look at subspaces, tokens and attention.

    `compare` are other models that are measured on the same samples; "untrained" is this one with random weights.
    `controls` measures what every verdict is compared with, the untrained model among it. `options` are `layers`
    (indices), `eps`, `measure`, `token_samples` and `command` of `codingrate.inspection.inspect_models`.
    """
    others = [_other(run, other) for other in compare]
    options["controls"] = controls
    reading: Any = {"split": split, "limit": limit, "batch_size": batch_size}
    return inspect_runs([run, *others], run.on_data(data, path), checkpoint, reading, **options)


def _other(run: Run, source: Run | str | Path) -> Run:
    if isinstance(source, RunFolder):
        return source
    return run.without_training() if source == UNTRAINED else type(run)(source, progress=run.progress)


def explore(
    run: Run, *others: str | Path | Run, host: str = "127.0.0.1", port: int | None = 7860, block: bool = True
) -> Any:
    """Open this run, and `others`, in a browser app; see `codingrate.explorer.launch`.

    With `block=False` the app keeps running in the background, and `close()` of what is returned ends it.
    """
    from importlib import import_module

    explorer: Any = import_module("codingrate.explorer")  # it lies above runs, so it is not imported by them
    return explorer.launch([run, *others], host=host, port=port, block=block)


def attention(
    run: Run, images: Sequence[Any], *, checkpoint: Checkpoint = "last", **options: Any
) -> list[list[inspection.ImageAttention]]:
    """Compute the class token's attention over image files or PIL images: for each image, an entry per layer.

    `options` are `layers` (indices), `head`, `mass` and `size` of `codingrate.inspection.attend_images`.
    """
    pictures, _ = read_pictures(run, images)
    return inspection.attend_images(run.loaded(checkpoint), pictures, run.task.recipe.augment, **options)


def segment(
    run: Run, images: Sequence[Any], *, checkpoint: Checkpoint = "last", **options: Any
) -> list[list[inspection.Segment]]:
    """Find regions in image files or PIL images by MaskCut: for each image, a list of segments.

    `options` are `masks`, `threshold`, `layer` (an index), `refine` and `side` of
    `codingrate.inspection.find_objects`.
    """
    pictures, _ = read_pictures(run, images)
    model, augment = run.loaded(checkpoint), run.task.recipe.augment
    return [inspection.find_objects(model, picture, augment, **options) for picture in pictures]


def detect(
    run: Run, data: str, benchmark: str = "coco", *, checkpoint: Checkpoint = "last", **options: Any
) -> DetectionReport:
    """Measure the objects found without labels on COCO (AP of MaskCut) or VOC (mIoU of attention maps).

    `options` are `split`, `layer` (an index), `threshold`, `size`, `limit`, `refine` and `rule`.
    """
    from .detection import detect_objects

    return detect_objects(run, run.loaded(checkpoint), data, benchmark, **options)


def _check_texts(values: Iterable[Any]) -> None:
    """Refuse texts that no tokenizer can read."""
    for value in values:
        if any(
            isinstance(part, str) and not is_utf8(part) for part in (value if isinstance(value, tuple) else [value])
        ):
            raise CrateError(f"{shown(value)} is not UTF-8: it has lone surrogates; give a valid text or file name")
