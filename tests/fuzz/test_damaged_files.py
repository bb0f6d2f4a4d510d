"""Files of every kind with flipped, repeated and missing bytes: each is read as it is, or refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct

import datasets
import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from safetensors.torch import save

from codingrate.data import (
    Augment,
    EvaluationBatches,
    decode_image,
    load_images,
    load_sentences,
    load_text,
    load_tokenizer,
    read_image,
    read_picture,
)
from codingrate.models import load_model, load_released
from codingrate.recipes import build_recipe, load_recipe, load_study
from codingrate.recipes.files import SHIPPED
from tests.models import released_files, toys

from .outcomes import counts, fuzz_files, outcome

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # pandas after a parse error
SMALL = Augment(image_size=8)

# Images


def original(kind):
    """Return an image with an orientation, encoded."""
    pixels = np.random.RandomState(0).randint(0, 256, (24, 31, 3), dtype=np.uint8)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    options = {"exif": exif} if kind in ("PNG", "JPEG", "WEBP", "TIFF") else {}
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def read_file(folder):
    (path,) = folder.iterdir()
    for read in (read_picture, lambda path: read_image(path, SMALL)):
        outcome(read, path)
    image = decode_image(path.read_bytes())
    assert (image.mode, np.asarray(image).ndim) == ("RGB", 3)


def read_images(folder, streaming=False):
    data = load_images(str(folder), test_share=1, streaming=streaming)
    assert data.fingerprint["classes"] == list(data.classes)
    return [*EvaluationBatches(data, SMALL, max_corrupt=1)]


def idx(shape, content):
    return struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape) + content


def write_idx(folder, packed):
    end, pack = (".gz", lambda content: gzip.compress(content, mtime=0)) if packed else ("", bytes)
    (folder / f"train-images-idx3-ubyte{end}").write_bytes(pack(idx((6, 4, 5), bytes(range(120)))))
    (folder / f"train-labels-idx1-ubyte{end}").write_bytes(pack(idx((6,), bytes([0, 1, 2] * 2))))


def write_images(folder):
    images = [{"bytes": original(kind), "path": f"{kind}.png"} for kind in ("PNG", "JPEG", "GIF", "WEBP")]
    table = pyarrow.table({"image": images, "label": ["a", "b"] * 2})
    parquet.write_table(table, folder / "train.parquet", compression="none")


# Texts

ROWS = {
    "text": ["a film, seen twice", 'so "good"', "nö\ttab", "bad end", "x" * 70, "plain", "no", "yes\nbreak"],
    "label": ["pos", "neg"] * 4,
}


def write_rows(folder, suffix):
    path, table = folder / f"train{suffix}", datasets.Dataset.from_dict(ROWS)
    if suffix == ".arrow":
        table.save_to_disk(str(folder / "saved"))
        shutil.move(next((folder / "saved").glob("*.arrow")), path)
        shutil.rmtree(folder / "saved")
    elif suffix == ".json":
        path.write_text(json.dumps([dict(row) for row in table]))
    elif suffix == ".tsv":  # has no quotes
        plain = table.map(lambda row: {"text": row["text"].translate(str.maketrans('"\t\n', "   "))})
        plain.to_csv(str(path), sep="\t", index=False)
    elif suffix:
        {".parquet": table.to_parquet, ".jsonl": table.to_json, ".csv": table.to_csv}[suffix](str(path))
    else:
        table.save_to_disk(str(folder))


def read_rows(folder):
    """Open a table in every way, and read what it holds."""
    tokenizer = load_tokenizer("bytes")
    path = folder if (folder / "state.json").exists() else next(folder.iterdir())
    for read in (load_sentences, load_text):
        outcome(read, str(path))
    data = load_sentences(str(path), validation_share=1)
    assert all(0 <= label < len(data.classes) for label in data.validation["label"])
    for part in (load_text(str(path), validation_share=1), load_text(str(path), validation_share=1, streaming=True)):
        text = "".join(part.validation)
        assert len(text.encode()) >= len(tokenizer(text)["input_ids"]) - 1


def write_tokenizer(folder):
    texts = ["some text and some more text"] * 3
    load_tokenizer("bpe", texts, kind="masked", vocab_size=280).save_pretrained(folder)


# Models and recipes

SIZES = {"d": 8, "depth": 2, "side": 2, "patches": 4}
STATES = {
    "classifier": released_files.classifier(**SIZES, classes=3),
    "alpha": released_files.alpha(**SIZES, classes=3),
    "mae": released_files.mae(**SIZES, decoder=1),
}


def write_state(folder, family, kind):
    state = released_files.random_values(STATES[family])
    if kind == "safetensors":
        (folder / "file.safetensors").write_bytes(save({key: value.contiguous() for key, value in state.items()}))
    else:
        torch.save({"model": state}, folder / "file.pth", _use_new_zipfile_serialization=kind == "zip")


def load_and_run(path):
    """Load a model, and run it on one input."""
    model = load_model(path) if path.is_dir() else load_released(path, heads=2, report=lambda _: None)
    config = model.config
    if config.modality == "vision":
        assert config.num_patches * config.patch_dim < 10**6
        output = model(torch.rand(1, config.num_channels, *config.image_sides))
    else:
        output = model(torch.zeros(1, min(3, config.max_tokens), dtype=torch.long))
    assert not any(tensor.is_meta for tensor in model.state_dict().values())
    assert output[0].numel()


def read_recipe(folder):
    """Read a recipe, which survives a round trip."""
    recipe = load_recipe(str(folder / "recipe.yaml"))
    assert build_recipe(recipe.to_dict()) == recipe


FILES = {
    **{
        kind: (lambda folder, kind=kind: (folder / "a.png").write_bytes(original(kind)), read_file)
        for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000")
    },
    "idx": (lambda folder: write_idx(folder, False), read_images),
    "packed idx": (lambda folder: write_idx(folder, True), read_images),
    "images": (write_images, read_images),
    "streamed images": (write_images, lambda folder: read_images(folder, True)),
    **{
        suffix or "saved dataset": (lambda folder, suffix=suffix: write_rows(folder, suffix), read_rows)
        for suffix in (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow", "")
    },
    "tokenizer": (write_tokenizer, lambda folder: load_tokenizer(str(folder))("some text")),
    **{
        f"released {family}, {kind}": (
            lambda folder, family=family, kind=kind: write_state(folder, family, kind),
            lambda folder: load_and_run(next(folder.iterdir())),
        )
        for family in STATES
        for kind in ("zip", "legacy", "safetensors")
    },
    "model": (lambda folder: toys.build("causal-lm").save_pretrained(folder), load_and_run),
    **{
        f"recipe {name}": (
            lambda folder, name=name: shutil.copy(SHIPPED / f"{name}.yaml", folder / "recipe.yaml"),
            read_recipe,
        )
        for name in ("digits-dino", "finetune-cifar10", "glue")
    },
    "study": (
        lambda folder: shutil.copy(SHIPPED / "studies" / "cifar10-architecture.yaml", folder / "study.yaml"),
        lambda folder: load_study(str(folder / "study.yaml")),
    ),
}
"""How each kind of file is written into an empty folder, and how that folder is read."""


@counts(8, 120)
@pytest.mark.parametrize("kind", FILES)
def test_damaged_files(kind, count, tmp_path):
    write, read = FILES[kind]
    (tmp_path / "files").mkdir()
    write(tmp_path / "files")
    fuzz_files(count, tmp_path / "files", read)
