"""Damaged and made-up images and annotations: each is decoded, counted as unreadable, or refused in one line."""

import json

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from codingrate.data import Augment, EvaluationBatches, decode_image, load_coco, load_images, read_image
from codingrate.evaluation import Detection, coco_precision

from .outcomes import SEEDS, counts, fuzz, mutated, outcome, unchanged
from .test_damaged_files import original

SMALL = Augment(image_size=8)
VALUES = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=60), st.booleans(),
    st.lists(st.lists(st.integers(-1, 300), max_size=4), max_size=4),
    st.fixed_dictionaries({}, optional={"bytes": st.binary(max_size=9), "path": st.text(max_size=9)}),
    st.builds(
        lambda shape, kind: np.zeros(shape, kind),
        st.lists(st.integers(0, 5), max_size=5).map(tuple),
        st.sampled_from(["u1", "u2", "i4", "i8", "f4", "f8", "?", "c8", "O", "U3", "M8[s]"]),
    ),
    st.builds(Image.new, st.sampled_from(["1", "L", "P", "RGBA", "CMYK", "F", "I", "LAB", "HSV", "I;16"]),
              st.tuples(st.integers(0, 5), st.integers(0, 5))),
)  # fmt: skip


@counts(25, 250)
def test_values_of_any_kind(count):
    @fuzz(count, value=VALUES)
    def check(value):
        assert outcome(decode_image, value) == "refused" or decode_image(value).mode == "RGB"
        outcome(read_image, value, SMALL)


@counts(10, 150)
def test_damaged_images_are_counted(count, tmp_path):
    for name, kind in (("cat", "PNG"), ("dog", "JPEG")):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.png").write_bytes(original(kind))
    target, whole = tmp_path / "dog" / "1.png", original("GIF")
    data = load_images(str(tmp_path), test_share=1)

    @fuzz(count, seed=SEEDS)
    def check(seed):
        target.write_bytes(mutated(whole, seed))
        batches = EvaluationBatches(data, SMALL, max_corrupt=0.5)
        with unchanged(tmp_path):
            assert outcome(list, batches) == "ok"
        damaged = outcome(read_image, target, SMALL) != "ok"
        assert (len(batches.readable), batches.readable.count(False), len(batches.corrupt)) == (6, damaged, damaged)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@counts(25, 250)
def test_annotations_of_any_kind(count, tmp_path):
    (tmp_path / "0.png").write_bytes(original("PNG"))
    image = {"id": 1, "file_name": "0.png", "width": 31, "height": 24}
    thing = {"image_id": 1, "bbox": [1, 1, 4, 3], "area": 12, "iscrowd": 0, "segmentation": [[1, 1, 5, 1, 5, 4]]}
    code = {"size": [24, 31], "counts": [20, 100, 624]}

    def use():
        coco = load_coco(tmp_path)
        outcome(lambda: [one.read() for one in coco.images])
        coco_precision(coco, [Detection.from_mask(coco.images[0].id, np.ones((24, 31), bool), (1, 1, 4, 3), 0.5)])

    @fuzz(count, st.data())
    def check(data):
        content = {"images": [dict(image)], "annotations": [dict(thing), {**thing, "segmentation": dict(code)}]}
        parts = [content, content["images"][0], *content["annotations"], content["annotations"][1]["segmentation"]]
        part = data.draw(st.sampled_from(parts))
        part[data.draw(st.sampled_from([*part]))] = data.draw(JSON)
        (tmp_path / "annotations.json").write_text(json.dumps(content))
        with unchanged(tmp_path):
            outcome(use)
