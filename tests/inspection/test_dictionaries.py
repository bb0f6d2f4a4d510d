"""What the trained dictionaries of shipped models do to tokens, as docs/theory.md says ("Trained dictionaries")."""

import io
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import codingrate as cr
from codingrate import objective as ob
from codingrate.inspection import trace
from codingrate.models.processing import IMAGENET_MEAN, IMAGENET_STD

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(crate-[\w-]+)` \| (.+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
ROWS = {name: columns for name, *columns in ROW.findall(PAGE.partition("### Trained dictionaries")[2])}


def sample_pixels(name, count):
    table = pq.read_table(Path(cr.__file__).parent / "weights" / name / "sample.parquet", columns=["image"])
    pictures = [
        Image.open(io.BytesIO(cell["bytes"])).convert("RGB") for cell in table.slice(0, count)["image"].to_pylist()
    ]
    pixels = torch.from_numpy(np.stack([np.array(picture) for picture in pictures])).permute(0, 3, 1, 2) / 255
    return (pixels - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)


def by_layer(name):
    """Return ‖D‖, the change of norm and of R by ISTA, and the relative error of Z ≈ DX, of each encoder layer."""
    model = cr.load(name).eval()
    passed = trace(model, sample_pixels(name, 16))
    for layer in range(passed.encoder_depth):
        module, after = passed.layers[layer], passed.tokens[layer + 1]
        with torch.no_grad():
            before = module.sparsifier_norm(passed.compressed[layer])
            dictionary = module.sparsifier.dictionary
            yield (
                torch.linalg.matrix_norm(dictionary, 2).item(),
                (after.norm(dim=-1) / before.norm(dim=-1)).mean().item(),
                (ob.coding_rate(after) / ob.coding_rate(before)).mean().item(),
                ((before - after @ dictionary.mT).norm() / before.norm()).item(),
            )


@pytest.mark.parametrize("name", ["crate-cifar10", "crate-cifar10-mae", "crate-cifar10-dino"])
def test_trained_dictionaries_shorten_tokens_and_are_no_sparse_code(name):
    columns = list(zip(*by_layer(name), strict=True))
    printed = [[float(end) for end in column.split(" … ")] for column in ROWS[name]]
    for (low, high), column in zip(printed, columns, strict=True):
        assert (min(column), max(column)) == pytest.approx((low, high), abs=0.015)
    norms, gains, rates, errors = columns
    assert min(norms) > 2.5, "D*D is not near I"
    assert max(gains) < 1, "ISTA does not give back a lost norm"
    assert max(rates) < 1
    assert min(errors) > 0.8, "DX is no nearer to Z than to 0"
