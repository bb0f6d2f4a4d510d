"""The run folder: its layout, and the recipe, task, metrics and models in it."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from typing_extensions import Self

from .._distributed import first_process
from .._files import as_path, is_hub_id, read_sealed, sweep_drafts, write_sealed
from ..data.fingerprint import describe_change
from ..errors import CrateError, unknown_name
from ..inspection import read_metrics
from ..models import CrateForSelfDistillation
from ..models.base import CratePreTrainedModel
from ..models.checkpoint_file import read_named
from ..models.loading import load_model, load_weights, untrained_like
from ..models.presets import create_model, list_models
from ..models.pretrained import pretrained_folder, pretrained_names
from ..recipes import Recipe, build_recipe, describe_fit, fit_to_data, load_recipe, save_recipe
from ..recipes.files import Overrides
from ..recipes.schema import MUST_GIVE
from ..tasks import TASK_OF_MODEL, Task, TaskPaths, open_task
from ..tasks.base import OpenProgress
from .lock import LOCK, folder_lock
from .manifest import MANIFEST, check_manifest, find_damage

if TYPE_CHECKING:
    import pandas as pd


Checkpoint = Literal["last", "best"] | int
"""The last or the best model of a run, or the checkpoint of a training step."""

UNTRAINED = "untrained"
"""Name that stands for a run's own model with random weights in a comparison."""
SAMPLE = "sample.json"
"""File of a published run with the name of its stored sample and the metrics of the model on it."""
STAGING = ".writing"
"""Folder in which a checkpoint is written before it is moved among the others."""
MAY_CHANGE = (
    "data.path", "data.workers", "data.max_corrupt", "text.cache", "run.per_device_batch_size", "run.log_steps",
    "run.save_total_limit", "run.checkpoint_epochs", "run.checkpoint_steps", "run.milestones", "run.layerwise_epochs",
    "run.layerwise_steps", "run.fsdp",
)  # fmt: skip
"""Recipe keys that may differ when a run is resumed: where and how it runs, not what it computes."""
MAY_GROW = ("schedule.epochs", "schedule.steps")
"""Recipe keys that may be larger when a run is resumed, which makes it longer."""


@contextmanager
def no_progress(description: str, total: int) -> Any:
    """Show no progress."""
    del description, total
    yield lambda amount=1: None


class RunFolder:
    """A trained model with its recipe, data and metrics; `Run` adds everything one can do with it.

    `source` is a run folder, a folder written by `save_pretrained`, a released checkpoint file, a hub id, the name of
    trained weights that ship with the package, or the name of a model, which then has random weights.

    A run folder holds `recipe.yaml` (the resolved recipe), `data.json` (a fingerprint of the data), `metrics.jsonl`,
    `model/last` and `model/best` (which `from_pretrained` reads), `checkpoints/`, `logs/` (TensorBoard), and for text
    `tokenizer/` and `tokens/`.
    """

    before_training: bool = False
    """Whether the model has random weights in place of the trained ones; set by `Run.without_training`."""

    def __init__(
        self, source: str | Path, *, recipe: Recipe | None = None, progress: OpenProgress | None = None
    ) -> None:
        """Open a run. `recipe` is only for a run that is being created."""
        path = as_path(source, "a run")
        self.source, exists = str(source), os.path.exists  # unlike Path.exists, for names that no file can have too
        if not exists(path) and recipe is None:
            path = pretrained_folder(self.source) or path
        self.folder = path if os.path.isdir(path) or recipe is not None else None
        """The run folder or the folder of the saved model; None for a file, a hub id or a name."""
        self.run_folder = path if recipe is not None else _enclosing_run(path)
        """The run folder, also if `source` is a model or a checkpoint inside it; None outside of runs."""
        self.untrained = not exists(path) and self.source in list_models()
        if not (exists(path) or recipe or self.untrained or is_hub_id(self.source)):
            known = [*pretrained_names(), *list_models()]
            raise unknown_name("run folder, checkpoint file or model", self.source, known)
        self.progress = progress or no_progress
        self.lock = ExitStack()
        """Holds the lock of a run that is being trained, until it is closed."""
        self._kept: tuple[Any, CratePreTrainedModel] | None = None
        self._recipe = recipe

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r})"

    @property
    def name(self) -> str:
        """Short name: the folder's name, or the source itself."""
        if self.folder is None:
            return self.source
        return self.folder.resolve().name + (f", {UNTRAINED}" if self.before_training else "")

    # The folder

    @classmethod
    def start(cls, folder: str | Path, recipe: Recipe, *, resume: bool = False) -> tuple[Self, Path | None]:
        """Open and lock a folder for training, and find the checkpoint to resume from.

        Two runs are never mixed: a folder in which another process trains or with other files is refused, a run with a
        checkpoint must be resumed, and with the same recipe. What a start without a checkpoint left behind is removed.
        The recipe is not written yet: `write_recipe` does that when data and model have been built, so that a failed
        start leaves no run. Closing `run.lock` gives the folder free.
        """
        path = Path(folder)
        run = cls(path, recipe=recipe)
        with ExitStack() as stack:
            if first_process():  # the other processes would see what the first has just created
                if resume:
                    check_same_recipe(path, recipe)  # creates no folder where there is no run
                stack.enter_context(folder_lock(path))
                shutil.rmtree(run.checkpoints_folder / STAGING, ignore_errors=True)
                sweep_drafts(path, ("recipe.yaml", "data.json", "metrics.jsonl"))
                sweep_drafts(path / "model", ("last", "best"))
                sweep_drafts(path / "tokens", ("*",), seconds=3600)  # other verbs write there too
                if not resume:
                    _clear_failed_start(path)
            checkpoint = _latest_checkpoint(run.checkpoints_folder) if resume else None
            run.lock = stack.pop_all()
        return run, checkpoint

    def fit_to_data(self) -> None:
        """Let settings of the recipe follow the amount of training data, and log which ones changed."""
        recipe, task, train = cast(Recipe, self._recipe), self.task, self.task.datasets()[0]
        samples = len(train) if hasattr(train, "__len__") else recipe.schedule.made_for
        fitted = fit_to_data(recipe, cast(int, samples))
        if change := describe_fit(recipe, fitted, cast(int, samples)):
            logging.getLogger("codingrate").info(change)
        self._recipe = self.recipe = fitted
        self.task = open_task(fitted, task.paths)
        cast(Any, self.task).data = task.data

    def write_recipe(self) -> None:
        """Write recipe.yaml, which makes the folder a run."""
        save_recipe(cast(Recipe, self._recipe), self._root / "recipe.yaml")

    def find_unreadable(self, *, resume: bool, progress: OpenProgress) -> None:
        """Look for images that cannot be read when a run is started. A resumed run leaves out the same ones."""
        if not resume or read_sealed(self._root / "data.json") is None:
            self.task.find_unreadable(progress)

    def check_data(self, *, resume: bool) -> None:
        """Write the fingerprint of the data to data.json, or refuse to resume the run if the data have changed."""
        data, file = self.task.data, self._root / "data.json"
        now = getattr(data, "text", getattr(data, "sentences", data)).fingerprint
        before = read_sealed(file) if resume else None
        if before is not None and (change := describe_change(before, now)):
            raise CrateError(
                f"{self.source}: the data have changed since the run was started: {change}; restore them "
                "or use another `output`"
            )
        if resume and before is None:
            note = "%s is missing or damaged; a change of the data since the run was started cannot be noticed"
            logging.getLogger("codingrate").warning(note, file)
        if before is None:
            write_sealed(file, {**now, "unreadable": self.task.unreadable})

    @property
    def _root(self) -> Path:
        if self.run_folder is None:
            raise CrateError(f"{self.source}: not a run folder (it has no recipe.yaml); train one with crate train")
        return self.run_folder

    @property
    def metrics_file(self) -> Path:
        """The file of the run's metrics."""
        return self._root / "metrics.jsonl"

    @property
    def checkpoints_folder(self) -> Path:
        """The folder of the checkpoints."""
        return self._root / "checkpoints"

    @property
    def logs_folder(self) -> Path:
        """The folder of the TensorBoard logs."""
        return self._root / "logs"

    def model_folder(self, checkpoint: Checkpoint = "last") -> Path:
        """Return the folder that `from_pretrained` reads for a checkpoint."""
        if self.folder is not None and self.folder != self.run_folder:
            return self.folder
        if isinstance(checkpoint, int):
            return self.checkpoints_folder / f"checkpoint-{checkpoint}"
        if checkpoint not in ("last", "best"):
            raise unknown_name("checkpoint", checkpoint, ("last", "best"))
        return self._root / "model" / checkpoint

    def output_folder(self, name: str, *details: object) -> Path:
        """Return the default folder for results of one kind, such as `evaluation`.

        `details` that are not None, such as the name of other data, give results that differ a folder of their own.
        """
        stem, suffix = Path(name).stem, Path(name).suffix
        words = [re.sub(r"[^\w.-]+", "-", str(detail)).strip("-") for detail in details if detail is not None]
        folder = None if self.published else self.folder
        if folder is None:
            words.append(Path(self.source).stem)
        return (folder or Path()) / ("-".join([stem, *words]) + suffix)

    # Recipe, task, history, model

    @cached_property
    def recipe(self) -> Recipe | None:
        """The resolved recipe; None for a model that is not part of a run."""
        if self._recipe is not None or self.run_folder is None:
            return self._recipe
        return load_recipe(str(self.run_folder / "recipe.yaml"))

    @property
    def recipe_text(self) -> str | None:
        """The recipe as the text of its file; None for a model that is not part of a run."""
        return None if self.run_folder is None else (self.run_folder / "recipe.yaml").read_text(encoding="utf-8")

    @cached_property
    def task(self) -> Task:
        """The task of the recipe, or the one that fits the class of the model."""
        if self.recipe is None:
            return open_task(_inferred_recipe(self.loaded("last")), TaskPaths(source=self.source))
        if self.published:
            return open_task(self.recipe, TaskPaths(tokenizer=self.model_folder(), published=True))
        paths = TaskPaths(
            source=resolve_source(self.recipe.source),
            tokenizer=self._root / "tokenizer",
            tokens=self._root / "tokens",
            unreadable=tuple((read_sealed(self._root / "data.json") or {}).get("unreadable", ())),
        )
        return open_task(self.recipe, paths)

    @property
    def published(self) -> bool:
        """Whether this is a published run: results are not written to its folder, but to the current one."""
        return self.run_folder is not None and (self.run_folder / SAMPLE).is_file()

    @property
    def processor(self) -> Any:
        """The image processor, or the tokenizer."""
        return self.task.processor

    @property
    def history(self) -> pd.DataFrame:
        """The metrics logged during training, a row per entry: `kind`, `step`, `epoch` and the metrics."""
        import pandas as pd

        lines = read_metrics(self.metrics_file) if self.metrics_file.exists() else []
        return pd.DataFrame([{key: value for key, value in line.items() if key != "layers"} for line in lines])

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation during training."""
        speed = ("runtime", "samples_per_second", "steps_per_second")
        for line in reversed(read_metrics(self.metrics_file)):
            if line["kind"] == "evaluation":
                values = {key.removeprefix("eval_"): value for key, value in line.items() if key.startswith("eval_")}
                return {key: nan if value is None else value for key, value in values.items() if key not in speed}
        raise CrateError(
            f"{self.source}: the run has not been evaluated yet; continue it with `train({self.source!r}, resume=True)`"
        )

    @property
    def finished(self) -> bool:
        """Whether training has reached its end and the last model has been evaluated and saved."""
        lines = read_metrics(self.metrics_file) if self.metrics_file.exists() else []
        steps = {line["kind"]: line["step"] for line in lines if line["kind"] in ("evaluation", "end")}
        saved = (self.model_folder("last") / "config.json").is_file()
        return "end" in steps and steps.get("evaluation") == steps["end"] and saved

    @property
    def seconds(self) -> float:
        """Training time of the last session."""
        ends = [line["train_runtime"] for line in read_metrics(self.metrics_file) if line["kind"] == "end"]
        return float(ends[-1]) if ends else float("nan")

    @property
    def version(self) -> str | None:
        """Version of this package that ended the training; None if it is not known."""
        ends = [line.get("version") for line in read_metrics(self.metrics_file) if line["kind"] == "end"]
        return None if not ends or ends[-1] is None else str(ends[-1])

    @property
    def headline(self) -> str:
        """The metrics of the last evaluation during training in a few words."""
        return self.task.headline(self.metrics)

    def model(self, checkpoint: Checkpoint = "last") -> CratePreTrainedModel:
        """Load the model: the last one (default), the best one, or that of a training step."""
        if self.untrained:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = create_model(self.source)
        elif self.folder is None:
            model = load_model(self.source)
        else:
            folder = self.model_folder(checkpoint)
            if not (folder / "config.json").is_file():
                raise CrateError(f"{self.source}: there is no saved model for checkpoint {checkpoint!r} ({folder})")
            check_manifest(folder)
            model = load_model(folder)
            if (folder / "trainer_state.json").is_file():  # a checkpoint to resume from
                model = _evaluated_weights(model, folder)
        local = os.environ.get("LOCAL_RANK", "0")  # of several processes on a machine, each has a device of its own
        device = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
        half = model.dtype in (torch.float16, torch.bfloat16) and not model.config.quantized
        if device == "cpu" and half:  # small files, but slow to compute with
            model = cast(Any, model).float()
        model = cast(CratePreTrainedModel, cast(Any, model).eval().to(device))
        return untrained_like(model) if self.before_training else model

    def loaded(self, checkpoint: Checkpoint = "last") -> CratePreTrainedModel:
        """Load a model like `model`, and keep it for the next call as long as its file does not change."""
        files = [] if self.folder is None else sorted(self.model_folder(checkpoint).glob("*.safetensors"))
        key = (checkpoint, [file.stat().st_mtime_ns for file in files])
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self.model(checkpoint)
        return self._kept[1]

    def parameters(self, checkpoint: Checkpoint = "last") -> int:
        """Return the number of parameters."""
        return self.loaded(checkpoint).num_parameters()

    def on_data(self, data: str | None, path: str | None = None, **options: Any) -> Task:
        """Return the run's task, on other data if they are given; `options` are those of `Task.with_data`.

        A published run has its stored sample in place of the data that it was trained on.
        """
        if data is None and path is not None:
            raise CrateError("`path` is the folder of the dataset that `data` names; give both")
        if data is None and self.published and (sample := read_sample(self._root)["data"]):
            data = str(self._root / sample)
        if data is None or (self.recipe is not None and data == self.recipe.data.name and path is None):
            return self.task
        return self.task.with_data(data, path, **options)

    def data_name(self, data: str | None = None) -> str:
        """Return the name of the data that `on_data` opens, as people read it."""
        own = "its stored sample" if self.published else self.task.recipe.data.name
        return own if data is None else data

    def expect_task(self, task: str, what: str) -> None:
        """Refuse a run of another task."""
        if self.task.recipe.task != task:
            raise CrateError(f"{self.source}: its task is {self.task.recipe.task}; {what} needs a run of task {task}")


def read_sample(folder: Path) -> dict[str, Any]:
    """Return what a published run says about its stored sample: `data`, the name of the file, and `metrics`."""
    try:
        entry = json.loads((folder / SAMPLE).read_text(encoding="utf-8"))
        if not isinstance(entry["data"], str | None) or not isinstance(entry["metrics"], dict):
            raise TypeError("values of the wrong type")
        if entry["data"] is not None and not (folder / Path(entry["data"]).name).is_file():
            raise ValueError(f"there is no {entry['data']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CrateError(f"{folder / SAMPLE}: cannot be read ({error}); get the published model again") from error
    return {**entry, "data": entry["data"] and Path(entry["data"]).name}


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder that have a manifest, oldest first; `find_damage` checks one."""
    return [path for path in _numbered(folder) if (path / MANIFEST).is_file()]


def _numbered(folder: Path) -> list[Path]:
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    return sorted((path for path in steps if steps[path].isdecimal()), key=lambda path: int(steps[path]))


def _latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that is complete; damaged ones are moved aside, with a note."""
    damage: dict[Path, str] = {}
    for path in reversed(_numbered(folder)):
        problem = find_damage(path)
        if problem is None:
            _set_aside(damage, path)
            return path
        damage[path] = problem
    if damage:
        path, problem = next(iter(damage.items()))
        raise CrateError(f"{path}: {problem}, and there is no other checkpoint; remove {folder} to start from step 0")
    return None


def _set_aside(damage: dict[Path, str], used: Path) -> None:
    for path, problem in damage.items():
        if first_process():
            logging.getLogger("codingrate").warning("%s: %s; resuming from %s", path, problem, used.name)
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def _clear_failed_start(folder: Path) -> None:
    """Empty the folder of a run that never wrote a checkpoint; tokenized text is kept, other files are refused."""
    if _numbered(folder / "checkpoints") or (folder / "model").exists():
        raise CrateError(
            f"{folder}: a run is here already; "
            f"continue it with `train({str(folder)!r}, resume=True)`, or use another `output`"
        )
    ours = {"recipe.yaml", "data.json", "metrics.jsonl", "checkpoints", "logs", "tokenizer", "tokens"}
    if others := sorted(entry.name for entry in folder.iterdir() if entry.name not in {*ours, LOCK}):
        raise CrateError(f"{folder}: the folder is not empty ({others[0]}); use another `output`")
    for name in ours - {"tokens"}:
        entry = folder / name
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def resumed_recipe(folder: str | Path, overrides: Overrides = ()) -> Recipe | None:
    """Return the recipe of the run in a folder, with overrides; None if there is no run."""
    file = Path(folder) / "recipe.yaml"
    return load_recipe(str(file), overrides) if file.is_file() else None


def resolve_source(source: str | None) -> str | None:
    """Return the location of the weights that `model.from` names: of a run or a shipped model, its last model."""
    if source is None:
        return None
    folder = pretrained_folder(source) or Path(source)
    if not (folder / "recipe.yaml").is_file():
        return source
    folder = RunFolder(folder).model_folder("last")
    check_manifest(folder)
    return str(folder)


def _enclosing_run(path: Path) -> Path | None:
    """Return the run folder at `path`, or the one that contains the model or checkpoint at `path`."""
    folders = (path, path.parent.parent) if os.path.isdir(path) else ()
    return next((folder for folder in folders if (folder / "recipe.yaml").is_file()), None)


def _inferred_recipe(model: CratePreTrainedModel) -> Recipe:
    """Return a recipe for a model that is not part of a run: its task and how it reads images, but no data."""
    config, name = model.config, type(model).__name__
    if name not in TASK_OF_MODEL:
        raise CrateError(f"a {name} has no head for any task; use a model with one")
    values: dict[str, Any] = {"task": TASK_OF_MODEL[name], "data": {"name": MUST_GIVE}}
    if config.modality == "vision":
        size = max(config.image_sides)
        saved = _saved_transform(model, size)
        values["augment"] = {"image_size": size, "channels": config.num_channels, **saved}
    else:
        key = "max_length" if values["task"] == "sequence-classification" else "block"
        values["text"] = {key: config.max_tokens}
    return build_recipe(values)


def _saved_transform(model: CratePreTrainedModel, image_size: int) -> dict[str, Any]:
    """Return the evaluation crop and the normalization that the image processor of a model states."""
    from PIL.Image import Resampling

    saved = model.preprocessing
    if saved is None:
        return {}
    try:
        crop = "center" if saved.get("do_center_crop") else "resize"  # ViT's processor of transformers has no crop
        ratio = {"evaluation_ratio": saved["size"]["shortest_edge"] / image_size} if crop == "center" else {}
        mean, std, filter_name = saved["image_mean"], saved["image_std"], Resampling(saved["resample"]).name.lower()
    except (ValueError, KeyError, TypeError) as error:
        file = f"{model.config.name_or_path}/preprocessor_config.json"
        raise CrateError(f"{file}: the image processor cannot be read ({error}); save the model again") from error
    return {"mean": mean, "std": std, "interpolation": filter_name, "evaluation": crop, **ratio}


def _evaluated_weights(model: CratePreTrainedModel, folder: Path) -> CratePreTrainedModel:
    """Return the model that a training checkpoint would be evaluated as: the teacher, or the average of the weights."""
    from .optimizers import WeightAverage

    average = folder / WeightAverage.FILE
    if average.is_file():
        load_weights(model, {**model.state_dict(), **read_named(average)})
    return model.as_backbone() if isinstance(model, CrateForSelfDistillation) else model


def check_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder without a run, or with a run that has another recipe in more than how it is executed."""
    started = resumed_recipe(folder)
    if started is None:
        raise CrateError(f"{folder}: there is no run to resume; leave out `resume=True`")
    old, new = _flat(started.to_dict()), _flat(recipe.to_dict())
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        grows = key in MAY_GROW and before is not None and now is not None
        if before == now or key in MAY_CHANGE or (grows and cast(float, now) > cast(float, before)):
            continue
        advice = "it can be raised, but not lowered" if grows else "resume it with the same recipe"
        raise CrateError(
            f"{folder}: the run was started with {key}={before}, not {now}; {advice}, or use another `output`"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
