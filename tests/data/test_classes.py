"""Classes: samples balanced over them, and the match of the classes of data with those of a model, by name."""

import json
import logging

import numpy as np
import pytest

from codingrate.data import balanced_indices, load_images, load_sentences
from codingrate.data.classes import match_classes
from tests.refusals import refused

from .conftest import write_classes
from .test_text import write_table

MODEL = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


@pytest.mark.parametrize("seed", range(5))
def test_every_beginning_of_a_sample_is_balanced(seed):
    draw = np.random.RandomState(seed)
    labels = draw.permutation(np.repeat(draw.permutation(11)[:5], [1, 2, 5, 19, 73]))
    rows = balanced_indices(labels, 1000, seed)
    assert sorted(rows) == list(range(100)), "every row once"
    values, total = np.unique(labels, return_counts=True)
    for count in range(101):
        sample = balanced_indices(labels, count, seed)
        assert sample == rows[:count]
        counts = (labels[sample] == values[:, None]).sum(1)
        assert (counts >= np.minimum(total, counts.max() - 1)).all(), "classes take turns as long as they have rows"


def test_a_sample_is_drawn_from_its_seed():
    labels = np.arange(60) // 20
    assert balanced_indices(labels, 30) == balanced_indices(labels, 30, seed=0)
    assert balanced_indices(labels, 30) != balanced_indices(labels, 30, seed=1)
    assert sorted(balanced_indices(labels, 30)) != [row for row in range(60) if row % 20 < 10], "not the first rows"
    names = np.array(["a", "b", "c"])[labels]
    assert balanced_indices(names, 30) == balanced_indices(labels, 30) == balanced_indices(2 - labels, 30)
    assert sorted(balanced_indices(np.zeros(60), 30)) != list(range(30))
    assert balanced_indices(labels[:0], 30) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_class_is_matched_by_its_name(seed):
    """Whatever the order, and also if the data have only some of the model's classes."""
    draw = np.random.RandomState(seed)
    classes = draw.permutation(MODEL)[: 1 + draw.randint(len(MODEL))].tolist()
    assert [MODEL[index] for index in match_classes("data", classes, MODEL)] == classes
    others = [f"not a {name}" if index % 2 else name for index, name in enumerate(classes)]
    labels = dict(zip(others, classes, strict=True))
    assert [MODEL[index] for index in match_classes("data", others, MODEL, labels)] == classes


def test_a_map_is_a_mapping_pairs_or_a_file(tmp_path):
    file = tmp_path / "labels.json"
    file.write_text(json.dumps({"kitten": "cat", "puppy": 3}))
    for labels in ({"kitten": "cat", "puppy": 3}, "kitten=cat, puppy = 3", str(file), file):
        assert match_classes("data", ["puppy", "gnu", "kitten"], MODEL, labels) == [3, 6, 2]
    assert match_classes("data", ["cat", "kitten"], MODEL, "kitten=cat") == [2, 2], "two classes may be one"
    assert match_classes("data", ["cat", "dog"], MODEL, "cat=dog,dog=cat") == [3, 2]


def test_only_classes_that_occur_need_a_match():
    assert match_classes("data", ["yak", "dog", "zebra"], MODEL, present=[1]) == [-1, 3, -1]
    assert match_classes("data", ["yak"], MODEL, present=[]) == [-1]
    refused("classes that the model does not know: zebra;", match_classes, "data", ["yak", "zebra"], MODEL, None, [1])


def test_labels_without_names_are_the_indices_of_the_model(caplog):
    with caplog.at_level(logging.INFO, "codingrate"):
        assert match_classes("data", ["3", "6"], MODEL) == [3, 6]
    assert "are numbers without names; they are taken as the model's class indices" in caplog.text
    assert match_classes("data", ["10", "2"], [str(name) for name in range(1, 12)]) == [9, 1], "names come first"
    message = "data has classes that the model does not know: 0;"
    refused(message, match_classes, "data", ["0", "1", "2"], ["1", "2", "3"])


def test_a_model_without_names_takes_the_classes_in_order(caplog):
    with caplog.at_level(logging.INFO, "codingrate"):
        assert match_classes("data", ["x", "y"], ["LABEL_0", "LABEL_1"]) == [0, 1]
    assert "the model has no class names; its 2 outputs are taken as the classes of data in order" in caplog.text
    refused("does not know: x, y;", match_classes, "data", ["x", "y"], ["LABEL_0", "LABEL_1", "LABEL_2"])


@pytest.mark.parametrize(
    ("classes", "labels", "message"),
    [
        (
            ["yak", "dog"],
            None,
            "does not know: yak; the model's are ant, bee, cat, … (7); map them with `labels='yak=ant",
        ),
        (["yak"], "yak=ox", "does not know: ox;"),
        (["yak"], "yak=7", "does not know: 7;"),
        (["yak", "7"], None, "does not know: yak, 7;"),
        (["dog"], "dg=dog", "unknown class of data in `labels` 'dg'; did you mean 'dog'?"),
        (["dog"], "dog", "`labels='dog'`: give a JSON file, or pairs such as cat=tabby,dog=beagle"),
        (["dog"], "dog=,", "give a JSON file, or pairs"),
        (["dog"], "missing.json", "`labels='missing.json'`: cannot read the file (No such file or directory)"),
    ],
)
def test_a_bad_match_is_refused(classes, labels, message):
    refused(message, match_classes, "data", classes, MODEL, labels)


@pytest.mark.parametrize("text", ["{", "[1]", '{"cat": [1]}', ""])
def test_a_bad_file_is_refused(tmp_path, text):
    file = tmp_path / "labels.json"
    file.write_text(text)
    refused(f"`labels={str(file)!r}`: must hold", match_classes, "data", ["cat"], MODEL, file)


@pytest.mark.parametrize("streaming", [False, True])
def test_images_get_the_classes_of_a_model(tmp_path, streaming):
    root = str(write_classes(tmp_path / "set", {"dog": 2, "ant": 3}))
    data = load_images(root, test_share=1, streaming=streaming).with_classes("test", MODEL)
    assert (data.classes, [row["label"] for row in data.test]) == (MODEL, [0, 0, 0, 3, 3])
    mapped = load_images(root, test_share=1, streaming=streaming).with_classes("all", MODEL, {"dog": "gnu"})
    assert [row["label"] for row in mapped.split("all")] == [0, 0, 0, 6, 6]


def test_only_classes_of_the_measured_split_need_a_match(tmp_path):
    write_classes(tmp_path / "set" / "train", {"dog": 2, "yak": 1})
    write_classes(tmp_path / "set" / "test", {"dog": 4})
    data = load_images(str(tmp_path / "set"), test_share=1)
    matched = data.with_classes("test", MODEL)
    assert (list(matched.test["label"]), list(matched.train["label"])) == ([3] * 4, [3, 3, -1])
    for split in ("train", "all"):
        refused("does not know: yak;", data.with_classes, split, MODEL)


def test_sentences_get_the_classes_of_a_model(tmp_path):
    for split, labels in (("train", ["yak", "dog"]), ("dev", ["dog", "ant"]), ("test", ["ant", "ant"])):
        write_table(tmp_path / f"{split}.jsonl", {"text": ["a", "b"], "label": labels})
    data = load_sentences(str(tmp_path), validation_share=1)
    assert (data.classes, data.total) == (("ant", "dog", "yak"), 6)
    matched = data.with_classes("validation", MODEL)
    assert (matched.classes, list(matched.split("validation")["label"])) == (MODEL, [3, 0])
    assert list(data.with_classes("all", MODEL, "yak=gnu").split("all")["label"]) == [6, 3, 3, 0, 0, 0]
    refused("does not know: yak;", data.with_classes, "all", MODEL)
    numbers = load_sentences(
        str(write_table(tmp_path / "n.jsonl", {"text": ["a"], "label": [0.5]})), validation_share=1
    )
    assert numbers.with_classes("validation", MODEL) is numbers
