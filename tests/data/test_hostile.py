"""Files that are made to do harm: programs inside images, bombs, loops, pipes and names that nothing can hold."""

import gzip
import os
import signal
import struct
import zlib

import datasets
import numpy as np
import pyarrow
import pytest
from PIL import EpsImagePlugin, Image
from pyarrow import parquet
from torch.utils.data import DataLoader

from codingrate.data import (
    Augment,
    EvaluationBatches,
    TextDocuments,
    UnreadableImageError,
    decode_image,
    load_coco,
    load_images,
    load_sentences,
    load_text,
    load_tokenizer,
    load_voc,
    pack_text,
    read_image,
    read_picture,
    sources,
)
from codingrate.data.columns import select_undecoded
from codingrate.data.image_batches import load_batches
from codingrate.errors import CrateError

from ..refusals import refused
from .conftest import encoded, picture, write_classes

SMALL = Augment(image_size=8)
EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 20 20
%%EndComments
(OUTPUT) (w) file closefile
showpage
%%EOF
"""


def as_eps(tmp_path):
    return EPS.replace(b"OUTPUT", os.fsencode(tmp_path / "created"))


def test_postscript_is_never_run(tmp_path, monkeypatch):
    run = []

    def ghostscript(*args, **kwargs):
        run.append(args)
        return Image.new("RGB", (20, 20)).im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    for name in ("cat", "dog"):
        write_classes(tmp_path / "data", {name: 2})
    eps = tmp_path / "data" / "cat" / "a.png"
    eps.write_bytes(as_eps(tmp_path))
    Image.init()
    for value in (eps.read_bytes(), str(eps), eps, {"bytes": eps.read_bytes(), "path": None}):
        with pytest.raises(UnreadableImageError):
            decode_image(value)
    refused("is not an image that can be read", read_picture, eps)
    refused("is not an image that can be read", read_image, eps, SMALL)
    with Image.open(eps) as opened:
        refused("images in the format EPS are not read", read_image, opened, SMALL)
    batches = EvaluationBatches(load_images(str(tmp_path / "data"), test_share=1), SMALL, max_corrupt=0.5)
    assert sum(len(labels) for _, labels in batches) == 4
    assert batches.corrupt == (str(eps),)
    assert run == []
    assert not (tmp_path / "created").exists()


def test_images_in_lists_are_not_opened_by_another_library(tmp_path):
    eps = {"bytes": as_eps(tmp_path), "path": None}
    for feature, value in ((datasets.List(datasets.Image()), [eps]), ({"a": datasets.Image()}, {"a": eps})):
        features = datasets.Features({"image": feature, "label": datasets.Value("int64")})
        dataset = datasets.Dataset.from_dict({"image": [value], "label": [0]}, features=features)
        refused("column 'image' must hold one image per row", select_undecoded, dataset, "image", "label")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Image()})
    dataset = datasets.Dataset.from_dict({"image": [eps], "label": [eps]}, features=features)
    refused("column 'label' must hold a label per row", select_undecoded, dataset, "image", "label")


def png(*chunks):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in (*chunks, (b"IEND", b"")))


def test_image_bombs_are_unreadable():
    size = struct.pack(">IIBBBBB", 9, 9, 8, 0, 0, 0, 0)
    text = b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8))
    huge = struct.pack(">IIBBBBB", 10**6, 10**6, 8, 0, 0, 0, 0)
    screen = b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
    for content in (png((b"IHDR", huge)), png((b"IHDR", size), *[text] * 9), screen):
        with pytest.raises(UnreadableImageError):
            decode_image(content)
    with pytest.raises(UnreadableImageError, match="0 × 3 pixels"):
        decode_image(Image.new("RGB", (0, 3)))
    with pytest.raises(UnreadableImageError, match="262144 × 1 pixels"):
        decode_image(Image.new("L", (2**18, 1)))


@pytest.mark.parametrize("size", [(2, 65535), (65535, 2)])
def test_thin_images_are_cropped_before_they_are_enlarged(size):
    pixels = read_image(Image.new("L", size, 9), Augment(image_size=32, channels=1))
    assert pixels.shape == (1, 32, 32)
    assert (pixels == 9).all()


def test_links_in_a_circle_and_pipes(tmp_path):
    write_classes(tmp_path, {"cat": 2, "dog": 3})
    for number in range(3):
        (tmp_path / "cat" / f"again{number}").symlink_to(tmp_path / "cat", target_is_directory=True)
    assert load_images(str(tmp_path), test_share=1).total == 5
    pipe = tmp_path / "dog" / "pipe.png"
    os.mkfifo(pipe)
    refused("pipe.png is not a regular file", load_images, str(tmp_path))
    with pytest.raises(UnreadableImageError, match="no such file"):
        decode_image({"bytes": None, "path": str(pipe)})


@pytest.mark.parametrize("inside", [b"caf\xe9", b"cat/caf\xe9.png", b"cat/caf\xe9/a.png"])
def test_names_that_are_not_utf8(tmp_path, inside):
    root = tmp_path / "data"
    write_classes(root, {"cat": 2, "dog": 2})
    path = os.path.join(os.fsencode(root), inside)
    os.makedirs(os.path.dirname(path) if inside.endswith(b"png") else path, exist_ok=True)
    if inside.endswith(b"png"):
        with open(path, "wb") as file:
            file.write(encoded(picture(0)))
    refused("is not UTF-8; rename the file or folder", load_images, str(root))
    with open(os.path.join(os.fsencode(root), b"t\xe9xt.txt"), "wb") as file:
        file.write(b"some text")
    for load in (load_images, load_text, load_sentences):
        refused("is not UTF-8; rename", load, os.fsdecode(os.path.join(os.fsencode(root), b"t\xe9xt.txt")))
    refused("is not UTF-8; rename", load_text, str(root))


@pytest.mark.parametrize("load", [load_images, load_text, load_sentences])
def test_arguments_of_any_type(load, tmp_path):
    for name in (5, None, ["a"], {"a": 1}):
        refused(f"{load.__name__}: name is {name!r}; it must be a valid string", load, name)
    refused("split_seed is -1", load, "x", split_seed=-1)
    refused("split_seed is 4294967296", load, "x", split_seed=2**32)
    refused("no such file or folder", load, "~nobody-has-this-name/x")
    refused("no such file or folder", load, "./" + "a" * 5000)
    refused("unknown dataset 'a\\nb'", load, "a\nb")


def test_other_functions_refuse_wrong_types(tmp_path):
    for call in (read_picture, load_coco, load_voc, load_tokenizer):
        refused("must be given as a path (got 5, a int)", call, 5)
    refused("no such image file", read_picture, "a" * 5000)
    refused("cannot be read as an image", read_image, object(), SMALL)
    for limit in (0, -1, "3", 1.5):
        refused("it must be a positive integer", load_voc, tmp_path, limit=limit)


def write_idx(folder, content):
    for name, raw in (("images-idx3", content), ("labels-idx1", struct.pack(">II", 0x801, 2) + b"\0\1")):
        (folder / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(raw))


def test_deflate_bombs_are_refused_before_they_are_inflated(tmp_path):
    write_idx(tmp_path, struct.pack(">IIII", 0x803, 2**16, 2**10, 2**10))
    refused("declares 65536 × 1024 × 1024 bytes, the file has", load_images, str(tmp_path))
    write_idx(tmp_path, struct.pack(">IIII", 0x803, 2, 3, 3) + bytes(10**7))
    refused("it has more bytes than its header declares", load_images, str(tmp_path))


def test_tables_that_grow_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LARGEST_INFLATION", 1)
    path = tmp_path / "a.parquet"
    text = pyarrow.DictionaryArray.from_arrays(np.zeros(2 * 10**6, np.int32), ["a text of some length"])
    parquet.write_table(pyarrow.table({"text": text, "label": np.zeros(2 * 10**6, np.int8)}), path)
    assert path.stat().st_size < 10**5
    for load in (load_text, load_sentences):
        refused("bytes and would grow to 2,000,000", load, str(path))
    parquet.write_table(pyarrow.table({"text": ["a" * 2 * 10**6]}), path, compression="zstd", use_dictionary=False)
    refused("bytes and would grow to 2,000,", load_text, str(path))


def test_archives_are_not_unpacked(tmp_path):
    path = tmp_path / "train.csv"
    path.write_bytes(gzip.compress(b"text,label\n" + b"some text,1\n" * 1000))
    for load in (load_text, load_sentences):
        refused("train.csv is a gzip archive, not a .csv file; unpack it first", load, str(path))


def test_a_giant_line_and_a_giant_cell(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 10**6 + "\nshort\n")
    documents = load_text(str(tmp_path / "a.txt"), separate="line", validation_share=1).validation
    assert max(len(text) for text, _ in documents.pieces()) <= 2**16
    (tmp_path / "a.csv").write_text("text,label\n" + "word " * 10**6 + ",1\nshort,0\n")
    documents = load_text(str(tmp_path / "a.csv"), validation_share=1).validation
    assert max(len(text) for text, _ in documents.pieces()) <= 2**16
    assert load_sentences(str(tmp_path / "a.csv"), validation_share=1).total == 2


def test_names_that_look_like_patterns(tmp_path):
    for name in ("a[1].csv", "a*.csv", "b?.csv"):
        (tmp_path / name).write_text(f"text,label\n{name[:-4]},1\nshort,0\n")
        assert load_sentences(str(tmp_path / name), validation_share=1).split("all")["text"][0] == name[:-4]


def test_a_saved_dataset_is_read_without_its_format(tmp_path):
    images = [{"bytes": encoded(picture(number)), "path": None} for number in range(4)]
    dataset = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 0, 1]})
    dataset.with_format("numpy", columns=["label"]).save_to_disk(tmp_path / "saved")
    data = load_images(str(tmp_path / "saved"), test_share=1)
    assert sum(len(labels) for _, labels in EvaluationBatches(data, SMALL)) == 4


def test_lone_surrogates(tmp_path):
    tokenizer = load_tokenizer("bytes")
    for texts, message in ((["a\ud800"], "a lone surrogate"), ([b"a"], "must be a string (got b'a', a bytes)")):
        refused(message, pack_text, TextDocuments(texts), tokenizer, folder=tmp_path)
        refused(message, load_tokenizer, "bpe", texts)
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800", "label": 1}\n{"text": "b", "label": 0}\n')
    refused("a.jsonl", load_sentences, str(tmp_path / "a.jsonl"))


class Failing:
    """Rows of which the first raises an error, or ends the process that reads it."""

    def __init__(self, error=None):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise self.error


def test_a_worker_that_ends_or_refuses():
    ended = "a process that loads data has ended: "
    refused(ended, list, load_batches(DataLoader(Failing(), num_workers=1)))
    for error in (ConnectionResetError(), EOFError()):  # how it shows depends on the moment
        refused(ended, list, load_batches(DataLoader(Failing(error))))
    for workers in (0, 1):
        loader = DataLoader(Failing(CrateError("label 9 is outside")), num_workers=workers)
        assert refused("label 9", list, load_batches(loader)) == "label 9 is outside"
    with pytest.raises(ZeroDivisionError):
        list(load_batches(DataLoader(Failing(ZeroDivisionError()))))


def test_paths_that_are_not_utf8_in_a_table(tmp_path):
    paths = pyarrow.array([b"caf\xe9.png", b"b.png"] * 2).view(pyarrow.string())
    table = pyarrow.table({"image": paths, "label": [0, 1, 0, 1]})
    parquet.write_table(table, tmp_path / "a.parquet")
    for streaming in (False, True):
        data = load_images(str(tmp_path / "a.parquet"), test_share=1, streaming=streaming)
        refused("cannot read the", list, EvaluationBatches(data, SMALL))
        refused("cannot read the", getattr, data.with_splits(train=data.test), "fingerprint")
