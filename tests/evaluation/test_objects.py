"""COCO AP against pycocotools, and VOC overlaps against loops."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest

from codingrate import CrateError
from codingrate.data import CocoData, CocoImage, CocoObject
from codingrate.evaluation import Detection, coco_precision, voc_overlap
from codingrate.evaluation.objects import class_overlaps
from codingrate.operators.attention_mass import mass_masks

HEIGHT, WIDTH = 61, 79

# COCO


def random_mask(draw):
    """An ellipse somewhere in the image, or the part of it that is."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    centre, axes = draw.uniform((10, 10), (HEIGHT - 10, WIDTH - 10)), draw.uniform(4, 20, 2)
    return ((y - centre[0]) / axes[0]) ** 2 + ((x - centre[1]) / axes[1]) ** 2 < 1


def box_of(mask):
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return (
        float(columns[0]), float(rows[0]), float(columns[-1] - columns[0] + 1), float(rows[-1] - rows[0] + 1)
    )  # fmt: skip


def uncompressed(mask):
    """COCO's run lengths, down the columns, starting with zeros."""
    flat = mask.ravel(order="F")
    ends = np.flatnonzero(np.diff(np.concatenate([[False], flat, [not flat[-1]]])))
    return {"size": list(mask.shape), "counts": np.diff(np.concatenate([[0], ends])).tolist()}


def scene(seed, images=7, crowds=True):
    """Random objects, some of them crowds, and their masks."""
    draw = np.random.default_rng(seed)
    objects, masks = [], []
    for image in range(images):
        for number in range(draw.integers(1, 5)):
            mask = random_mask(draw)
            crowd = bool(crowds and number == 2)
            masks.append(mask)
            objects.append(CocoObject(100 + image, box_of(mask), float(mask.sum()), uncompressed(mask), crowd))
    pictures = tuple(CocoImage(100 + image, Path("none"), WIDTH, HEIGHT) for image in range(images))
    return CocoData("random", pictures, tuple(objects)), masks


def shifted(mask, draw, most):
    return np.roll(mask, tuple(draw.integers(-most, most + 1, 2)), axis=(0, 1))


def detections(data, masks, seed, most=4):
    """The objects, moved by some pixels or left out, and some that are not there, with scores that tie at times."""
    draw = np.random.default_rng(seed + 1000)
    found = []
    for thing, mask in zip(data.objects, masks, strict=True):
        for moved in [shifted(mask, draw, most)] * (draw.random() < 0.8) + [random_mask(draw)] * (draw.random() < 0.4):
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
    rows = [{"image_id": one.image, "category_id": 1, "score": one.score} for one in found]
    for row, one in zip(rows, found, strict=True):
        row.update({"bbox": list(one.box)} if kind == "bbox" else {"segmentation": one.rle})
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        measure = COCOeval(truth, truth.loadRes(rows), kind)
        measure.evaluate()
        measure.accumulate()
        measure.summarize()
    return tuple(measure.stats[:3])


@pytest.mark.parametrize("seed", range(6))
def test_random_objects_as_pycocotools_counts_them(seed):
    data, masks = scene(seed)
    found = detections(data, masks, seed)
    report = coco_precision(data, found)
    for kind, ours in (("bbox", report.box), ("segm", report.mask)):
        wanted = reference(data, found, kind)
        assert 0 < wanted[0] < 1, "neither end, or the test tells nothing"
        assert dataclasses.astuple(ours) == pytest.approx(wanted, abs=1e-9)


def test_perfect_is_one_and_empty_is_zero():
    data, masks = scene(0, crowds=False)
    found = [
        Detection.from_mask(thing.image, mask, thing.box, 1.0) for thing, mask in zip(data.objects, masks, strict=True)
    ]
    report = coco_precision(data, found)
    for part in (report.box, report.mask):
        assert dataclasses.astuple(part) == pytest.approx((1, 1, 1))
    assert (report.images, report.objects, report.detections) == (7, len(masks), len(masks))
    nothing = coco_precision(data, [])
    for part in (nothing.box, nothing.mask):
        assert dataclasses.astuple(part) == (0, 0, 0)


def test_objects_with_a_box_only_count_for_boxes():
    data, masks = scene(3, crowds=False)
    found = detections(data, masks, 3)
    bare = [dataclasses.replace(thing, outline=None) if thing.image == 101 else thing for thing in data.objects]
    report = coco_precision(dataclasses.replace(data, objects=tuple(bare)), found)
    assert report.without_masks == 1
    assert report.box == coco_precision(data, found).box
    others = dataclasses.replace(
        data,
        images=tuple(image for image in data.images if image.id != 101),
        objects=tuple(thing for thing in data.objects if thing.image != 101),
    )
    assert report.mask == coco_precision(others, [one for one in found if one.image != 101]).mask
    none = dataclasses.replace(data, objects=tuple(dataclasses.replace(o, outline=None) for o in data.objects))
    assert coco_precision(none, found).mask is None


def test_what_is_written_is_what_cocos_tools_read(tmp_path):
    data, masks = scene(1)
    found = detections(data, masks, 1)
    report = coco_precision(data, found)
    report.save(tmp_path / "out", found)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["mask"]["ap50"] == report.mask.ap50
    rows = json.loads((tmp_path / "out" / "detections.json").read_text())
    again = [Detection(r["image_id"], tuple(r["bbox"]), r["score"], r["segmentation"]) for r in rows]
    assert reference(data, again, "segm") == pytest.approx(dataclasses.astuple(report.mask), abs=1e-9)


def test_nothing_is_printed(capsys):
    data, masks = scene(2)
    coco_precision(data, detections(data, masks, 2))
    assert capsys.readouterr() == ("", "")


def test_what_coco_refuses():
    data, masks = scene(0)
    stranger = Detection.from_mask(7, masks[0], data.objects[0].box, 1.0)
    with pytest.raises(CrateError, match="a detection is of image 7, which random does not contain"):
        coco_precision(data, [stranger])
    with pytest.raises(CrateError, match="random: there are no annotated objects"):
        coco_precision(dataclasses.replace(data, objects=()), [])


# VOC


def naive_overlaps(masks, labels, rule):
    heads, rows, columns = masks.shape
    height, width = labels.shape
    found = {}
    for number in sorted(set(labels.ravel().tolist()) - {0, 255}):
        ratios = []
        for mask in masks:
            both = either = 0
            for y in range(height):
                for x in range(width):
                    if labels[y, x] == 255:
                        continue
                    covered, inside = mask[y * rows // height, x * columns // width], labels[y, x] == number
                    both, either = both + (covered and inside), either + (covered or inside)
            ratios.append(both / either)
        found[number] = max(ratios) if rule == "best" else sum(ratios) / heads
    return found


def labels_of(seed):
    draw = np.random.default_rng(seed)
    labels = np.zeros((29, 23), dtype=np.uint8)
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
    wanted = [naive_overlaps(mass_masks(maps, 0.7), labels, rule) for maps, labels in pairs]
    for (maps, labels), found in zip(pairs, wanted, strict=True):
        assert class_overlaps(mass_masks(maps, 0.7), labels, rule) == pytest.approx(found)
    report = voc_overlap("toy", pairs, mass=0.7, heads=rule)
    means = [np.mean(list(found.values())) for found in wanted if found]
    assert report.images == 3
    assert report.miou == pytest.approx(np.mean(means))
    for number in (5, 11):
        values = [found[number] for found in wanted if number in found]
        assert report.per_class[number] == pytest.approx(np.mean(values))
    report.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["miou"] == report.miou


def test_attention_that_is_the_object_overlaps_wholly():
    labels = np.zeros((20, 28), dtype=np.uint8)
    labels[4:12, 8:16] = 3
    attention = np.zeros((2, 5, 7))
    attention[0, 0, 0] = 1
    attention[1, 1:3, 2:4] = 0.25
    assert voc_overlap("toy", [(attention, labels)], mass=1.0).miou == 1


def test_the_mean_is_over_images_and_not_over_classes():
    one, both = np.zeros((4, 4), dtype=np.uint8), np.zeros((4, 4), dtype=np.uint8)
    one[:2], both[:2], both[3:] = 3, 3, 7
    attention = np.zeros((1, 4, 4))
    attention[0, :2] = 1
    pairs = [(attention, one), (attention, one), (attention, both)]
    report = voc_overlap("toy", pairs, mass=1.0)
    assert report.per_class == {3: 1.0, 7: 0.0}
    assert report.miou == pytest.approx((1 + 1 + 0.5) / 3)


def test_what_voc_refuses():
    with pytest.raises(CrateError, match="unknown heads 'bets'; did you mean 'best'"):
        class_overlaps(np.ones((1, 2, 2), dtype=bool), labels_of(0), "bets")
    with pytest.raises(CrateError, match="toy: no label map contains a class"):
        voc_overlap("toy", [(np.ones((1, 2, 2)), np.zeros((4, 4), dtype=np.uint8))])
