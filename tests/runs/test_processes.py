"""Verbs in two and in four processes give the results of one process, bit for bit."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from codingrate import create_model
from tests.data.conftest import write_voc

from .texts import train_text, write_csv
from .toys import mae, python, torchrun, train_toy

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from pathlib import Path
from codingrate._distributed import first_process, exit_together, share
from codingrate.errors import CrateError
from codingrate.runs import Run

root, out = map(Path, sys.argv[1:])
images, mae, gpt, bert = (Run(root / name) for name in ("images", "mae", "gpt", "bert"))
sentences, color = Run(root / "sentences"), Run(root / "color")
values = {
    "evaluate images": images.evaluate(batch_size=50),
    "evaluate an autoencoder": mae.evaluate(batch_size=50),
    "evaluate next tokens": gpt.evaluate(batch_size=7),
    "evaluate masked tokens": bert.evaluate(batch_size=7),
    "evaluate sentences": sentences.evaluate(batch_size=7),
    "probe": images.probe(batch_size=50, cache=out / "features", limit=150),
    "probe again, from the cache": images.probe("knn", batch_size=50, cache=out / "features", limit=150),
    "perplexity": gpt.perplexity(batch_size=3, stride=5, limit=400),
    "lambada": gpt.lambada(root / "passages.txt", batch_size=2),
    "inspect images": images.inspect(limit=45, batch_size=10),
    "inspect an autoencoder": mae.inspect(limit=45, batch_size=10),
    "inspect text": gpt.inspect(limit=9, batch_size=2),
    "detect on COCO": color.detect(root / "coco", size=32, refine=False),
    "detect on VOC": color.detect(root / "voc", "voc", size=32),
}
values = {name: report.to_dict() for name, report in values.items()}
values["uneven"] = [list(share(lambda item: item * item, range(count))) for count in range(10)]

def fail_at_three(item):
    if item == 3:
        raise CrateError("three")
    return item

try:
    list(share(fail_at_three, range(9)))
except CrateError as error:
    values["error"] = str(error)
(out / f"rank{__import__('os').environ.get('RANK', '0')}.json").write_text(json.dumps(values))
exit_together()
"""
TIMES = ("seconds", "images_per_second", "folder")


def write_objects(root):
    """Write five images with a rectangle, annotated as COCO and as VOC."""
    names, outlines = [str(number) for number in range(5)], []
    write_voc(root / "voc", names, size=(40, 40))
    shutil.copytree(root / "voc" / "JPEGImages", root / "coco" / "images")
    images = [{"id": int(name), "file_name": f"{name}.jpg", "width": 40, "height": 40} for name in names]
    for left in range(5, 10):
        corners = [left, 10, left + 15, 10, left + 15, 30, left, 30]
        outlines.append({"bbox": [left, 10, 15, 20], "area": 300, "segmentation": [corners], "iscrowd": 0})
    things = [{"id": number + 1, "image_id": number, "category_id": 1, **box} for number, box in enumerate(outlines)]
    (root / "coco" / "annotations.json").write_text(json.dumps({"images": images, "annotations": things}))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with small runs of several tasks, data, and the results of one process."""
    folder = tmp_path_factory.mktemp("runs")
    few = {"schedule.steps": 2, "run.evaluate_epochs": 0}
    train_toy(folder / "images", few)
    train_toy(folder / "mae", mae(few))
    text = " ".join(np.random.default_rng(1).choice(["the", "cat", "sat", "on", "a", "mat,", "and", "slept."], 900))
    (folder / "text.txt").write_text(text)
    (folder / "passages.txt").write_text("the cat sat on a mat\nthe cat slept\non a mat the cat sat\n" * 3)
    for task, name in (("causal-lm", "gpt"), ("masked-lm", "bert")):
        train_text(folder / name, task, {**few, "data.name": str(folder / "text.txt")})
    rows = [(f"{'good' if row % 3 else 'bad'} {row % 7}", "yes" if row % 3 else "no") for row in range(60)]
    write_csv(folder / "labeled" / "train.csv", ["sentence", "label"], rows)
    write_csv(folder / "labeled" / "validation.csv", ["sentence", "label"], rows[:31])
    train_text(folder / "sentences", "sequence-classification", {**few, "data.name": str(folder / "labeled")})
    small = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "patch_size": 8}
    create_model("crate-tiny-patch16-224", **small, num_labels=7).save_pretrained(folder / "color")
    write_objects(folder)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "1").mkdir()
    done = python(folder / "script.py", folder, folder / "1", seconds=240)
    assert done.returncode == 0, done.stderr
    return folder


def without_times(value):
    """Return nested values without durations and folders."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("processes", [2, 4])
def test_verbs_give_the_results_of_one_process(root, processes):
    """Every process computes whole batches, and batches do not depend on the number of processes."""
    (root / str(processes)).mkdir()
    torchrun(root / "script.py", root, root / str(processes), processes=processes)
    one = without_times(json.loads((root / "1" / "rank0.json").read_text()))
    assert one["uneven"] == [[item * item for item in range(count)] for count in range(10)]
    assert one["error"] == "three"
    for rank in range(processes):
        found = without_times(json.loads((root / str(processes) / f"rank{rank}.json").read_text()))
        assert found.keys() == one.keys()
        for name in one:
            assert found[name] == one[name], name


def test_the_command_prints_and_writes_once(root, tmp_path):
    call = ["evaluate", root / "images", "--batch-size", 50, "--json", "--output"]
    printed = json.loads(torchrun("-m", "codingrate", *call, tmp_path / "two"))
    alone = python("-m", "codingrate", *call, tmp_path / "one")
    folders = {tmp_path / "two": printed, tmp_path / "one": json.loads(alone.stdout)}
    two, one = (without_times(values) for values in folders.values())
    assert two == one
    written = [{path.name: path.read_bytes() for path in folder.glob("*.csv")} for folder in folders]
    assert written[0] == written[1]
    assert len(written[0]) == 2


def test_segment_shares_the_images(root, tmp_path):
    pictures = sorted((root / "coco" / "images").glob("*.jpg"))
    call = ["segment", root / "color", *pictures, "--size", 32, "--no-refine", "--json", "--output"]
    two = json.loads(torchrun("-m", "codingrate", *call, tmp_path / "out"))
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    one = json.loads(python("-m", "codingrate", *call, tmp_path / "out").stdout)
    assert two == one
    assert [entry["image"] for entry in two["images"]] == list(map(str, pictures))
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_glue(root, tmp_path):
    """Gradients are averaged in another order, so that weights differ in their last digits."""
    rows = [(f"{'good' if row % 3 else 'bad'} {row % 7}", row % 3 > 0) for row in range(60)]
    for split in ("train", "validation"):
        write_csv(tmp_path / "glue" / "sst2" / f"{split}.csv", ["sentence", "label"], [[a, int(b)] for a, b in rows])
    call = ["glue", root / "bert", "--data", tmp_path / "glue", "--json", "schedule.epochs=2", "data.workers=0"]
    call += ["schedule.batch_size=16", "run.log_steps=1", "text.max_length=16", "--output"]
    two = json.loads(torchrun("-m", "codingrate", *call, tmp_path / "two"))["tasks"]["sst2"]["splits"]["validation"]
    again = json.loads(torchrun("-m", "codingrate", *call, tmp_path / "two"))["tasks"]["sst2"]
    assert not again["new"]
    alone = python("-m", "codingrate", *call, tmp_path / "one")
    one = json.loads(alone.stdout)["tasks"]["sst2"]["splits"]["validation"]
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
    assert two["accuracy"] == one["accuracy"]
    assert again["splits"]["validation"] == two
