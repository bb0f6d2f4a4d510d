"""The training stream is shuffled by its seed and anew in each epoch, and divided among processes."""

from __future__ import annotations

import pytest

from codingrate.data import Augment, load_images, torch_dataset

from .conftest import write_classes

AUGMENT = Augment(image_size=8, flip=0.0)


@pytest.fixture
def stream(tmp_path):
    write_classes(tmp_path / "set" / "train", {"a": 20, "b": 20})
    write_classes(tmp_path / "set" / "test", {"a": 3, "b": 3}, start=40)
    return load_images(str(tmp_path / "set"), streaming=True)


def order(stream, *, train=True, seed=0, epoch=0, **options):
    """Return the labels of a stream in the order in which they come."""
    dataset = torch_dataset(stream, AUGMENT, train=train, seed=seed, **options)
    dataset.set_epoch(epoch)
    return [int(example["label"]) for example in dataset]


def test_training_is_shuffled_and_evaluation_is_not(stream):
    files = order(stream, shuffle_buffer=1)
    assert files == [0] * 20 + [1] * 20  # class after class, as the files lie
    assert order(stream, train=False) == [0] * 3 + [1] * 3
    shuffled = order(stream)
    assert sorted(shuffled) == files
    assert shuffled != files
    assert shuffled == order(stream)
    assert shuffled != order(stream, seed=1)
    assert shuffled != order(stream, epoch=1)
