"""Overlap of attention with classes, and the mean over classes and images, each against loops."""

from __future__ import annotations

import json

import numpy as np
import pytest
from codingrate.evaluation.voc import class_overlaps, voc_overlap

from codingrate import CrateError
from codingrate.operators.attention_mass import mass_masks


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


def test_refusals():
    with pytest.raises(CrateError, match="unknown heads 'bets'; did you mean 'best'"):
        class_overlaps(np.ones((1, 2, 2), dtype=bool), labels_of(0), "bets")
    with pytest.raises(CrateError, match="toy: no image has a class"):
        voc_overlap("toy", [(np.ones((1, 2, 2)), np.zeros((4, 4), dtype=np.uint8))])
