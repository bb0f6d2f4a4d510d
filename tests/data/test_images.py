"""Every way to name a dataset of images, its splits and classes, and what a user can get wrong."""

import gzip
import hashlib
import io
import re
import struct

import datasets
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from codingrate.data import Augment, dataset_names, decode_image, load_images, sample_photographs, torch_dataset
from codingrate.data.columns import stratified_split
from codingrate.errors import CrateError

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

    def hub(name, split, streaming, revision):
        assert revision is None
        asked.append((name, split))
        rows = datasets.Dataset.from_dict(columns, features=features)
        return rows.to_iterable_dataset() if streaming else rows

    monkeypatch.setattr(datasets, "load_dataset", hub)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)
    data = load_images("cifar100", streaming=streaming)
    assert asked == [("uoft-cs/cifar100", "train"), ("uoft-cs/cifar100", "test")]
    assert (data.column, data.label_column, data.classes) == ("img", "fine_label", ("a", "b", "c"))
    assert [row["fine_label"] for row in data.test] == [0, 1, 2] * 2
    assert isinstance(next(iter(data.train))["img"]["bytes"], bytes)


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
    for streaming in (False, True):
        message = refused(str(tmp_path / "set"), streaming=streaming)
        assert f"the test split of {tmp_path / 'set'} has class 'eel', but the training classes are cat, dog" in message
    held = load_images(str(tmp_path / "set"), test_share=1)
    assert (held.classes, labels(held.test)) == (("cat", "dog", "eel"), [0, 0, 2, 2]), "data that are only measured"


@pytest.mark.parametrize("held", ["test", "val"])
def test_held_out_folders_are_measured_in_full_but_not_trained_on(tmp_path, held):
    root = str(write_classes(tmp_path / "set" / held, {"cat": 4}).parent)
    assert "has no training split, only" in refused(root)
    for streaming in (False, True):
        data = load_images(root, test_share=1, streaming=streaming)
        assert (data.classes, [row["label"] for row in data.test], [*data.train]) == (("cat",), [0] * 4, [])


def test_all_is_every_split(tmp_path):
    for split, count in (("train", 5), ("val", 3), ("test", 2)):
        write_classes(tmp_path / "set" / split, {"cat": count, "dog": count})
    data = load_images(str(tmp_path / "set"))
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 10, "test": 4, "validation": 6}
    assert (data.total, len(data.split("all"))) == (20, 20)
    with pytest.raises(CrateError, match="unknown split 'vaild'; did you mean 'validation'"):
        data.split("vaild")


def test_labels_out_of_range(tmp_path):
    assert "label -2 in column 'label'; labels must not be negative" in refused(
        str(write_parquet(tmp_path / "a.parquet", [0, 1, -2]))
    )
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
    assert "has class 'd', but the training classes are a, b, c" in refused(str(tmp_path / "c"))
    (tmp_path / "d").mkdir()
    write_parquet(tmp_path / "d" / "train.parquet", ["x", "y"])
    write_parquet(tmp_path / "d" / "test.parquet", ["z"])
    assert "label 'z' in column 'label', which does not occur in training" in refused(str(tmp_path / "d"))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, 1.5], "has label 0.5 in column 'label', of type float; use integers or strings"),
        ([0, 1, None], "has rows without a label in column 'label'"),
        ([0, 1, -1], "has label -1 in column 'label', which means unlabeled"),
    ],
)
def test_labels_of_the_wrong_kind(tmp_path, values, message, streaming):
    assert message in refused(str(write_parquet(tmp_path / "a.parquet", values)), streaming=streaming)


def test_a_class_with_a_single_row_cannot_be_held_out(tmp_path):
    assert "too few rows to hold one out of a class" in refused(str(write_parquet(tmp_path / "c.parquet", [0, 1, 2])))


def test_missing_columns(tmp_path):
    path = str(tmp_path / "a.parquet")
    datasets.Dataset.from_dict({"picture": [encoded(picture(0))], "kind": [1]}).to_parquet(path)
    assert "no image column; set data.image_column to one of: picture, kind" in refused(path)
    assert "no label column; set data.label_column to one of" in refused(path, image_column="picture")
    assert "no image column 'img'; set data.image_column to one of: picture, kind" in refused(path, image_column="img")


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


def test_bad_idx_files(tmp_path):
    images, classes = np.zeros((4, 3, 3), np.uint8), np.array([0, 1, 0, 1], np.uint8)
    write_idx(tmp_path, "train", images, classes)
    file = tmp_path / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for raw, words in (
        (whole[:-1], "it has fewer bytes than its header declares"),
        (whole + b"x", "it has more bytes than its header declares"),
        (whole[:9], "requires a buffer of 16 bytes"),
        (struct.pack(">I", 0x801) + whole[4:], "magic number 0x00000801, expected 0x00000803"),
        (
            whole[:4] + struct.pack(">III", 2**31, 2**31, 3),
            "declares 2147483648 × 2147483648 × 3 bytes",
        ),
        (whole[:4] + struct.pack(">III", 2**31, 0, 0), "declares 2147483648 × 0 × 0 bytes, the file has 16"),
        (b"", "download it again"),
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
    assert "has no training split, only test" in refused(str(tmp_path))
    assert labels(load_images(str(tmp_path), test_share=1).test) == [0, 1, 0, 1]
    for name in tmp_path.glob("t10k-*"):
        name.rename(tmp_path / f"some-{name.name}")
    assert "has no train-images-idx3-ubyte[.gz] and no t10k-images" in refused(str(tmp_path))


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
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)
    assert "has no class names" in refused("someone/something", streaming=True)


def opened(data, place):
    return np.asarray(Image.open(io.BytesIO(data.test[place]["image"]["bytes"])))


def test_both_in_turn_in_the_size_asked_for():
    data = sample_photographs(19)
    assert (len(data.train), len(data.test)) == (0, 32)
    assert data.test["label"] == [0, 1] * 16
    for place in range(32):
        assert opened(data, place).shape == (19, 19, 3)
    rows = torch_dataset(data, Augment(image_size=19, evaluation="resize"), train=False)
    assert np.array_equal(rows[5]["image"].permute(1, 2, 0).numpy(), opened(data, 5))
    gray = torch_dataset(data, Augment(image_size=19, channels=1, evaluation="resize"), train=False)
    assert gray[5]["image"].shape == (1, 19, 19)


@pytest.mark.parametrize("label", [0, 1])
def test_the_first_is_the_center_and_the_parts_cover_all(label):
    side = 200
    data = sample_photographs(side)
    photograph = Image.fromarray(load_sample_images().images[label])
    parts = [opened(data, place).astype(float) for place in range(2 + label, 32, 2)]
    large = np.asarray(photograph.resize((round(640 * 400 / 427), 400), Image.Resampling.LANCZOS)).astype(float)
    assert np.array_equal(parts[0], large[:side, :side])
    assert np.array_equal(parts[14], large[-side:, -side:])
    assert np.array_equal(parts[5][:, 0], large[100:300, 0])
    center = photograph.crop((106, 0, 533, 427)).resize((side, side), Image.Resampling.LANCZOS)
    assert np.abs(opened(data, label).astype(float) - np.asarray(center)).mean() < 5
