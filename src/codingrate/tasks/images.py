"""Tasks on images: data, crops, augmentation on the device, unreadable files, evaluation and samples."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from .._distributed import SharedBatches
from .._report import Report
from ..data import (
    Augment,
    BatchAugment,
    CorruptImages,
    EvaluationBatches,
    OpenedData,
    balanced_indices,
    collate,
    load_images,
    read_image,
    sample_photographs,
    torch_dataset,
)
from ..data.catalog import BUILT_IN_IMAGES
from ..data.columns import label_indices
from ..data.image_files import file_content
from ..data.images import LeaveOut
from ..data.sources import image_dataset
from ..data.unreadable import UnreadableImages
from ..errors import CrateError
from ..evaluation.features import check_image_input
from ..models.base import CratePreTrainedModel, eval_mode
from ..models.loading import transfer_body
from ..models.presets import create_model
from ..models.processing import image_processor
from ..recipes.schema import MUST_GIVE, Recipe
from .base import STREAM_NOTE, OpenProgress, Reading, Samples, Task, TaskPaths, Values


class MeasuredSplit(NamedTuple):
    """The metrics of every image of a split, the crops they were measured on, and the time it took."""

    values: Values
    crops: EvaluationBatches
    seconds: float


class ImageTask(Task):
    """Learning from images."""

    def __init__(self, recipe: Recipe, paths: TaskPaths | None = None) -> None:
        super().__init__(recipe, paths)
        self.augment = BatchAugment(recipe.augment)
        self.corrupt = CorruptImages(max_share=recipe.data.max_corrupt)
        self.left_out = UnreadableImages(recipe.data.path or recipe.data.name, self.paths.unreadable)

    def with_data(self, name: str, path: str | None = None, *, held_out: bool = True) -> Task:
        other = super().with_data(name, path, held_out=held_out)
        if other.recipe.data.test_share == 1:  # the columns of the run are tried first
            return other
        columns = replace(other.recipe.data, image_column=None, label_column=None)  # the run's columns may not fit
        return type(self)(replace(other.recipe, data=columns), other.paths)

    @cached_property
    def data(self) -> OpenedData:
        return self._open(lambda splits, image, label: self.left_out.leave_out(splits, image))

    @property
    def unreadable(self) -> tuple[str, ...]:
        return tuple(self.left_out.names)

    def find_unreadable(self, open_progress: OpenProgress) -> None:
        """Decode every image that training reads. The built-in images need no check, and a stream allows none."""
        section = self.recipe.data
        if section.streaming or section.name == BUILT_IN_IMAGES:
            return
        options = {"max_corrupt": section.max_corrupt, "workers": section.workers}

        def leave_out(splits: dict[str, Any], image: str, label: str) -> dict[str, Any]:
            total = sum(len(splits.get(split, ())) for split in ("train", "test"))
            with open_progress("checking the images", total) as advance:
                self.left_out.find(splits, image, label, self.recipe.augment, progress=advance, **options)
            if self.unreadable:
                count = f"{len(self.unreadable)} of {total:,} images cannot be read and are left out"
                logging.getLogger("codingrate").warning(f"{count}; the first is {self.unreadable[0]}")
            return self.left_out.leave_out(splits, image)

        self.data = self._open(leave_out)

    def _open(self, leave_out: LeaveOut) -> OpenedData:
        section = self.recipe.data
        return load_images(
            self.recipe.data_name,
            path=section.path,
            split_seed=section.split_seed,
            test_share=0.1 if section.test_share is None else section.test_share,
            streaming=section.streaming,
            image_column=section.image_column,
            label_column=section.label_column,
            leave_out=leave_out,
        )

    @property
    def processor(self) -> Any:
        augment = self.recipe.augment
        mean, std = augment.normalization
        return image_processor(
            augment.image_size,
            augment.channels,
            mean=mean,
            std=std,
            interpolation=augment.interpolation,
            crop=augment.evaluation_crop,
            ratio=augment.evaluation_ratio,
        )

    def datasets(self, rank: int = 0, world_size: int = 1) -> tuple[Any, Any]:
        recipe, process = self.recipe, cast(Any, {"rank": rank, "world_size": world_size})
        views = recipe.views if recipe.task == "distillation" else None
        train = torch_dataset(self.data, recipe.augment, train=True, seed=recipe.run.seed, views=views, **process)
        return train, torch_dataset(self.data, recipe.augment, train=False)

    def collate(self, samples: Any) -> dict[str, Any]:
        return collate(samples)

    def on_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.corrupt.add(cast(Any, batch))
        return {key: value for key, value in batch.items() if key != "corrupt"}

    def check_unreadable(self) -> tuple[str, ...]:
        return self.corrupt.finish()

    def prepare(self, batch: dict[str, Any], seed: int | None, model: CratePreTrainedModel) -> dict[str, Any]:
        pixels = self.augment.train(seed is not None)(batch["pixel_values"], seed=seed)
        return self.add_targets({**batch, "pixel_values": pixels}, seed, model)

    def add_targets(self, batch: dict[str, Any], seed: int | None, model: CratePreTrainedModel) -> dict[str, Any]:
        """Add what the loss needs beside normalized pixels, such as a mask."""
        return batch

    # Model

    def build_model(self) -> CratePreTrainedModel:
        model = super().build_model()
        model.preprocessing = self.processor.to_dict()
        return model

    def build_vision_model(
        self,
        fields: dict[str, Any] | None = None,
        defaults: dict[str, Any] | None = None,
        *,
        continue_training: bool = False,
    ) -> CratePreTrainedModel:
        """Build the model of the recipe: a new one, a classifier on the body of the source model, or with
        `continue_training` the source model itself.

        Precedence, highest first: `model.config`, `fields`, `defaults` (new models only), the preset.
        """
        section, augment = self.recipe.model, self.recipe.augment
        fields = {"image_size": augment.image_size, "num_channels": augment.channels, **(fields or {})}
        if self.paths.source is None:
            return create_model(section.name, **{**(defaults or {}), **fields, **section.config})
        source = self.load_source()
        if not continue_training:
            model = transfer_body(source, {**fields, **section.config})
            self.log_source(source, model)
            return model
        if section.config or any(getattr(source.config, key) != value for key, value in fields.items()):
            raise CrateError(
                "model.from: training continues with the model as it is; leave out model.config and keep its image size"
            )
        self.log_source(source, source)
        return source

    # Evaluation

    def evaluate(self, model: CratePreTrainedModel, **reading: Unpack[Reading]) -> Report:
        return self.report(self.measure_split(model, **reading))

    def report(self, measured: MeasuredSplit) -> Report:
        """Summarize the metrics of a split."""
        raise NotImplementedError  # abstract: tasks with an evaluation of their own do not call it

    def measure_split(
        self, model: CratePreTrainedModel, data: OpenedData | None = None, **reading: Unpack[Reading]
    ) -> MeasuredSplit:
        """Measure every image of a split, with the evaluation crop, in eval mode; `data` are by default the task's."""
        start = time.perf_counter()
        crops = self._crops(model, data or self.data, self.recipe.augment, reading)

        def inputs(batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
            pixels, labels = batch
            return self.add_targets({"pixel_values": pixels, "labels": labels.to(model.device)}, None, model)

        values = self.measure_batches(model, crops.then(inputs))
        return MeasuredSplit(values, crops, time.perf_counter() - start)

    def _crops(
        self, model: CratePreTrainedModel, data: OpenedData, augment: Augment, reading: Reading
    ) -> EvaluationBatches:
        """Return the evaluation crops of a split, on the device and in the precision of the model."""
        check_image_input(model, augment)
        return EvaluationBatches(
            data,
            augment,
            split=reading.get("split") or self.default_split,
            limit=reading.get("limit"),
            batch_size=reading.get("batch_size", 64),
            workers=self.recipe.data.workers,
            device=model.device,
            dtype=model.dtype,
            progress=reading.get("progress"),
            max_corrupt=self.recipe.data.max_corrupt,
            unreadable=reading.get("unreadable"),
        )

    # Prediction and inspection

    def read(self, images: Sequence[Any]) -> Tensor:
        """Return image files or PIL images as normalized evaluation crops (batch, channels, height, width)."""
        crops = torch.stack([read_image(image, self.recipe.augment) for image in images])
        return cast(Tensor, self.augment.eval()(crops))

    def predict(self, model: CratePreTrainedModel, inputs: Sequence[Any]) -> list[Any]:
        """Return the features of every image, (width,)."""
        check_image_input(model, self.recipe.augment)
        with eval_mode(model), torch.inference_mode():
            pixels = self.read(inputs).to(model.device, model.dtype)
            return list(cast(Any, model).features(pixels).float().cpu())

    @cached_property
    def inspected(self) -> tuple[OpenedData, Augment, tuple[str, ...]]:
        """The images to inspect, their crops, and notes: the task's data, or photographs if it names none."""
        augment = self.recipe.augment
        if self.recipe.data.name != MUST_GIVE:
            return self.data, augment, ()
        photographs = sample_photographs(augment.image_size)
        note = (
            f"No dataset is given, so the model is measured on parts of {photographs.name}: enough to look, not enough "
            "to judge."
        )
        return photographs, replace(augment, evaluation="resize"), (note,)

    def write_sample(self, folder: Path, count: int) -> Path | None:
        """Write images of the test split, balanced over classes, as sample.parquet."""
        data = self.data
        rows = data.test.select(balanced_indices(label_indices(data.test, data.label_column), count))
        content = [file_content(row[data.column], self.recipe.augment.channels) for row in rows]
        image_dataset(content, rows[data.label_column], data.classes).to_parquet(str(folder / "sample.parquet"))
        return folder / "sample.parquet"

    def samples(self, split: str | None, limit: int) -> Samples:
        data, _, notes = self.inspected
        split = split or self.default_split
        if data.streaming:
            return Samples(data.name, split, limit, (*notes, f"{STREAM_NOTE.capitalize()}."))
        return Samples(data.name, split, min(len(data.split(split)), limit), notes)

    def batches(
        self, model: CratePreTrainedModel, reader: Task | None = None, **reading: Unpack[Reading]
    ) -> SharedBatches[Tensor]:
        data, own, _ = self.inspected
        augment = own if reader is None else replace(reader.recipe.augment, evaluation=own.evaluation)
        return self._crops(model, data, augment, reading).then(itemgetter(0))

    def layerwise_batch(self, samples: list[Any]) -> list[Tensor]:
        return [cast(Tensor, self.augment.eval()(self.collate(samples)["pixel_values"]))]
