"""The run: one class that owns a run folder and everything one can do with a trained model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from .._report import Report
from ..errors import CrateError, unknown_name
from ..inspection import ImageAttention, InspectionReport, Segment, attend_images, find_objects, read_metrics
from ..models import CrateForSelfDistillation
from ..models.base import CratePreTrainedModel
from ..models.loading import load_model
from ..models.presets import create_model, list_models
from ..recipes import Recipe, build_recipe, load_recipe, save_recipe
from ..recipes.schema import MUST_GIVE
from ..tasks import TASK_OF_MODEL, Generation, Reconstruction, Task, TaskPaths, generate, open_task

if TYPE_CHECKING:
    import pandas as pd

    from ..evaluation import Candidate, LambadaReport, PerplexityReport, ProbeReport
    from .inspecting import DetectionReport

Checkpoint = Literal["last", "best"] | int
"""The last or the best model of a run, or the checkpoint of a training step."""
FeatureSource = Literal["trained", "untrained", "pixels"]
"""Features that a probe measures."""
Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]
"""Opens a progress bar with a description and a total, and yields a function that advances it."""

MAY_CHANGE = (
    "data.path", "data.workers", "text.cache", "run.per_device_batch_size", "run.log_steps", "run.save_total_limit",
    "run.checkpoint_steps",
)  # fmt: skip
"""Recipe keys that may differ when a run is resumed: where and how it runs, not what it computes."""


@contextmanager
def no_progress(description: str, total: int) -> Any:
    """Show no progress."""
    del description, total
    yield lambda amount=1: None


class Run:
    """A trained model with its recipe, data and metrics.

    `source` is a run folder, a folder written by `save_pretrained`, a released checkpoint file, a hub id, or the name
    of a model, which then has random weights.

    A run folder holds `recipe.yaml` (the resolved recipe), `metrics.jsonl`, `model/last` and `model/best` (which
    `from_pretrained` reads), `checkpoints/`, `logs/` (TensorBoard), and for text `tokenizer/` and `tokens/`.
    """

    def __init__(self, source: str | Path, *, recipe: Recipe | None = None, progress: Progress | None = None) -> None:
        """Open a run. `recipe` is only for a run that is being created."""
        self.source, path = str(source), Path(source)
        self.folder = path if path.is_dir() or recipe is not None else None
        """The run folder or the folder of the saved model; None for a file, a hub id or a name."""
        self.run_folder = path if recipe is not None else _enclosing_run(path)
        """The run folder, also if `source` is a model or a checkpoint inside it; None outside of runs."""
        self.untrained = not path.exists() and self.source in list_models()
        if not (path.exists() or recipe or self.untrained or _is_hub_id(self.source)):
            raise unknown_name("run folder, checkpoint file or model", self.source, list_models())
        self.progress = progress or no_progress
        self._loaded = lru_cache(maxsize=2)(self._load)
        self._recipe = recipe

    def __repr__(self) -> str:
        return f"Run({self.source!r})"

    @property
    def name(self) -> str:
        """Short name: the folder's name, or the source itself."""
        return self.source if self.folder is None else self.folder.resolve().name

    # The folder

    @classmethod
    def start(cls, folder: str | Path, recipe: Recipe, *, resume: bool = False) -> tuple[Run, Path | None]:
        """Create a run folder, or find the checkpoint to resume from in an existing one.

        Two runs are never mixed: a folder that is not empty is refused, and so is a resumed run with another recipe.
        """
        path = Path(folder)
        file = path / "recipe.yaml"
        if int(os.environ.get("RANK", "0")) == 0:  # the other processes would see what the first has just created
            if file.is_file():
                if not resume:
                    raise CrateError(
                        f"{path}: a run is here already; continue it with --resume or use another --output"
                    )
                _check_same_recipe(path, load_recipe(str(file)), recipe)
            elif resume:
                raise CrateError(f"{path}: there is no run to resume; leave out --resume")
            elif path.exists() and any(path.iterdir()):
                raise CrateError(f"{path}: the folder is not empty; use another --output")
            else:
                save_recipe(recipe, file)
        run = cls(path, recipe=recipe)
        found = checkpoints(run.checkpoints_folder) if resume else []
        return run, found[-1] if found else None

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

    def output_folder(self, name: str) -> Path:
        """Return the default folder for results of one kind, such as `evaluation`."""
        return Path(f"{name}-{Path(self.source).stem}") if self.folder is None else self.folder / name

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
            return open_task(_inferred_recipe(self._loaded("last")), TaskPaths(source=self.source))
        paths = TaskPaths(
            source=resolve_source(self.recipe.source), tokenizer=self._root / "tokenizer", tokens=self._root / "tokens"
        )
        return open_task(self.recipe, paths)

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
                return {key: value for key, value in values.items() if key not in speed}
        raise CrateError(f"{self.source}: the run has not been evaluated yet; continue it with crate train --resume")

    @property
    def seconds(self) -> float:
        """Training time of the last session."""
        ends = [line["train_runtime"] for line in read_metrics(self.metrics_file) if line["kind"] == "end"]
        return float(ends[-1]) if ends else float("nan")

    @property
    def headline(self) -> str:
        """The metrics of the last evaluation during training in a few words."""
        return self.task.headline(self.metrics)

    def model(self, checkpoint: Checkpoint = "last") -> CratePreTrainedModel:
        """Load the model: the last one (default), the best one, or that of a training step."""
        return self._load(checkpoint)

    def _load(self, checkpoint: Checkpoint) -> CratePreTrainedModel:
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
            model = load_model(folder)
            if isinstance(checkpoint, int):
                model = _evaluated_weights(model, folder)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cast(CratePreTrainedModel, cast(Any, model).eval().to(device))

    def parameters(self, checkpoint: Checkpoint = "last") -> int:
        """Return the number of parameters."""
        return self._loaded(checkpoint).num_parameters()

    # What one can do with a run

    def on_data(self, data: str | None, path: str | None = None, **options: Any) -> Task:
        """Return the run's task, on other data if they are given; `options` are those of `Task.with_data`."""
        if data is None and path is not None:
            raise CrateError("--path is the folder of the dataset that --data names; give both")
        if data is None or (self.recipe is not None and data == self.recipe.data.name and path is None):
            return self.task
        return self.task.with_data(data, path, **options)

    def evaluate(
        self,
        data: str | None = None,
        split: str | None = None,
        *,
        checkpoint: Checkpoint = "last",
        batch_size: int = 64,
    ) -> Report:
        """Measure the model on a split of the run's data or of other data."""
        task, model = self.on_data(data), self._loaded(checkpoint)
        with self.progress("evaluate", 0) as advance:
            return task.evaluate(model, split=split, batch_size=batch_size, progress=advance)

    def evaluate_real(
        self,
        labels: str | Path,
        *,
        data: str | None = None,
        checkpoint: Checkpoint = "last",
        batch_size: int = 64,
    ) -> Report:
        """Measure a classifier by ImageNet's ReaL labels (real.json) as well."""
        self.expect_task("classification", "ReaL labels")
        task, model = self.on_data(data), self._loaded(checkpoint)
        with self.progress("evaluate", 0) as advance:
            report: Report = cast(Any, task).evaluate_real(model, labels, batch_size=batch_size, progress=advance)
            return report

    def baseline(self, split: str | None = None) -> dict[str, dict[str, float]]:
        """Measure a simple rival on the run's data: n-grams, token frequencies or a bag of words."""
        with self.progress("baseline", 0) as advance:
            return self.task.baseline(split, advance)

    def predict(self, inputs: Any, *, checkpoint: Checkpoint = "last") -> list[Any]:
        """Return labels with scores, features, or text for images or texts, by task."""
        single = isinstance(inputs, (str, Path)) or hasattr(inputs, "convert")
        return self.task.predict(self._loaded(checkpoint), [inputs] if single else list(inputs))

    def generate(self, prompt: str, *, checkpoint: Checkpoint = "last", **options: Any) -> Generation:
        """Continue a prompt; see `codingrate.tasks.generate` for the options."""
        self.expect_task("causal-lm", "generate")
        return generate(self._loaded(checkpoint), self.task.processor, prompt, **options)

    def fill(self, text: str, top: int = 5, *, checkpoint: Checkpoint = "last") -> list[list[Candidate]]:
        """Return the `top` most probable tokens for each mask of a text."""
        from ..evaluation import fill_masks

        self.expect_task("masked-lm", "fill")
        return fill_masks(self._loaded(checkpoint), self.task.processor, text, top)

    def reconstruct(
        self, images: Sequence[Any] | None = None, *, count: int = 8, seed: int = 0, checkpoint: Checkpoint = "last"
    ) -> Reconstruction:
        """Reconstruct masked images with an autoencoder: the given ones, or the first of the test split."""
        self.expect_task("autoencoding", "reconstruct")
        task, model = cast(Any, self.task), self._loaded(checkpoint)
        result = task.reconstruct(model, images, seed) if images else task.reconstruct_samples(model, count, seed)
        return cast(Reconstruction, result)

    def perplexity(self, data: str | None = None, **options: Any) -> PerplexityReport:
        """Measure the perplexity by sliding windows, or with `sampled=True` by the paper's random windows.

        Options: `split`, `block`, `stride`, `limit`, `batch_size`, `checkpoint`, and `text_column` and `separate` for
        other data.
        """
        from .language import run_perplexity

        return run_perplexity(self, data, **options)

    def lambada(self, passages: str | Path, **options: Any) -> LambadaReport:
        """Measure how often the last word of the passages in a file is predicted.

        Options: `text_column`, `generated`, `batch_size`, `checkpoint`.
        """
        from .language import run_lambada

        return run_lambada(self, passages, **options)

    def probe(self, method: str = "logistic", features: FeatureSource = "trained", **options: Any) -> ProbeReport:
        """Measure image features by logistic regression or nearest neighbors (`method="knn"`).

        `features` are those of the trained model, of the same model untrained, or the pixels. Options: `data`, `path`,
        `checkpoint`, `limit`, `batch_size`, `cache`, and those of the probe, such as `ks`.
        """
        from .probing import probe_run

        return probe_run(self, method, features, **options)

    def finetune(self, output: str | Path | None = None, overrides: Iterable[str] = (), **options: Any) -> Run:
        """Fine-tune the whole model with a new head and return the new run.

        Options: `data`, `path`, `checkpoint`, `resume`, `quiet`.
        """
        from .probing import fine_tune_run

        return fine_tune_run(self, output, overrides, **options)

    def expect_task(self, task: str, what: str) -> None:
        """Refuse a run of another task."""
        if self.task.recipe.task != task:
            raise CrateError(f"{self.source}: its task is {self.task.recipe.task}; {what} needs a run of task {task}")

    # Inside the model

    def inspect(
        self,
        *,
        compare: Iterable[Run | str | Path] = (),
        data: str | None = None,
        path: str | None = None,
        split: str | None = None,
        limit: int = 1000,
        checkpoint: Checkpoint = "last",
        batch_size: int = 64,
        layers: Sequence[int] | None = None,
        eps: float | None = None,
        measure: str = "paper",
        command: str | None = None,
    ) -> InspectionReport:
        """Measure every layer against the objective and look at subspaces, tokens and attention.

        `compare` are other models that are measured on the same samples.
        """
        from .inspecting import inspect_runs

        others = [other if isinstance(other, Run) else Run(other, progress=self.progress) for other in compare]
        return inspect_runs(
            [self, *others],
            self.on_data(data, path),
            split=split,
            limit=limit,
            checkpoint=checkpoint,
            batch_size=batch_size,
            layers=layers,
            eps=eps,
            measure=measure,
            command=command,
        )

    def attention(
        self, images: Sequence[Any], *, checkpoint: Checkpoint = "last", **options: Any
    ) -> list[list[ImageAttention]]:
        """Compute the class token's attention over image files or PIL images: for each image, an entry per layer.

        Options: `layers`, `head`, `mass`, `size`; see `codingrate.inspection.attend_images`.
        """
        from .inspecting import read_pictures

        pictures, _ = read_pictures(self, images)
        return attend_images(self._loaded(checkpoint), pictures, self.task.recipe.augment, **options)

    def segment(self, images: Sequence[Any], *, checkpoint: Checkpoint = "last", **options: Any) -> list[list[Segment]]:
        """Find objects in image files or PIL images by MaskCut: for each image, a list of segments.

        Options: `masks`, `threshold`, `layer`, `refine`, `side`; see `codingrate.inspection.find_objects`.
        """
        from .inspecting import read_pictures

        model, augment = self._loaded(checkpoint), self.task.recipe.augment
        return [find_objects(model, picture, augment, **options) for picture in read_pictures(self, images)[0]]

    def detect(self, data: str, benchmark: str = "coco", **options: Any) -> DetectionReport:
        """Measure the objects found without labels on COCO (AP of MaskCut) or VOC (mIoU of attention maps).

        Options: `split`, `layer`, `threshold`, `size`, `limit`, `refine`, `checkpoint`.
        """
        from .inspecting import detect_objects

        return detect_objects(self, data, benchmark, **options)


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    numbered = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    complete = [path for path in numbered if (path / "trainer_state.json").is_file()]
    return sorted(complete, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def resolve_source(source: str | None) -> str | None:
    """Return the location of the weights that `model.from` names: of a run, its last model."""
    if source is None or not (Path(source) / "recipe.yaml").is_file():
        return source
    return str(Run(source).model_folder("last"))


def _enclosing_run(path: Path) -> Path | None:
    """Return the run folder at `path`, or the one that contains the model or checkpoint at `path`."""
    folders = (path, path.parent.parent) if path.is_dir() else ()
    return next((folder for folder in folders if (folder / "recipe.yaml").is_file()), None)


def _is_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith((".", "~", "/")) and not Path(source).suffix


def _inferred_recipe(model: CratePreTrainedModel) -> Recipe:
    """Return a recipe for a model that is not part of a run: its task and how it reads images, but no data."""
    config, name = model.config, type(model).__name__
    if name not in TASK_OF_MODEL:
        raise CrateError(f"a {name} has no head for any task; use a model with one")
    values: dict[str, Any] = {"task": TASK_OF_MODEL[name], "data": {"name": MUST_GIVE}}
    if config.modality == "vision":
        values["augment"] = {"image_size": max(config.image_sides), "channels": config.num_channels}
    else:
        key = "max_length" if values["task"] == "sequence-classification" else "block"
        values["text"] = {key: config.max_tokens}
    return build_recipe(values)


def _evaluated_weights(model: CratePreTrainedModel, folder: Path) -> CratePreTrainedModel:
    """Return the model that a training checkpoint would be evaluated as: the teacher, or the average of the weights."""
    from safetensors.torch import load_file

    average = folder / "ema.safetensors"
    if average.is_file():
        model.load_state_dict(load_file(average), strict=False)
    return model.as_backbone() if isinstance(model, CrateForSelfDistillation) else model


def _check_same_recipe(folder: Path, before: Recipe, now: Recipe) -> None:
    old, new = _flat(before.to_dict()), _flat(now.to_dict())
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) and key not in MAY_CHANGE]
    if changed:
        key = changed[0]
        raise CrateError(
            f"{folder}: the run was started with {key}={old.get(key)}, not {new.get(key)}; "
            "resume it with the same recipe or use another --output"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
