"""Loaders: the same pixels whoever reads them, broken files skipped and named, streams shared out without overlap."""

import io
import itertools
import pickle
import subprocess
import sys
import tarfile

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from torch.utils.data import DataLoader

from codingrate.data import (
    Augment,
    BatchAugment,
    CorruptImages,
    EvaluationBatches,
    OpenedData,
    balanced_indices,
    collate,
    decode_image,
    load_images,
    torch_dataset,
)
from codingrate.data.image_batches import ImageDataset, ImageStream
from codingrate.errors import CrateError

from .conftest import encoded, picture, write_classes

AUGMENT = Augment(image_size=9)


@pytest.fixture
def folder(tmp_path):
    return write_classes(tmp_path / "set", {"cat": 12, "dog": 12})


def batches(dataset, workers=0, size=5, **kwargs):
    loader = DataLoader(dataset, batch_size=size, num_workers=workers, collate_fn=collate, **kwargs)
    return list(loader)


def joined(found):
    return torch.cat([batch["pixel_values"] for batch in found]), torch.cat([batch["labels"] for batch in found])


def test_batches_have_the_promised_types(folder):
    data = load_images(str(folder))
    found = batches(torch_dataset(data, AUGMENT, train=True))
    assert [len(batch["labels"]) for batch in found] == [5, 5, 5, 5, 2]
    pixels, labels = joined(found)
    assert (pixels.shape, pixels.dtype, labels.dtype) == ((22, 3, 9, 9), torch.uint8, torch.int64)
    assert labels.tolist() == list(data.train["label"])
    gray = batches(torch_dataset(data, Augment(image_size=9, channels=1), train=False))
    assert gray[0]["pixel_values"].shape == (2, 1, 9, 9)


def test_crops_do_not_depend_on_workers_batches_or_order(folder):
    dataset = torch_dataset(load_images(str(folder)), AUGMENT, train=True, seed=3)
    pixels, labels = joined(batches(dataset))
    for other in (batches(dataset, workers=2), batches(dataset, size=3)):
        assert torch.equal(joined(other)[0], pixels)
        assert torch.equal(joined(other)[1], labels)
    assert torch.equal(dataset[7]["image"], pixels[7])
    assert torch.equal(dataset[-1]["image"], pixels[-1])
    dataset.set_epoch(1)
    assert not torch.equal(joined(batches(dataset))[0], pixels)
    dataset.set_epoch(0)
    assert torch.equal(joined(batches(dataset))[0], pixels)
    other_seed = torch_dataset(load_images(str(folder)), AUGMENT, train=True, seed=4)
    assert not torch.equal(joined(batches(other_seed))[0], pixels)


def test_evaluation_is_the_same_in_every_epoch(folder):
    dataset = torch_dataset(load_images(str(folder)), AUGMENT, train=False)
    pixels, _ = joined(batches(dataset))
    dataset.set_epoch(1)
    assert torch.equal(joined(batches(dataset))[0], pixels)


def test_workers_that_stay_follow_the_epoch(folder):
    dataset = torch_dataset(load_images(str(folder)), AUGMENT, train=True)
    loader = DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=collate, persistent_workers=True)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        assert torch.equal(joined(list(loader))[0], joined(batches(dataset))[0])


def test_survives_pickling(folder):
    dataset = torch_dataset(load_images(str(folder)), AUGMENT, train=True)
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[3]["image"], dataset[3]["image"])


def test_rows_outside_the_dataset_are_refused(folder):
    dataset = torch_dataset(load_images(str(folder)), AUGMENT, train=True)
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    with pytest.raises(CrateError, match="seed"):
        torch_dataset(load_images(str(folder)), AUGMENT, train=True, seed=-1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("streaming", [False, True])
def test_corrupt_files_are_skipped_and_named(folder, workers, streaming):
    broken = folder / "cat" / "005.png"
    broken.write_bytes(b"broken")
    data = load_images(str(folder), test_share=1, streaming=streaming)
    found, corrupt = batches(torch_dataset(data, AUGMENT, train=False), workers), CorruptImages(max_share=0.05)
    for batch in found:
        corrupt.add(batch)
    assert corrupt.finish() == (str(broken),)
    assert len(joined(found)[1]) == 23
    strict = CorruptImages(max_share=0.01)
    for batch in found:
        strict.add(batch)
    with pytest.raises(CrateError, match=r"1 of 24 images cannot be read, .*005\.png"):
        strict.finish()


def test_a_batch_of_corrupt_images_is_empty(folder):
    for file in folder.glob("*/*.png"):
        file.write_bytes(b"")
    found, corrupt = batches(torch_dataset(load_images(str(folder)), AUGMENT, train=True)), CorruptImages()
    assert found[0]["pixel_values"].shape == (0, 3, 9, 9)
    assert (found[0]["labels"].tolist(), len(found[0]["corrupt"])) == ([], 5)
    for batch in found:
        corrupt.add(batch)
    with pytest.raises(CrateError, match=r"all 22 images cannot be read, .*cat.*000\.png"):
        corrupt.finish()


def test_rows_without_a_path_are_named_by_number():
    rows = datasets.Dataset.from_dict({"image": [b"bad"] * 2, "label": [0, 1]})
    rows = rows.cast_column("image", datasets.Image(decode=False))
    data = OpenedData("rows", {"train": rows, "test": rows}, ("image",), "label", ("a", "b"))
    assert collate([ImageDataset(data, AUGMENT, train=False)[1]])["corrupt"] == ["row 1"]


def stream(folder, **kwargs):
    data = load_images(str(folder), streaming=True)
    return torch_dataset(data, AUGMENT, **{"train": True, "shuffle_buffer": 50, **kwargs})


def as_set(found):
    return sorted(image.tolist() for image in joined(found)[0].flatten(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_crop_alike_for_any_number_of_processes_and_workers(folder, workers):
    whole = as_set(batches(stream(folder)))
    parts = [batches(stream(folder, rank=rank, world_size=2), workers) for rank in range(2)]
    assert min(map(len, parts)) > 0
    assert as_set([batch for part in parts for batch in part]) == whole


def test_streams_are_shuffled_anew_each_epoch(folder):
    dataset = stream(folder)
    assert isinstance(dataset, ImageStream)
    first = joined(batches(dataset))
    assert torch.equal(joined(batches(dataset))[0], first[0])
    dataset.set_epoch(1)
    second = joined(batches(dataset))
    assert first[1].tolist() != second[1].tolist()
    assert sorted(first[1].tolist()) == sorted(second[1].tolist())


def test_streams_check_labels(tmp_path):
    """A table that says that its labels have names, and has a label without one."""
    rows = datasets.Dataset.from_dict({"image": [encoded(picture(0))] * 3, "label": [0, 1, 7]})
    named = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    images = rows.cast_column("image", datasets.Image()).data.table
    parquet.write_table(images.replace_schema_metadata(named.arrow_schema.metadata), tmp_path / "a.parquet")
    data = load_images(str(tmp_path / "a.parquet"), streaming=True, test_share=1)
    with pytest.raises(CrateError, match="label 7 in column 'label', which is outside its 2 classes"):
        list(ImageStream(data, AUGMENT, train=False))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_on_disk_comes_out_right(tmp_path, mode):
    for number, name in enumerate(("a", "b", "c")):
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(2):
            image = picture(10 * number + index)
            image = image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
            image.save(tmp_path / "set" / name / f"{index}.{'tiff' if mode == 'CMYK' else 'png'}")
    data = load_images(str(tmp_path / "set"))
    for channels in (1, 3):
        found = batches(torch_dataset(data, Augment(image_size=9, channels=channels), train=True))
        assert found[0]["corrupt"] == []
        assert found[0]["pixel_values"].shape == (3, channels, 9, 9)
        assert decode_image(data.test[0]["image"], channels).size == (13, 11)


def test_loading_data_by_name_is_light():
    code = "import sys, codingrate.data as d; d.Augment(); print({'torch', 'kornia', 'datasets'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60, text=True)
    assert found.stdout.strip() == "set()"


def evaluated(data, augment=AUGMENT, **options):
    batches = EvaluationBatches(data, augment, **options)
    pixels, labels = zip(*batches, strict=True)
    return batches, torch.cat(pixels), torch.cat(labels)


def test_evaluation_batches_are_the_normalized_crops(folder):
    data, heard = load_images(str(folder), test_share=1), []
    found, pixels, labels = evaluated(data, batch_size=5, progress=heard.append)
    crops, classes = joined(batches(torch_dataset(data, AUGMENT, train=False)))
    assert torch.equal(pixels, BatchAugment(AUGMENT).eval()(crops))
    assert torch.equal(labels, classes), "in the order of the files"
    assert found.indices is None
    assert heard == [5, 5, 5, 5, 4]
    half = evaluated(data, dtype=torch.float16, workers=1)[1]
    assert torch.equal(half, pixels.half())


@pytest.mark.parametrize("limit", [1, 7, 23, 24, 99])
def test_a_limit_takes_classes_in_turn(folder, limit):
    """Also if it is no less than the number of images, because pictures show the first of a sample."""
    data = load_images(str(folder), test_share=1)
    found, pixels, labels = evaluated(data, limit=limit)
    _, every, classes = evaluated(data)
    assert found.indices == balanced_indices(classes.numpy(), limit)
    assert torch.equal(pixels, every[found.indices])
    assert torch.equal(labels, classes[found.indices])
    assert labels[::2].unique().numel() == 1, "every second image is of the same class"


@pytest.mark.parametrize("streaming", [False, True])
def test_evaluation_leaves_out_and_names_unreadable_images(folder, streaming):
    (folder / "cat" / "005.png").write_bytes(b"broken")
    data = load_images(str(folder), test_share=1, streaming=streaming)
    found, pixels, _ = evaluated(data, batch_size=1, max_corrupt=0.1)
    assert len(pixels) == sum(found.readable) == 23
    assert len(found.readable) == 24
    assert found.corrupt == (str(folder / "cat" / "005.png"),)
    with pytest.raises(CrateError, match="1 of 24 images cannot be read"):
        evaluated(data)
    if streaming:
        assert len(evaluated(data, limit=4, max_corrupt=1.0)[0].readable) == 4


def test_evaluation_refuses_bad_sizes_and_empty_splits(folder):
    data = load_images(str(folder), test_share=1)
    for options in ({"batch_size": 0}, {"limit": 0}, {"workers": -1}):
        with pytest.raises(CrateError, match="must be a positive integer"):
            EvaluationBatches(data, AUGMENT, **options)
    with pytest.raises(CrateError, match="unknown split 'tset'; did you mean 'test'"):
        EvaluationBatches(data, AUGMENT, split="tset")
    with pytest.raises(CrateError, match=r"the train split of .* has no images"):
        list(EvaluationBatches(data, AUGMENT, split="train"))


# Every image of a stream once


def write_shards(folder, kind, shards, count=53):
    """Write images whose first pixels are their number, in several files of unequal size."""
    folder.mkdir()
    images = np.zeros((count, 8, 8), np.uint8)
    images[:, 0, 0] = np.arange(count)
    edges = [0, *(count * (part + 1) // shards - part % 2 for part in range(shards - 1)), count]
    for part, (start, end) in enumerate(itertools.pairwise(edges)):
        rows = range(start, end)
        if kind == "parquet":
            table = {"image": [images[row].tolist() for row in rows], "label": [row % 3 for row in rows]}
            datasets.Dataset.from_dict(table).to_parquet(folder / f"train-{part}.parquet")
            continue
        with tarfile.open(folder / f"train-{part}.tar", "w") as archive:
            for row in rows:
                picture = io.BytesIO()
                Image.fromarray(images[row]).save(picture, format="png")
                for suffix, content in (("png", picture.getvalue()), ("cls", str(row % 3).encode())):
                    member = tarfile.TarInfo(f"{row:04d}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return folder


def numbers_read(data, rank, processes, workers, epoch):
    """Return the numbers of the training images that one process reads in an epoch."""
    augment = Augment(image_size=8, channels=1, crop="resize", flip=0.0)
    dataset = torch_dataset(data, augment, train=True, rank=rank, world_size=processes, shuffle_buffer=20)
    dataset.set_epoch(epoch)
    loader = DataLoader(dataset, 5, num_workers=workers, collate_fn=collate)
    return [int(number) for batch in loader for number in batch["pixel_values"][:, 0, 0, 0]]


@pytest.mark.parametrize("kind", ["parquet", "tar"])
@pytest.mark.parametrize(("shards", "processes", "workers"), [(4, 2, 0), (3, 2, 0), (1, 4, 0), (4, 2, 2), (3, 2, 2)])
def test_processes_and_workers_see_each_image_of_a_stream_once_in_an_epoch(tmp_path, kind, shards, processes, workers):
    data = load_images(str(write_shards(tmp_path / "data", kind, shards)), streaming=True, test_share=0.2)
    everything = sorted(numbers_read(data, 0, 1, 0, 0))
    assert len(set(everything)) == len(everything) > 30
    epochs = []
    for epoch in (0, 1):
        parts = [numbers_read(data, rank, processes, workers, epoch) for rank in range(processes)]
        assert sorted(number for part in parts for number in part) == everything
        assert all(parts), "every process has work"
        epochs.append(parts)
    assert epochs[0] != epochs[1], "in another order"


def test_archives_are_read_whole_too(tmp_path):
    """Random access copies the images of an archive to a cache; archives beside folders are ignored."""
    folder = write_shards(tmp_path / "data", "tar", 2)
    data = load_images(str(folder))
    assert (len(data.train) + len(data.test), data.classes) == (53, ("0", "1", "2"))
    (folder / "more").mkdir()
    with pytest.raises(CrateError):
        load_images(str(folder))


@pytest.mark.parametrize("place", [".", "cat", "cat/more"])
@pytest.mark.parametrize("target", [".", "dog", "cat"])
def test_links_to_folders_of_the_dataset_add_no_images(folder, place, target):
    before = load_images(str(folder), test_share=1)
    (folder / place).mkdir(exist_ok=True)
    (folder / place / "loop").symlink_to(folder / target, target_is_directory=True)
    after = load_images(str(folder), test_share=1)
    assert after.classes == before.classes
    assert after.test["image"] == before.test["image"]
    assert after.test["label"] == before.test["label"]


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch):
    """`datasets` would ask six times, which takes 25 seconds and prints a line each time."""
    from huggingface_hub import HfApi

    asked = []

    def unreachable(self, name, **options):
        asked.append((name, options["timeout"]))
        raise ConnectionError("no network")

    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: pytest.fail("asked again"))
    with pytest.raises(CrateError, match=r"^'nobody/nothing' is not a local path and .* \[no network\]$"):
        load_images("nobody/nothing")
    assert asked == [("nobody/nothing", 10)]
