"""What cannot be measured is refused in one line that says why."""

import dataclasses

import pytest
import torch

from codingrate.data import Augment, load_images
from codingrate.errors import CrateError
from codingrate.evaluation import classify

from .conftest import GREY, Fixed, Linear, tiny


def refused(match, model, data, augment=GREY, **kwargs):
    with pytest.raises(CrateError, match=match) as caught:
        classify(model, data, augment, **kwargs)
    assert "\n" not in str(caught.value)


def test_models_that_do_not_fit(digits):
    refused("tells 7 classes apart, but digits has 10", tiny(num_labels=7), digits)
    refused(r"no head \(num_labels=0\)", tiny(num_labels=0), digits)
    refused("augment.channels is 3, but the model reads num_channels=1", tiny(), digits, Augment(image_size=8))
    odd = dataclasses.replace(GREY, image_size=10)
    refused("image_size 10 is not divisible by the model's patch_size 4", tiny(), digits, odd)
    refused(r"gives logits \(64, 9\); expected \(64, 10\)", Linear(9), digits)
    refused("not numbers", Fixed(torch.full((359, 10), torch.nan)), digits)


def test_another_image_size_is_no_error(digits):
    assert classify(tiny(), digits, dataclasses.replace(GREY, image_size=12), limit=5).images == 5


def test_splits_that_are_not_there(digits):
    refused("unknown split 'tset'; did you mean 'test'", Linear(10), digits, split="tset")
    everything = load_images("digits", test_share=1)
    refused("the train split of digits has no images", Linear(10), everything, split="train")
    stream = load_images("digits", streaming=True)
    nothing = dataclasses.replace(stream, test=stream.test.take(0))
    refused("the test split of digits has no images", Linear(10), nothing)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"workers": -1}, {"limit": 0}])
def test_numbers_that_make_no_sense(digits, wrong):
    refused(next(iter(wrong)), Linear(10), digits, **wrong)


def test_devices_that_are_not_there(digits):
    refused("cannot use device 'gpu'", Linear(10), digits, device="gpu")
