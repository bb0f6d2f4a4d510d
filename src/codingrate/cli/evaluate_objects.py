"""`crate evaluate --task coco` and `--task voc`: objects found without labels against those people drew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CrateError, unknown_name
from .output import print_json, print_table, progress
from .vision import Vision, open_vision_model

TASKS = ("coco", "voc")


def evaluate_objects(
    run: Path,
    task: str,
    *,
    data: str | None,
    split: str | None,
    which: str,
    layer: int | None,
    threshold: float | None,
    size: int | None,
    limit: int | None,
    refine: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure a model on COCO or VOC; `threshold` is MaskCut's on COCO, and the share of attention kept on VOC."""
    if task not in TASKS:
        raise unknown_name("--task", task, TASKS)
    if data is None:
        raise CrateError(f"--task {task} is measured on --data; give the folder of {task.upper()}")
    opened = open_vision_model(str(run), which)
    if opened.model.config.num_channels != 3:
        raise CrateError(f"{run}: reads {opened.model.config.num_channels} channel(s); --task {task} has colour images")
    from ..inspection.segment import default_layer, default_side

    config = opened.model.config
    layer = default_layer(config) if layer is None else layer
    size = default_side(config) if size is None else size
    folder = output or (opened.folder or Path(".")) / "evaluation" / task
    report: Any
    if task == "coco":
        from ..data import load_coco
        from ..evaluation.coco import coco_precision

        objects = load_coco(data, split, limit)
        found = _detections(
            opened, objects, layer=layer, threshold=0.15 if threshold is None else threshold, side=size, refine=refine
        )
        report = coco_precision(objects, found)
        report.save(folder, found)
    else:
        from ..data import load_voc
        from ..evaluation.voc import voc_overlap
        from ..operators.attention_mass import MASS

        images = load_voc(data, split, limit)
        report = voc_overlap(data, _maps(opened, images, layer, size), mass=MASS if threshold is None else threshold)
        report.save(folder)
    if as_json:
        head = {"run": str(run), "task": task, "layer": layer, "size": size}
        print_json({**head, **report.to_json(), "folder": str(folder)})
    elif task == "coco":
        _show_coco(report, f"{run} on {data}", folder)
    else:
        kept = f"masks of {report.mass:.0%} of the attention, {report.heads} head for each class"
        print(f"mIoU {report.miou:.2%}, {report.images} images; {kept}; metrics.json in {folder}")


def _detections(opened: Vision, objects: Any, **options: Any) -> list[Any]:
    """What MaskCut finds in every image."""
    from ..evaluation.coco import Detection
    from ..inspection.segment import segment

    found = []
    with progress("maskcut", len(objects.images)) as advance:
        for image in objects.images:
            parts = segment(opened.model, image.read(), opened.augment, **options)
            found += [Detection.of(image.id, part.mask, part.box, part.score) for part in parts]
            advance()
    return found


def _maps(opened: Vision, images: Any, layer: int, size: int) -> Iterator[Any]:
    """The class token's attention maps and the classes of every image."""
    from ..inspection import attention_maps
    from ..inspection.segment import square_input

    with progress("attention", len(images)) as advance:
        for entry in images:
            image, labels = entry.read()
            pixels = square_input(opened.model, image, opened.augment, size)[1]
            yield attention_maps(opened.model, pixels, layer)[0].float().cpu().numpy(), labels
            advance()


def _show_coco(report: Any, title: str, folder: Path) -> None:
    rows = [
        (name, *(f"{100 * value:.2f}" for value in (part.ap50, part.ap75, part.ap)))
        for name, part in (("boxes", report.box), ("masks", report.mask))
        if part is not None
    ]
    print_table(title, ("", "AP50", "AP75", "AP"), rows)
    left = f"; {report.without_masks} images have no masks and count for boxes only" if report.without_masks else ""
    print(f"{report.detections} found, {report.objects} drawn, {report.images} images, all classes as one{left}")
    print(f"scores are 1 − Ncut/2 of each cut; metrics.json and detections.json in {folder}")
