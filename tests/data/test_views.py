"""Several views of one image: the crops and odds of DINO, the same for whoever reads them, cheap for small images."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from codingrate.data import (
    Augment,
    BatchAugment,
    CorruptImages,
    ViewAugment,
    Views,
    collate,
    decode_image,
    load_images,
    torch_dataset,
)
from codingrate.data.augment import view_augments
from codingrate.data.image_batches import ImageDataset, ImageStream
from codingrate.data.transforms import crop_for_training
from codingrate.errors import CrateError

from .conftest import write_classes

AUGMENT = Augment(image_size=11, jitter=(0.4, 0.4, 0.2, 0.1), grayscale=0.2)
VIEWS = Views(local_count=3, local_size=7)


@pytest.fixture
def data(tmp_path):
    return load_images(str(write_classes(tmp_path / "set", {"cat": 12, "dog": 12})))


def batches(dataset, workers=0, size=5):
    return list(DataLoader(dataset, batch_size=size, num_workers=workers, collate_fn=collate))


def joined(found):
    return [torch.cat([batch["views"][group] for batch in found], dim=1) for group in range(2)]


def same(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def test_the_defaults_are_those_of_dino():
    views, size = Views(), 224
    first, second, local = view_augments(Augment(image_size=size, grayscale=0.2), views)
    assert (views.local_count, first.image_size, second.image_size, local.image_size) == (8, 224, 224, 96)
    assert (first.crop_scale, second.crop_scale, local.crop_scale) == ((0.4, 1.0), (0.4, 1.0), (0.05, 0.4))
    assert (first.blur, second.blur, local.blur) == (1.0, 0.1, 0.5)
    assert (first.solarize, second.solarize, local.solarize) == (0.0, 0.2, 0.0)
    assert {view.crop for view in (first, second, local)} == {"random-resized"}
    assert {view.grayscale for view in (first, second, local)} == {0.2}


def test_everything_else_is_the_recipes_own():
    augment = replace(AUGMENT, crop="pad", interpolation="bilinear", mean=(0.1, 0.2, 0.3))
    for view in view_augments(augment, VIEWS):
        kept = replace(view, image_size=11, crop="pad", crop_scale=augment.crop_scale, blur=0.0, solarize=0.0)
        assert kept == augment


BAD = [
    ({"local_count": -1}, r"^views.local_count is -1; it must be greater than or equal to 0$"),
    ({"local_size": 0}, r"^views.local_size is 0; it must be greater than 0$"),
    ({"global_scale": (0.0, 1.0)}, r"^views.global_scale.0 is 0.0; it must be greater than 0$"),
    ({"local_scale": (0.5, 0.4)}, r"^views.local_scale is .*; the lower bound must not exceed the upper bound"),
    ({"local_scale": (0.5, 1.4)}, r"^views.local_scale.1 is .*; it must be less than or equal to 1"),
    ({"local_scale": (0.1, 0.2, 0.4)}, r"^views.local_scale is .*; tuple should have at most 2 items"),
    ({"blur": (1.0, 0.1)}, r"^views.blur.2 is \(1.0, 0.1\); field required$"),
    ({"solarize": (0.0, 1.2, 0.0)}, r"^views.solarize.1 is .*; it must be less than or equal to 1"),
]


@pytest.mark.parametrize(("fields", "pattern"), BAD, ids=[str(fields) for fields, _ in BAD])
def test_impossible_views_are_refused(fields, pattern):
    with pytest.raises(CrateError, match=pattern):
        Views(**fields)


def test_a_local_view_is_the_smaller_one():
    with pytest.raises(CrateError, match=r"^views.local_size 96 is larger than augment.image_size 11; lower it$"):
        view_augments(AUGMENT, Views())
    assert view_augments(AUGMENT, Views(local_count=0))[0].image_size == 11
    assert Views(global_scale=[0.14, 1.0]).global_scale == (0.14, 1.0)  # a recipe file knows lists only


def test_rows_are_the_crops_of_their_image_in_turn(data):
    dataset = torch_dataset(data, AUGMENT, train=True, seed=3, views=VIEWS)
    assert isinstance(dataset, ImageDataset)
    dataset.set_epoch(2)
    row = dataset[7]
    assert [(view.shape, view.dtype) for view in row["views"]] == [
        ((2, 3, 11, 11), torch.uint8), ((3, 3, 7, 7), torch.uint8),
    ]  # fmt: skip
    assert (row["label"], row["corrupt"]) == (data.train["label"][7], None)
    image, draw = decode_image(data.train[7]["image"], 3), np.random.default_rng((3, 2, 7))
    first, second, local = view_augments(AUGMENT, VIEWS)
    crops = [crop_for_training(image, kind, draw) for kind in (first, second, local, local, local)]
    for crop, view in zip(crops, [view for group in row["views"] for view in group], strict=True):
        assert torch.equal(torch.from_numpy(np.array(crop)).permute(2, 0, 1), view)


def test_views_do_not_depend_on_workers_batches_or_order(data):
    dataset = torch_dataset(data, AUGMENT, train=True, seed=3, views=VIEWS)
    found = joined(batches(dataset))
    assert [group.shape for group in found] == [(2, 22, 3, 11, 11), (3, 22, 3, 7, 7)]
    assert same(joined(batches(dataset, workers=2, size=3)), found)
    assert all(torch.equal(view, group[:, 9]) for view, group in zip(dataset[9]["views"], found, strict=True))
    again = pickle.loads(pickle.dumps(dataset))
    assert same(again[4]["views"], dataset[4]["views"])
    dataset.set_epoch(1)
    assert not same(joined(batches(dataset)), found)
    other = torch_dataset(data, AUGMENT, train=True, seed=4, views=VIEWS)
    assert not same(joined(batches(other)), found)


def test_without_local_views_there_is_one_group(data):
    dataset = torch_dataset(data, AUGMENT, train=True, views=replace(VIEWS, local_count=0))
    (batch, *_) = batches(dataset)
    assert [group.shape for group in batch["views"]] == [(2, 5, 3, 11, 11)]
    shown = ViewAugment(AUGMENT, replace(VIEWS, local_count=0)).train()(batch["views"], seed=1)
    assert [group.shape for group in shown] == [(2, 5, 3, 11, 11)]


def test_evaluation_rows_have_one_view(data):
    row = torch_dataset(data, AUGMENT, train=False, views=VIEWS)[0]
    assert row["image"].shape == (3, 11, 11)


def test_unreadable_images_are_skipped_and_named(tmp_path):
    folder = write_classes(tmp_path / "set", {"cat": 4, "dog": 4})
    for file in sorted(folder.glob("cat/*.png"))[1:]:
        file.write_bytes(b"broken")
    data = load_images(str(folder), test_share=1)
    data = data.with_splits(train=data.test)
    found, corrupt = batches(torch_dataset(data, AUGMENT, train=True, views=VIEWS), size=3), CorruptImages(1.0)
    for batch in found:
        corrupt.add(batch)
    assert [len(batch["labels"]) for batch in found] == [1, 2, 2]
    assert [group.shape[:2] for group in found[0]["views"]] == [(2, 1), (3, 1)]
    assert len(corrupt.finish()) == 3
    for file in folder.glob("*/*.png"):
        file.write_bytes(b"")
    empty = batches(torch_dataset(data, AUGMENT, train=True, views=VIEWS))[0]
    assert [group.shape for group in empty["views"]] == [(2, 0, 3, 11, 11), (3, 0, 3, 7, 7)]
    shown = ViewAugment(AUGMENT, VIEWS).train()(empty["views"], seed=1)
    assert [group.shape for group in shown] == [(2, 0, 3, 11, 11), (3, 0, 3, 7, 7)]


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_give_the_same_kind_of_rows(tmp_path, workers):
    folder = write_classes(tmp_path / "set", {"cat": 12, "dog": 12})
    data = load_images(str(folder), streaming=True)

    def read(workers, **share):
        dataset = torch_dataset(data, AUGMENT, train=True, shuffle_buffer=50, views=VIEWS, **share)
        assert isinstance(dataset, ImageStream)
        found = joined(batches(dataset, workers))
        return {tuple(torch.cat([group[:, i].flatten() for group in found]).tolist()) for i in range(found[0].shape[1])}

    whole = read(0)
    parts = [read(workers, rank=rank, world_size=2) for rank in range(2)]
    assert len(whole) > 15
    assert parts[0] | parts[1] == whole
    assert not parts[0] & parts[1]


# On the device


def pixels(batch=5, channels=3):
    return [
        torch.randint(256, (2, batch, channels, 11, 11), dtype=torch.uint8),
        torch.randint(256, (3, batch, channels, 7, 7), dtype=torch.uint8),
    ]


def test_each_kind_of_view_has_its_own_augmentation():
    given, module = pixels(), ViewAugment(AUGMENT, VIEWS).train()
    first, second, local = (BatchAugment(kind).train() for kind in view_augments(AUGMENT, VIEWS))
    shown = module(given, seed=8)
    assert [(group.shape, group.dtype) for group in shown] == [
        ((2, 5, 3, 11, 11), torch.float32), ((3, 5, 3, 7, 7), torch.float32),
    ]  # fmt: skip
    assert torch.equal(shown[0][0], first(given[0][0], seed=24))
    assert torch.equal(shown[0][1], second(given[0][1], seed=25))
    assert torch.equal(shown[1].flatten(0, 1), local(given[1].flatten(0, 1), seed=26))


def test_same_seed_same_bits_and_the_global_generator_is_left_alone():
    given, module = pixels(), ViewAugment(AUGMENT, VIEWS).train()
    before = torch.get_rng_state()
    first = module(given, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(module(given, seed=5), first)
    assert not same(module(given, seed=6), first)
    assert not same(module(given), module(given))


def test_views_of_one_image_are_drawn_apart():
    """The same pixels in every place: no two global views, no two local ones come out alike."""
    augment = replace(AUGMENT, jitter_probability=1.0, grayscale=0.0)
    given = [group[:1, :1].expand_as(group).clone() for group in pixels()]
    for group in ViewAugment(augment, VIEWS).train()(given, seed=1):
        kinds = {tuple(image.flatten().tolist()) for image in group.flatten(0, 1)}
        assert len(kinds) == group.shape[0] * group.shape[1]


def test_evaluation_is_plain_normalization():
    given = pixels()
    plain = BatchAugment(AUGMENT).eval()
    shown = ViewAugment(AUGMENT, VIEWS).eval()(given)
    assert same(shown, [plain(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in given])


def test_gray_images_have_views_too(data):
    augment = Augment(image_size=11, channels=1)
    batch = batches(torch_dataset(data, augment, train=True, views=VIEWS))[0]
    assert [group.shape for group in batch["views"]] == [(2, 5, 1, 11, 11), (3, 5, 1, 7, 7)]
    shown = ViewAugment(augment, VIEWS).train()(batch["views"], seed=0)
    assert [group.shape for group in shown] == [(2, 5, 1, 11, 11), (3, 5, 1, 7, 7)]
    assert all(group.isfinite().all() for group in shown)


@pytest.mark.parametrize("field", ["blur", "solarize"])
@pytest.mark.parametrize("kind", range(3))
def test_an_operation_reaches_the_views_it_is_meant_for(field, kind):
    nothing = {"blur": (0.0,) * 3, "solarize": (0.0,) * 3}
    odds = tuple(float(place == kind) for place in range(3))
    views = replace(VIEWS, **{**nothing, field: odds})
    given, plain = pixels(batch=3), Augment(image_size=11, flip=0.0)
    module = ViewAugment(plain, views)
    still, moved = module.eval()(given), module.train()(given, seed=0)
    changed = [not torch.equal(moved[0][0], still[0][0]), not torch.equal(moved[0][1], still[0][1])]
    assert [*changed, not torch.equal(moved[1], still[1])] == [place == kind for place in range(3)]


def test_describing_views_is_light():
    import subprocess
    import sys

    code = "import sys, codingrate.data as d; d.Views(); print({'torch', 'kornia', 'datasets'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60, text=True)
    assert found.stdout.strip() == "set()"
