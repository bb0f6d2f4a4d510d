"""Every way to name a dataset, its splits and its classes."""

import gzip
import hashlib
import struct

import datasets
import numpy as np
import pytest

from codingrate.data import dataset_names, decode_image, load_images, stratified_split

from .conftest import encoded, picture, write_classes

DIGITS_HELD_OUT = "7fa236cf00ccda11"


def labels(rows):
    return list(rows["label"])


def pixels(rows, index=0):
    return np.asarray(decode_image(rows[index]["image"], 3))


def write_parquet(path, labels, feature=None, images=None):
    columns = {
        "image": [
            {"bytes": image, "path": None} for image in images or [encoded(picture(i)) for i in range(len(labels))]
        ],
        "label": labels,
    }
    features = datasets.Features({"image": datasets.Image(), "label": feature}) if feature else None
    rows = datasets.Dataset.from_dict(columns, features=features)
    rows.to_parquet(str(path))
    return path


def write_idx(folder, prefix, images, classes, joint="-", packed=False):
    for kind, magic, array in (("images", 0x803, images), ("labels", 0x801, classes)):
        raw = struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()
        name = f"{prefix}-{kind}{joint}idx{array.ndim}-ubyte"
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)


def test_digits_have_one_fixed_stratified_split():
    data = load_images("digits")
    assert (len(data.train), len(data.test)) == (1438, 359)
    assert data.classes == tuple("0123456789")
    counts = np.bincount(labels(data.train)), np.bincount(labels(data.test))
    assert np.abs(counts[1] / (counts[0] + counts[1]) - 0.2).max() < 0.003
    held = b"".join(row["image"]["bytes"] + bytes([row["label"]]) for row in data.test)
    assert hashlib.sha256(held).hexdigest()[:16] == DIGITS_HELD_OUT
    assert labels(load_images("digits", split_seed=5, test_share=0.4).test) == labels(data.test)
    assert pixels(data.train).shape == (8, 8, 3)
    assert max(pixels(data.train, i).max() for i in range(9)) == 255


def test_split_takes_a_share_of_every_class_and_at_least_one():
    values = np.repeat([0, 1, 2, 3], [50, 20, 3, 1])
    train, test = stratified_split(values, 0.1, seed=3)
    assert np.bincount(values[test]).tolist() == [5, 2, 1]
    assert sorted([*train, *test]) == list(range(74))
    assert stratified_split(values, 0.1, seed=3)[1].tolist() == test.tolist()
    assert stratified_split(values, 0.1, seed=4)[1].tolist() != test.tolist()


def test_class_folders_are_split_reproducibly(tmp_path):
    root = write_classes(tmp_path / "set", {"cat": 10, "dog": 20, ".hidden": 1})
    (root / "cat" / "notes.txt").write_text("not an image")
    data = load_images(str(root))
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.test)) == (27, 3)
    paths = [row["image"]["path"] for row in data.test]
    assert [row["image"]["path"] for row in load_images(str(root)).test] == paths
    assert [row["image"]["path"] for row in load_images(str(root), split_seed=1).test] != paths
    assert all(data.classes[row["label"]] in row["image"]["path"] for row in data.train)


@pytest.mark.parametrize("held", ["test", "val", "validation"])
def test_class_folders_with_splits(tmp_path, held):
    write_classes(tmp_path / "set" / "train", {"cat": 4, "dog": 5})
    write_classes(tmp_path / "set" / held, {"dog": 2})
    data = load_images(str(tmp_path / "set"))
    assert (labels(data.train), labels(data.test)) == ([0] * 4 + [1] * 5, [1, 1])


def test_a_class_may_be_called_train(tmp_path):
    data = load_images(str(write_classes(tmp_path / "set", {"bus": 4, "train": 4})))
    assert data.classes == ("bus", "train")


def test_parquet_keeps_class_names(tmp_path):
    feature = datasets.ClassLabel(names=["x", "y", "z"])
    (tmp_path / "set").mkdir()
    write_parquet(tmp_path / "set" / "train-00000-of-00001.parquet", [0, 1, 2, 0, 1, 2], feature)
    write_parquet(tmp_path / "set" / "test.parquet", [2, 0], feature)
    data = load_images(str(tmp_path / "set"))
    assert (data.classes, labels(data.train), labels(data.test)) == (("x", "y", "z"), [0, 1, 2, 0, 1, 2], [2, 0])
    assert (pixels(data.train) == np.asarray(picture(0))).all()


def test_one_parquet_file_with_bare_labels_is_split(tmp_path):
    data = load_images(str(write_parquet(tmp_path / "all.parquet", [30, 7] * 10)))
    assert data.classes == ("7", "30")
    assert sorted(labels(data.train) + labels(data.test)) == [0] * 10 + [1] * 10
    assert sorted(labels(data.test)) == [0, 1]
    strings = load_images(str(write_parquet(tmp_path / "words.parquet", ["wolf", "ant"] * 10)), test_share=0.5)
    assert (strings.classes, len(strings.test)) == (("ant", "wolf"), 10)


def test_every_row_can_be_a_test_row(tmp_path):
    data = load_images(str(write_parquet(tmp_path / "all.parquet", [0, 1, 2])), test_share=1)
    assert (len(data.train), labels(data.test)) == (0, [0, 1, 2])


def test_other_column_names_and_pixel_lists(tmp_path):
    rows = datasets.Dataset.from_dict(
        {"picture": np.full((4, 3, 5), 9).tolist(), "kind": ["b", "a", "b", "a"], "n": range(4)}
    )
    rows.to_parquet(str(tmp_path / "rows.parquet"))
    data = load_images(str(tmp_path / "rows.parquet"), image_column="picture", label_column="kind", test_share=0.5)
    assert data.train.column_names == ["picture", "kind"]
    assert np.asarray(decode_image(data.train[0]["picture"], 1)).tolist() == [[9] * 5] * 3


def test_arrow_file_and_saved_datasets(tmp_path):
    rows = datasets.Dataset.from_dict({"img": [encoded(picture(i)) for i in range(6)], "label": ["a", "b"] * 3})
    rows.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict(train=rows, test=rows.select([0, 1])).save_to_disk(str(tmp_path / "both"))
    assert load_images(str(tmp_path / "saved")).classes == ("a", "b")
    data = load_images(str(tmp_path / "both"))
    assert (len(data.train), len(data.test)) == (6, 2)
    assert (pixels(data.train.rename_column("img", "image"), 3) == np.asarray(picture(3))).all()
    arrow = next((tmp_path / "saved").glob("*.arrow"))
    assert len(load_images(str(arrow)).test) == 2


@pytest.mark.parametrize(("joint", "packed"), [("-", True), ("-", False), (".", False)])
def test_idx_files(tmp_path, joint, packed):
    images = np.random.RandomState(0).randint(0, 256, (20, 7, 5), dtype=np.uint8)
    classes = np.arange(20, dtype=np.uint8) % 10
    write_idx(tmp_path, "train", images, classes, joint, packed)
    write_idx(tmp_path, "t10k", images[:3], classes[:3], joint, packed)
    data = load_images("fashion-mnist", path=tmp_path)
    assert (len(data.train), len(data.test)) == (20, 3)
    assert (data.classes[0], data.classes[9]) == ("T-shirt/top", "Ankle boot")
    assert (np.asarray(decode_image(data.train[13]["image"], 1)) == images[13]).all()
    assert load_images(str(tmp_path)).classes == tuple("0123456789")


def test_known_classes_make_bare_labels_indices(tmp_path):
    data = load_images("imagenet-1k", path=write_parquet(tmp_path / "some.parquet", [3, 999]), test_share=1)
    assert (labels(data.test), len(data.classes)) == ([3, 999], 1000)


def test_names():
    assert dataset_names() == sorted(
        ["digits", "fashion-mnist", "cifar10", "cifar100", "flowers102", "oxford-pets", "imagenet-1k", "imagenet-21k"]
    )


@pytest.mark.parametrize("kind", ["folders", "names", "integers", "strings"])
def test_streams_are_split_by_image(tmp_path, kind):
    values = {"names": [0, 1], "integers": [5, 9], "strings": ["a", "b"]}
    if kind == "folders":
        path = write_classes(tmp_path / "set", {"a": 30, "b": 30})
    else:
        feature = datasets.ClassLabel(names=["a", "b"]) if kind == "names" else None
        path = write_parquet(tmp_path / "rows.parquet", values[kind] * 30, feature)
    data = load_images(str(path), streaming=True, test_share=0.3)
    train, test = list(data.train), list(data.test)
    assert data.streaming
    assert len(train) + len(test) == 60
    assert 8 <= len(test) <= 28  # 18 expected, deviation 3.5
    assert {row["label"] for row in train} == {row["label"] for row in test} == {0, 1}
    assert list(load_images(str(path), streaming=True, test_share=0.3).test) == test
    assert list(load_images(str(path), streaming=True, test_share=0.3, split_seed=1).test) != test
    assert len(data.classes) == 2


@pytest.mark.parametrize("streaming", [False, True])
def test_known_names_ask_the_hub_for_their_splits_and_columns(monkeypatch, streaming):
    asked = []
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "coarse_label": datasets.ClassLabel(names=["p", "q"]),
            "fine_label": datasets.ClassLabel(names=["a", "b", "c"]),
        }
    )
    columns = {"img": [encoded(picture(i)) for i in range(6)], "coarse_label": [0] * 6, "fine_label": [0, 1, 2] * 2}

    def hub(name, split, streaming):
        asked.append((name, split))
        rows = datasets.Dataset.from_dict(columns, features=features)
        return rows.to_iterable_dataset() if streaming else rows

    monkeypatch.setattr(datasets, "load_dataset", hub)
    data = load_images("cifar100", streaming=streaming)
    assert asked == [("uoft-cs/cifar100", "train"), ("uoft-cs/cifar100", "test")]
    assert (data.image_column, data.label_column, data.classes) == ("img", "fine_label", ("a", "b", "c"))
    assert [row["fine_label"] for row in data.test] == [0, 1, 2] * 2
    assert isinstance(next(iter(data.train))["img"]["bytes"], bytes)
