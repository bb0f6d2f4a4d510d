"""scikit-learn's two photographs as data."""

import io

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from codingrate.data import Augment, sample_photographs, torch_dataset
from tests.refusals import refused


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
    grey = torch_dataset(data, Augment(image_size=19, channels=1, evaluation="resize"), train=False)
    assert grey[5]["image"].shape == (1, 19, 19)


@pytest.mark.parametrize("label", [0, 1])
def test_the_first_is_the_centre_and_the_parts_cover_all(label):
    side = 200
    data = sample_photographs(side)
    photograph = Image.fromarray(load_sample_images().images[label])
    parts = [opened(data, place).astype(float) for place in range(2 + label, 32, 2)]
    large = np.asarray(photograph.resize((round(640 * 400 / 427), 400), Image.Resampling.LANCZOS)).astype(float)
    assert np.array_equal(parts[0], large[:side, :side])
    assert np.array_equal(parts[14], large[-side:, -side:])
    assert np.array_equal(parts[5][:, 0], large[100:300, 0])
    centre = photograph.crop((106, 0, 533, 427)).resize((side, side), Image.Resampling.LANCZOS)
    assert np.abs(opened(data, label).astype(float) - np.asarray(centre)).mean() < 5


def test_no_pixels_are_refused():
    refused("`side` must be at least 1", sample_photographs, 0)
