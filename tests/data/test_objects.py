"""COCO and PASCAL VOC: where files are searched, what is read, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image

from codingrate import CrateError
from codingrate.data import load_coco, load_voc

from .conftest import picture, write_voc

SQUARE = [[1, 1, 5, 1, 5, 4, 1, 4]]


def write_coco(root, file="annotations.json", folder="images", count=3, **changes):
    """Images of 13 × 11 pixels, an object in each, and a crowd in the first; `changes` replace parts of the file."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    content = {"images": [], "annotations": [], "categories": [{"id": 3, "name": "cat"}]}
    for number in range(count):
        picture(number).save(root / folder / f"{number}.png")
        content["images"].append({"id": 10 + number, "file_name": f"{number}.png", "width": 13, "height": 11})
        content["annotations"].append(
            {"id": number, "image_id": 10 + number, "category_id": 3, "bbox": [1, 1, 4, 3], "segmentation": SQUARE,
             "area": 12, "iscrowd": 0}
        )  # fmt: skip
    code = {"size": [11, 13], "counts": [20, 100, 23]}
    content["annotations"].append({"image_id": 10, "bbox": [0, 0, 13, 11], "segmentation": code, "iscrowd": 1})
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, **changes}))
    return path


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("annotations.json", "images"),
        ("annotations.json", "."),
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("annotations/instances_mine.json", "mine"),
    ],
)
def test_a_folder_or_its_file(tmp_path, file, folder):
    path = write_coco(tmp_path, file, folder)
    for source in (tmp_path, path):
        data = load_coco(source)
        assert [image.id for image in data.images] == [10, 11, 12]
        assert [image.file.name for image in data.images] == ["0.png", "1.png", "2.png"]
        assert data.images[1].read().tobytes() == picture(1).tobytes()
        assert [(thing.image, thing.crowd) for thing in data.objects] == [(10, 0), (11, 0), (12, 0), (10, 1)]
        assert data.objects[0].box == (1, 1, 4, 3)
        assert (data.objects[0].area, data.objects[3].area) == (12, 143)
        assert data.objects[0].outline == SQUARE


def test_a_split_by_name_and_the_first_images_only(tmp_path):
    write_coco(tmp_path, "annotations/instances_val2017.json", "val2017")
    write_coco(tmp_path, "annotations/instances_train2017.json", "train2017", count=5)
    assert len(load_coco(tmp_path).images) == 3
    data = load_coco(tmp_path, "train2017", limit=2)
    assert [image.id for image in data.images] == [10, 11]
    assert {thing.image for thing in data.objects} == {10, 11}
    with pytest.raises(CrateError, match="no annotations of split 'test'; its splits are train2017, val2017"):
        load_coco(tmp_path, "test")


def test_an_object_without_an_outline(tmp_path):
    one = {"id": 1, "image_id": 10, "bbox": [1, 1, 4, 3], "segmentation": []}
    assert load_coco(write_coco(tmp_path, annotations=[one])).objects[0].outline is None


IMAGE = {"id": 10, "file_name": "0.png", "width": 13, "height": 11}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": "none"}, "images is 'none'; it must be a valid array"),
        ({"annotations": None}, "annotations is None; it must be a valid array"),
        ({"images": []}, r"images is \[\]; list should have at least 1 item"),
        ({"images": [{"id": 10, "file_name": "0.png"}]}, r"images\.0\.width .* field required"),
        ({"images": [{**IMAGE, "file_name": "9.png"}]}, r"its first image 9\.png is in none of .*images"),
        (
            {"images": [IMAGE, {**IMAGE, "id": 11, "file_name": "9.png"}]},
            r"1 of its 2 images .* the first is 9\.png",
        ),
        ({"annotations": [{"image_id": 99, "bbox": [0, 0, 1, 1]}]}, "for image 99, which is not listed"),
        ({"annotations": [{"image_id": 10, "bbox": [0, 0, 1]}]}, r"annotations\.0\.bbox\.3 .* field required"),
        (
            {"annotations": [{"image_id": 10, "bbox": [0, 0, 1, -1]}]},
            r"bbox\.3 is -1; it must be greater than or equal",
        ),
        ({"annotations": [{"bbox": [0, 0, 1, 1]}]}, r"annotations\.0\.image_id .* field required"),
        ({"annotations": [{"image_id": 10, "bbox": [0, 0, "1", None]}]}, r"bbox\.2 is '1'; it must be a valid number"),
        ({"images": [{**IMAGE, "width": "wide"}]}, r"images\.0\.width is 'wide'; it must be a valid integer"),
        ({"annotations": [{"image_id": "x", "bbox": [0, 0, 1, 1]}]}, "image_id is 'x'; it must be a valid integer"),
        ({"annotations": [{"image_id": 10, "bbox": [0, 0, 1, 1], "segmentation": [[1, 2]]}]}, "at least 6 items"),
        (
            {
                "annotations": [
                    {"image_id": 10, "bbox": [0, 0, 1, 1], "segmentation": {"size": [11, 13], "counts": "z"}}
                ]
            },
            "run lengths of a mask of image 10 do not add up",
        ),
        (
            {"annotations": [{"image_id": 10, "bbox": [0, 0, 1, 1], "segmentation": {"size": [13, 11], "counts": ""}}]},
            r"a mask of image 10 has height and width \[13, 11\], but the image \[11, 13\]",
        ),
    ],
)
def test_files_that_do_not_match(tmp_path, changes, message):
    path = write_coco(tmp_path, **changes)
    with pytest.raises(CrateError, match=message) as refusal:
        load_coco(tmp_path)
    assert str(path) in str(refusal.value)


def test_an_image_of_another_size_than_its_annotations(tmp_path):
    data = load_coco(write_coco(tmp_path))
    picture(5, 26, 22).save(data.images[1].file)
    with pytest.raises(CrateError, match=r"1\.png: has 26 × 22 pixels, but its annotations are for 13 × 11"):
        data.images[1].read()


def test_no_annotations_at_all(tmp_path):
    with pytest.raises(CrateError, match="no such file or folder"):
        load_coco(tmp_path / "nowhere")
    with pytest.raises(CrateError, match=r"has neither annotations\.json nor"):
        load_coco(tmp_path)
    (tmp_path / "annotations.json").write_text("{")
    with pytest.raises(CrateError, match="cannot be read as JSON"):
        load_coco(tmp_path)


@pytest.mark.parametrize("above", [".", "VOCdevkit"])
def test_images_with_their_classes(tmp_path, above):
    write_voc(tmp_path / above / "VOC2012")
    images = load_voc(tmp_path)
    assert [image.file.stem for image in images] == ["a", "b"]
    image, labels = images[1].read()
    assert image.size == (13, 11)
    assert labels.shape == (11, 13)
    assert labels.dtype == np.uint8
    assert labels[3, 4] == 7
    assert sorted(set(labels.ravel().tolist())) == [0, 2, 7, 255]
    assert len(load_voc(tmp_path, limit=1)) == 1


def test_refusals(tmp_path):
    with pytest.raises(CrateError, match="has no ImageSets/Segmentation"):
        load_voc(tmp_path)
    root = write_voc(tmp_path / "VOC2012")
    with pytest.raises(CrateError, match="no split 'tset'; its splits are val"):
        load_voc(tmp_path, "tset")
    image = load_voc(root)[0]
    Image.new("RGB", (13, 11)).save(image.label_file)
    with pytest.raises(CrateError, match=r"a\.png: has colors \(RGB\), not classes"):
        image.read()
    Image.new("L", (11, 13)).save(image.label_file)
    with pytest.raises(CrateError, match=r"a\.png: has 11 × 13 pixels, but its image 13 × 11"):
        image.read()
    image.label_file.write_bytes(b"no")
    with pytest.raises(CrateError, match=r"a\.png: is not an image"):
        image.read()
    image.label_file.unlink()
    with pytest.raises(CrateError, match=r"1 of the files that it lists are missing; the first is .*a\.png"):
        load_voc(root)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("\n")
    with pytest.raises(CrateError, match="lists no images"):
        load_voc(root)
