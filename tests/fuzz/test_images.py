"""Damaged and made-up images: each is decoded, counted as unreadable, or refused in one line."""

import gzip
import io
import json
import struct

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from codingrate.data import Augment, EvaluationBatches, decode_image, load_coco, load_images, read_image, read_picture
from codingrate.evaluation import Detection, coco_precision

from .outcomes import cases, mutated, outcome, unchanged

KINDS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000")
COUNTS = [pytest.param(10, id="few"), pytest.param(150, id="many", marks=pytest.mark.slow)]
FEW = [pytest.param(25, id="few"), pytest.param(250, id="many", marks=pytest.mark.slow)]
SMALL = Augment(image_size=8)


def original(kind, mode="RGB"):
    pixels = np.random.RandomState(0).randint(0, 256, (24, 31, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if kind in ("PNG", "JPEG", "WEBP", "TIFF") else {}
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_images(kind, count, tmp_path):
    whole = original(kind)
    assert outcome(decode_image, whole) == "ok"
    path, seen = tmp_path / "a.png", set()

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        content = mutated(whole, seed)
        path.write_bytes(content)
        with unchanged(tmp_path):
            decoded = outcome(decode_image, content)
            assert outcome(read_picture, path) in ("ok", "refused")
            assert outcome(read_image, path, SMALL) in ("ok", "refused")
        seen.add(decoded)
        if decoded == "ok":
            image = decode_image(content)
            assert (image.mode, np.asarray(image).ndim) == ("RGB", 3)

    check()
    assert seen == {"ok", "refused"} or count < 20


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


@pytest.mark.parametrize("count", FEW)
def test_values_of_any_kind(count):
    @cases(count)
    @given(value=VALUES)
    def check(value):
        if outcome(decode_image, value) == "ok":
            assert decode_image(value).mode == "RGB"
        assert outcome(read_image, value, SMALL) in ("ok", "refused")

    check()


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_images_are_counted(count, tmp_path):
    for name, kind in (("cat", "PNG"), ("dog", "JPEG")):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.png").write_bytes(original(kind))
    target, whole = tmp_path / "dog" / "1.png", original("GIF")
    data = load_images(str(tmp_path), test_share=1)

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        target.write_bytes(mutated(whole, seed))
        batches = EvaluationBatches(data, SMALL, max_corrupt=0.5)
        with unchanged(tmp_path):
            assert outcome(list, batches) == "ok"
        assert len(batches.readable) == 6
        assert (
            batches.readable.count(False)
            == len(batches.corrupt)
            == (outcome(lambda: read_image(target, SMALL)) != "ok")
        )

    check()


def idx(shape, content, magic=None):
    return struct.pack(f">{1 + len(shape)}I", magic or 0x800 + len(shape), *shape) + content


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx_files(count, packed, tmp_path):
    end = ".gz" if packed else ""
    files = {
        f"train-images-idx3-ubyte{end}": idx((6, 4, 5), bytes(range(120))),
        f"train-labels-idx1-ubyte{end}": idx((6,), bytes([0, 1, 2] * 2)),
    }

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1), target=st.sampled_from([*files]), inside=st.booleans())
    def check(seed, target, inside):
        for name, content in files.items():
            damaged = mutated(content, seed) if name == target and inside else content
            stored = gzip.compress(damaged, mtime=0) if packed else damaged
            (tmp_path / name).write_bytes(mutated(stored, seed) if name == target and not inside else stored)
        with unchanged(tmp_path):
            result = outcome(load_images, str(tmp_path), test_share=1)
        if result == "ok":
            data = load_images(str(tmp_path), test_share=1)
            assert outcome(list, EvaluationBatches(data, SMALL, max_corrupt=1)) in ("ok", "refused")

    check()


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_tables_of_images(count, tmp_path):
    path = tmp_path / "train.parquet"
    images = [{"bytes": original(kind), "path": f"{kind}.png"} for kind in KINDS[:4]]
    table = pyarrow.table({"image": images, "label": ["a", "b"] * 2})
    parquet.write_table(table, path, compression="none")
    whole = path.read_bytes()

    def read(streaming):
        data = load_images(str(path), test_share=1, streaming=streaming)
        assert data.fingerprint["classes"] == list(data.classes)
        return [*EvaluationBatches(data, SMALL, max_corrupt=1)]

    assert outcome(read, False) == outcome(read, True) == "ok"

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1), streaming=st.booleans())
    def check(seed, streaming):
        path.write_bytes(mutated(whole, seed))
        with unchanged(tmp_path):
            assert outcome(read, streaming) in ("ok", "refused")

    check()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("count", FEW)
def test_annotations_of_any_kind(count, tmp_path):
    (tmp_path / "0.png").write_bytes(original("PNG"))
    image = {"id": 1, "file_name": "0.png", "width": 31, "height": 24}
    thing = {"image_id": 1, "bbox": [1, 1, 4, 3], "area": 12, "iscrowd": 0, "segmentation": [[1, 1, 5, 1, 5, 4]]}
    code = {"size": [24, 31], "counts": [20, 100, 624]}
    file = tmp_path / "annotations.json"

    @cases(count)
    @given(st.data())
    def check(data):
        content = {"images": [dict(image)], "annotations": [dict(thing), {**thing, "segmentation": dict(code)}]}
        part = data.draw(st.sampled_from([content, content["images"][0], *content["annotations"], "code"]))
        part = content["annotations"][1]["segmentation"] if part == "code" else part
        part[data.draw(st.sampled_from([*part]))] = data.draw(JSON)
        file.write_text(json.dumps(content))
        with unchanged(tmp_path):
            result = outcome(load_coco, tmp_path)
        if result == "ok":
            coco = load_coco(tmp_path)
            assert outcome(lambda: [one.read() for one in coco.images]) in ("ok", "refused")
            found = [Detection.from_mask(coco.images[0].id, np.ones((24, 31), bool), (1, 1, 4, 3), 0.5)]
            assert outcome(coco_precision, coco, found) in ("ok", "refused")

    check()
