"""What a user can get wrong when naming a dataset, each answered in one line."""

import re
import struct

import datasets
import numpy as np
import pytest

from codingrate.data import load_images
from codingrate.errors import CrateError

from .conftest import encoded, picture, write_classes
from .test_sources import write_idx, write_parquet


def refused(*args, **kwargs):
    with pytest.raises(CrateError) as caught:
        load_images(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_paths_and_unknown_names(tmp_path):
    assert "no such file or folder" in refused(str(tmp_path / "nowhere"))
    assert "no such file or folder" in refused("data/train.parquet")
    assert refused("digit") == "unknown dataset 'digit'; did you mean 'digits'?"
    assert "fashion-mnist" in refused("fashion-mnst")
    assert "use the path itself" in refused("digits", path=tmp_path)
    assert "test_share" in refused("digits", test_share=0.0)
    (tmp_path / "notes.txt").write_text("x")
    assert "use a folder or one of .parquet .arrow" in refused(str(tmp_path / "notes.txt"))


def test_unreachable_hub():
    for name in ("cifar10", "imagenet-21k"):
        assert "use the path of a local copy" in refused(name)
    assert "is not a local path and cannot be loaded from the hub" in refused("nobody/nothing")


def test_folders(tmp_path):
    (tmp_path / "void").mkdir()
    assert "no class folders; it has no images either" in refused(str(tmp_path / "void"))
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    assert "no images below" in refused(str(tmp_path / "empty"))
    (tmp_path / "loose").mkdir()
    picture(0).save(tmp_path / "loose" / "a.png")
    assert "put the images of each class into a folder of their own" in refused(str(tmp_path / "loose"))
    root = write_classes(tmp_path / "set", {"cat": 2, "dog": 2})
    (root / "emu").mkdir()
    message = refused(str(root))
    assert "emu has no images" in message
    one = write_classes(tmp_path / "one", {"cat": 3})
    assert "one class only ('cat')" in refused(str(one))
    assert "one class only" in refused(str(one), streaming=True)


def test_classes_of_the_test_split(tmp_path):
    write_classes(tmp_path / "set" / "train", {"cat": 2, "dog": 2})
    write_classes(tmp_path / "set" / "test", {"cat": 2, "eel": 2})
    assert "class 'eel', which the training folder does not have" in refused(str(tmp_path / "set"))


def test_labels_out_of_range(tmp_path):
    assert "label -2; labels must not be negative" in refused(str(write_parquet(tmp_path / "a.parquet", [0, 1, -2])))
    message = refused("cifar10", path=write_parquet(tmp_path / "b.parquet", [0, 10]))
    assert "label 10 in column 'label', which is outside its 10 classes" in message
    rows = datasets.ClassLabel(names=["a", "b", "c"])
    (tmp_path / "c").mkdir()
    write_parquet(tmp_path / "c" / "train.parquet", [0, 1], rows)
    write_parquet(tmp_path / "c" / "test.parquet", [2], rows)
    assert "test split" in (message := refused(str(tmp_path / "c")))
    assert "class 'c', which has no training row" in message
    write_parquet(tmp_path / "c" / "test.parquet", [-1], rows)
    assert "label -1 in column 'label', which means unlabeled" in refused(str(tmp_path / "c"))
    write_parquet(tmp_path / "c" / "test.parquet", [0], datasets.ClassLabel(names=["b", "a", "d"]))
    assert list(load_images(str(tmp_path / "c")).test["label"]) == [1], "named classes are matched by name"
    write_parquet(tmp_path / "c" / "test.parquet", [2], datasets.ClassLabel(names=["b", "a", "d"]))
    assert "label 'd' in column 'label', which is outside its 3 classes" in refused(str(tmp_path / "c"))
    (tmp_path / "d").mkdir()
    write_parquet(tmp_path / "d" / "train.parquet", ["x", "y"])
    write_parquet(tmp_path / "d" / "test.parquet", ["z"])
    assert "label 'z' in column 'label', which does not occur in training" in refused(str(tmp_path / "d"))


def test_labels_of_the_wrong_kind(tmp_path):
    assert "labels of type double" in refused(str(write_parquet(tmp_path / "a.parquet", [0.5, 1.5])))
    assert "1 rows without a label" in refused(str(write_parquet(tmp_path / "b.parquet", [0, 1, None])))
    assert "too few rows to hold one out of a class" in refused(str(write_parquet(tmp_path / "c.parquet", [0, 1, 2])))


def test_missing_columns(tmp_path):
    path = str(tmp_path / "a.parquet")
    datasets.Dataset.from_dict({"picture": [encoded(picture(0))], "kind": [1]}).to_parquet(path)
    assert "no image column; set image_column to one of: picture, kind" in refused(path)
    assert "no label column; set label_column to one of" in refused(path, image_column="picture")
    assert "no image column 'img'; set image_column to one of: picture, kind" in refused(path, image_column="img")


def test_unreadable_tables(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not for long")
    assert "cannot read" in (message := refused(str(tmp_path / "a.parquet")))
    assert "a.parquet" in message
    assert "a.parquet" in refused(str(tmp_path / "a.parquet"), streaming=True)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{")
    assert "cannot read the saved dataset" in refused(str(tmp_path / "saved"))
    (tmp_path / "mixed").mkdir()
    for name in ("train.parquet", "more.parquet"):
        write_parquet(tmp_path / "mixed" / name, [0, 1])
    assert "cannot tell the split of" in refused(str(tmp_path / "mixed"))


def test_idx_files(tmp_path):
    images, classes = np.zeros((4, 3, 3), np.uint8), np.array([0, 1, 0, 1], np.uint8)
    write_idx(tmp_path, "train", images, classes)
    file = tmp_path / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for raw, words in (
        (whole[:-1], "has 35 bytes, but its header says 36"),
        (whole + b"x", "has 37 bytes"),
        (whole[:9], "truncated within its header"),
        (struct.pack(">I", 0x801) + whole[4:], "magic number 0x00000801, expected 0x00000803"),
        (b"", "magic number"),
    ):
        file.write_bytes(raw)
        assert words in refused(str(tmp_path))
    file.unlink()
    assert "no train-images-idx3-ubyte[.gz] beside train-labels-idx1-ubyte" in refused(str(tmp_path))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip")
    assert "cannot read" in refused(str(tmp_path))
    write_idx(tmp_path, "train", images[:3], classes)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 2) + bytes(2))
    assert "has 3 images, but train-labels-idx1-ubyte has 2 labels" in refused(str(tmp_path))
    for name in tmp_path.glob("train-*"):
        name.unlink()
    write_idx(tmp_path, "t10k", images, classes)
    assert "has no train-images" in refused(str(tmp_path))


def test_empty_splits_and_mixed_files(tmp_path):
    kind = datasets.ClassLabel(names=["a", "b"])
    empty = write_parquet(tmp_path / "empty.parquet", [], kind)
    assert "empty.parquet: " in refused(str(empty))
    images, classes = np.zeros((4, 3, 3), np.uint8), np.array([0, 1, 0, 1], np.uint8)
    (tmp_path / "idx").mkdir()
    write_idx(tmp_path / "idx", "train", images, classes)
    write_idx(tmp_path / "idx", "t10k", images[:0], classes[:0])
    assert re.fullmatch("the test split of .* has no rows", refused(str(tmp_path / "idx")))
    write_idx(tmp_path / "idx", "train", images[:0], classes[:0])
    assert "the train split of" in refused(str(tmp_path / "idx"))
    (tmp_path / "half").mkdir()
    write_parquet(tmp_path / "half" / "train.parquet", [0, 1], kind)
    (tmp_path / "half" / "test.arrow").write_bytes(b"")
    assert "mixes .parquet and .arrow files" in refused(str(tmp_path / "half"))


def test_streams_from_the_hub_need_class_names(monkeypatch):
    rows = datasets.Dataset.from_dict({"image": [encoded(picture(0))], "label": [3]}).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: {"train": rows})
    assert "has no class names" in refused("someone/something", streaming=True)
