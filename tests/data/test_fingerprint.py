"""Fingerprints: equal for equal data wherever they are, different for any change, which is then named."""

import json
import os
import shutil

import numpy as np
import pytest

from codingrate.data import fingerprint, load_images, load_sentences, load_text
from codingrate.data.fingerprint import describe_change

from .conftest import picture, write_classes


def images(root):
    return load_images(str(root), test_share=0.5).fingerprint


def test_plain_values_that_a_copy_shares(tmp_path):
    first = images(write_classes(tmp_path / "a", {"cat": 4, "dog": 4}))
    assert json.loads(json.dumps(first)) == first
    assert first["classes"] == ["cat", "dog"]
    assert [(name, part["rows"], part["complete"]) for name, part in first["splits"].items()] == [
        ("train", 4, True),
        ("test", 4, True),
    ]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for file in (tmp_path / "b").rglob("*.png"):
        os.utime(file, (1, 1))
    assert describe_change(first, images(tmp_path / "b")) is None


def change_pixels(root):
    for file in root.rglob("*.png"):
        content = bytearray(file.read_bytes())
        content[-20] ^= 1  # the same size
        file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "cat").rename(root / "lion"), "class 'cat' is now called 'lion'"),
        (lambda root: write_classes(root, {"emu": 4}), "classes added: emu"),
        (lambda root: shutil.rmtree(root / "cat"), "classes removed: cat"),
        (lambda root: picture(9).save(root / "cat" / "9.png"), "the train split had 6 rows and has 7"),
        (change_pixels, "the content of the train split changed"),
        (
            lambda root: (root / "cat" / "003.png").replace(root / "dog" / "9.png"),
            "the labels of the train split changed",
        ),
    ],
)
@pytest.mark.parametrize("budget", [2**28, 100])
def test_every_change_is_named(tmp_path, monkeypatch, change, message, budget):
    monkeypatch.setattr(fingerprint, "BUDGET", budget)
    root = write_classes(tmp_path / "a", {"bee": 4, "cat": 4, "dog": 4})
    before = images(root)
    assert before["splits"]["train"]["complete"] is (budget > 100)
    change(root)
    assert describe_change(before, images(root)) == message
    assert describe_change(images(root), images(root)) is None


def test_streams_by_their_first_rows(tmp_path):
    root = write_classes(tmp_path / "a", {"cat": 4, "dog": 4})
    before = load_images(str(root), streaming=True).fingerprint
    assert load_images(str(root), streaming=True).fingerprint == before
    change_pixels(root)
    change = describe_change(before, load_images(str(root), streaming=True).fingerprint)
    assert change == "the content of the train split changed"


def test_built_in_data_and_arrays():
    one, two = load_images("digits"), load_images("digits", test_share=1)
    assert describe_change(one.fingerprint, load_images("digits").fingerprint) is None
    assert describe_change(one.fingerprint, two.fingerprint) == "the train split had 1,438 rows and has 0"
    assert len(load_text("pydoc").fingerprint["splits"]["train"]["content"]) == 64


def test_texts(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"

    def now(text, **options):
        file.write_text(text)
        return load_text(str(file), **options).fingerprint

    before = now("one line\n" * 100)
    assert now("one line\n" * 100) == before
    assert describe_change(before, now("one lime\n" * 100)) == "the content of the train split changed"
    lines = {"separate": "line", "validation_share": 0.5}
    change = describe_change(now("one line\n" * 100, **lines), now("one line\n" * 200, **lines))
    assert change == "the train split had 50 rows and has 100"
    monkeypatch.setattr(fingerprint, "BUDGET", 50)
    before = now("one line\n" * 1000)
    assert before["splits"]["train"]["complete"] is False
    assert describe_change(before, now("one line\n" * 1001)) == "the content of the train split changed"


@pytest.mark.parametrize("label", [[0, 1] * 4, np.linspace(0, 1, 8).tolist()])
def test_sentences(tmp_path, label):
    file = tmp_path / "a.jsonl"

    def now(texts, labels):
        rows = ({"sentence": text, "label": one} for text, one in zip(texts, labels, strict=True))
        file.write_text("\n".join(map(json.dumps, rows)))
        return load_sentences(str(file), validation_share=1).fingerprint

    before = now("abcdefgh", label)
    assert now("abcdefgh", label) == before
    assert describe_change(before, now("abcdefgx", label)) == "the content of the validation split changed"
    assert describe_change(before, now("abcdefgh", label[::-1])) == "the labels of the validation split changed"


def test_other_fingerprints_are_told_too():
    splits = {"train": {"rows": 3, "labels": 1, "content": "a"}}
    assert describe_change({}, {}) is None
    assert describe_change({"classes": ["a", "b"]}, {"classes": ["b", "a"]}) == "the order of the classes changed"
    assert describe_change({"splits": {}}, {"splits": splits}) == "the splits were none and are train"
    unknown = {"train": {"rows": None}}
    message = "the train split had 3 rows and has an unknown number of rows"
    assert describe_change({"splits": splits}, {"splits": unknown}) == message
