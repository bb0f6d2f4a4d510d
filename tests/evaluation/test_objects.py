"""COCO AP against pycocotools, and VOC overlaps against loops."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest

from codingrate._attention_mass import mass_masks
from codingrate.data.objects import CocoData, CocoImage, CocoObject
from codingrate.evaluation import Detection, coco_precision, voc_overlap
from codingrate.evaluation.objects import class_overlaps
from tests.refusals import refused

HEIGHT, WIDTH = 61, 79

# COCO


def random_mask(draw):
    """An ellipse somewhere in the image, or the part of it that is."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    centre, axes = draw.uniform((10, 10), (HEIGHT - 10, WIDTH - 10)), draw.uniform(4, 20, 2)
    return ((y - centre[0]) / axes[0]) ** 2 + ((x - centre[1]) / axes[1]) ** 2 < 1


def box_of(mask):
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    sides = (columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1)
    return tuple(map(float, sides))


def uncompressed(mask):
    """COCO's run lengths, down the columns, starting with zeros."""
    flat = mask.ravel(order="F")
    ends = np.flatnonzero(np.diff(np.concatenate([[False], flat, [not flat[-1]]])))
    return {"size": list(mask.shape), "counts": np.diff(np.concatenate([[0], ends])).tolist()}


def scene(seed, images=7, crowds=True):
    """Random objects, some of them crowds, and their masks."""
    draw, objects, masks = np.random.default_rng(seed), [], []
    for image in range(100, 100 + images):
        for number in range(draw.integers(1, 5)):
            masks.append(random_mask(draw))
            shape = (box_of(masks[-1]), float(masks[-1].sum()), uncompressed(masks[-1]))
            objects.append(CocoObject(image, *shape, bool(crowds and number == 2)))
    pictures = tuple(CocoImage(100 + image, Path("none"), WIDTH, HEIGHT) for image in range(images))
    return CocoData("random", pictures, tuple(objects)), masks


def detections(data, masks, seed, most=4):
    """The objects, moved by some pixels or left out, and some that are not there, with scores that tie at times."""
    draw, found = np.random.default_rng(seed + 1000), []
    for thing, mask in zip(data.objects, masks, strict=True):
        near = np.roll(mask, tuple(draw.integers(-most, most + 1, 2)), axis=(0, 1))
        for moved in [near] * (draw.random() < 0.8) + [random_mask(draw)] * (draw.random() < 0.4):
            found.append(Detection.from_mask(thing.image, moved, box_of(moved), float(draw.integers(1, 8)) / 8))
    return found


def reference(data, found, kind):
    """AP, AP50, AP75 by pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = COCO()
    truth.dataset = {
        "images": [{"id": image.id, "width": WIDTH, "height": HEIGHT} for image in data.images],
        "categories": [{"id": 1}],
        "annotations": [
            {"id": number, "image_id": thing.image, "category_id": 1, "bbox": list(thing.box), "area": thing.area,
             "segmentation": thing.outline, "iscrowd": int(thing.crowd)}
            for number, thing in enumerate(data.objects, 1)
        ],
    }  # fmt: skip
    shapes = [{"bbox": list(one.box)} if kind == "bbox" else {"segmentation": one.rle} for one in found]
    rows = [{"image_id": one.image, "category_id": 1, "score": one.score} for one in found]
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        results = truth.loadRes([row | shape for row, shape in zip(rows, shapes, strict=True)])
        measure = COCOeval(truth, results, kind)
        measure.evaluate()
        measure.accumulate()
        measure.summarize()
    return tuple(measure.stats[:3])


@pytest.mark.parametrize("seed", range(6))
def test_random_objects_as_pycocotools_counts_them(seed, capsys):
    data, masks = scene(seed)
    found = detections(data, masks, seed)
    report = coco_precision(data, found)
    assert capsys.readouterr() == ("", "")
    for kind, ours in (("bbox", report.box), ("segm", report.mask)):
        wanted = reference(data, found, kind)
        assert 0 < wanted[0] < 1, "neither end, or the test tells nothing"
        assert dataclasses.astuple(ours) == pytest.approx(wanted, abs=1e-9)


def test_perfect_is_one_and_empty_is_zero():
    data, masks = scene(0, crowds=False)
    pairs = zip(data.objects, masks, strict=True)
    found = [Detection.from_mask(thing.image, mask, thing.box, 1.0) for thing, mask in pairs]
    for some, value in ((found, 1), ([], 0)):
        report = coco_precision(data, some)
        for part in (report.box, report.mask):
            assert dataclasses.astuple(part) == pytest.approx((value,) * 3)
        assert (report.images, report.objects, report.detections) == (7, len(masks), len(some))


def test_objects_with_a_box_only_count_for_boxes():
    data, masks = scene(3, crowds=False)
    found = detections(data, masks, 3)

    def without(images):
        bare = [dataclasses.replace(o, outline=None) if o.image in images else o for o in data.objects]
        return coco_precision(dataclasses.replace(data, objects=tuple(bare)), found)

    report = without({101})
    assert (report.without_masks, report.box) == (1, coco_precision(data, found).box)
    others = dataclasses.replace(
        data,
        images=tuple(image for image in data.images if image.id != 101),
        objects=tuple(thing for thing in data.objects if thing.image != 101),
    )
    assert report.mask == coco_precision(others, [one for one in found if one.image != 101]).mask
    assert without({image.id for image in data.images}).mask is None


def test_what_is_written_is_what_cocos_tools_read(tmp_path):
    data, masks = scene(1)
    found = detections(data, masks, 1)
    report = coco_precision(data, found)
    report.save(tmp_path / "out", found)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["mask"]["ap50"] == report.mask.ap50
    rows = json.loads((tmp_path / "out" / "detections.json").read_text())
    again = [Detection(r["image_id"], tuple(r["bbox"]), r["score"], r["segmentation"]) for r in rows]
    assert reference(data, again, "segm") == pytest.approx(dataclasses.astuple(report.mask), abs=1e-9)


def test_what_cannot_be_measured():
    data, masks = scene(0)
    stranger, empty = Detection.from_mask(7, masks[0], data.objects[0].box, 1.0), dataclasses.replace(data, objects=())
    refused("image 7", coco_precision, data, [stranger])
    refused("random: ", coco_precision, empty, [])
    refused("'best'", class_overlaps, np.ones((1, 2, 2), dtype=bool), labels_of(0), "bets")
    refused("toy: ", voc_overlap, "toy", [(np.ones((1, 2, 2)), np.zeros((4, 4), dtype=np.uint8))])


# VOC


def naive_overlaps(masks, labels, rule):
    """Return the overlap of each class with the best head or with all, by loops over pixels that are not void."""
    (heads, rows, columns), (height, width), found = masks.shape, labels.shape, {}
    pixels = [(y, x) for y in range(height) for x in range(width) if labels[y, x] != 255]
    for number in sorted(set(labels.ravel().tolist()) - {0, 255}):
        ratios = []
        for mask in masks:
            pairs = [(mask[y * rows // height, x * columns // width], labels[y, x] == number) for y, x in pixels]
            ratios.append(sum(a and b for a, b in pairs) / sum(a or b for a, b in pairs))
        found[number] = max(ratios) if rule == "best" else sum(ratios) / heads
    return found


def labels_of(seed):
    draw, labels = np.random.default_rng(seed), np.zeros((29, 23), dtype=np.uint8)
    for number in (5, 11):
        top, left = draw.integers(0, 15), draw.integers(0, 12)
        labels[top : top + 11, left : left + 9] = number
    labels[draw.random(labels.shape) < 0.1] = 255
    return labels


@pytest.mark.parametrize("rule", ["best", "mean"])
def test_overlaps_and_their_means(rule, tmp_path):
    draw = np.random.default_rng(1)
    pairs = [(draw.random((3, 5, 7)) ** 2, labels_of(seed)) for seed in range(4)]
    pairs[2][1][...] = 0  # without a class: it does not count
    masks = [(mass_masks(maps, 0.7), labels) for maps, labels in pairs]
    wanted = [naive_overlaps(mask, labels, rule) for mask, labels in masks]
    assert [class_overlaps(mask, labels, rule) for mask, labels in masks] == [pytest.approx(found) for found in wanted]
    report = voc_overlap("toy", pairs, mass=0.7, heads=rule)
    assert report.images == 3
    assert report.miou == pytest.approx(np.mean([np.mean(list(found.values())) for found in wanted if found]))
    means = {number: np.mean([found[number] for found in wanted if number in found]) for number in (5, 11)}
    assert report.per_class == pytest.approx(means)
    report.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["miou"] == report.miou


def test_the_mean_is_over_images_and_not_over_classes():
    one, both = np.zeros((4, 4), dtype=np.uint8), np.zeros((4, 4), dtype=np.uint8)
    one[:2], both[:2], both[3:] = 3, 3, 7
    attention = np.zeros((1, 4, 4))
    attention[0, :2] = 1
    pairs = [(attention, one), (attention, one), (attention, both)]
    report = voc_overlap("toy", pairs, mass=1.0)
    assert report.per_class == {3: 1.0, 7: 0.0}
    assert report.miou == pytest.approx((1 + 1 + 0.5) / 3)
