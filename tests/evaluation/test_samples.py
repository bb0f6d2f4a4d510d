"""Evaluation crops batch by batch."""

import torch
from torch import nn

from codingrate.data import Augment, load_images
from codingrate.evaluation import image_batches
from tests.data.conftest import write_classes
from tests.refusals import refused

AUGMENT = Augment(image_size=8, channels=1, crop="resize")


def model():
    return nn.Linear(2, 3).double()


def test_batches_are_in_order_normalised_and_in_the_precision_of_the_model():
    data, heard = load_images("digits"), []
    found = list(image_batches(model(), data, AUGMENT, batch_size=150, progress=heard.append))
    assert [len(batch) for batch in found] == heard == [150, 150, 59]
    assert all(batch.dtype == torch.float64 for batch in found)
    raw = torch.frombuffer(bytearray(data.test[151]["image"]["bytes"][-64:]), dtype=torch.uint8).view(8, 8)
    assert torch.allclose(found[1][1, 0], raw.double() / 127.5 - 1, atol=1e-6)
    assert sum(map(len, image_batches(model(), data, AUGMENT, split="train", limit=7))) == 7


def test_unreadable_images_are_named_and_too_many_refused(tmp_path):
    root = write_classes(tmp_path, {"a": 6, "b": 5})
    (root / "b" / "001.png").write_bytes(b"no image")
    data, names = load_images(str(root), test_share=1), ["of another pass"]
    options = {"batch_size": 1, "unreadable": names, "max_corrupt": 0.1}
    found = list(image_batches(model(), data, AUGMENT, **options))
    assert sum(map(len, found)) == len(found) == 10
    assert len(names) == 2
    refused("1 of 11 images cannot be read", list, image_batches(model(), data, AUGMENT))
    refused("has no images", list, image_batches(model(), data, AUGMENT, split="train"))
    stream = load_images(str(root), streaming=True, test_share=1)
    assert sum(map(len, image_batches(model(), stream, AUGMENT, limit=4, max_corrupt=1))) in (3, 4)
