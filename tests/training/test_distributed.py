"""Two processes under torchrun, copying the weights (DDP) or sharding them (FSDP), against one with their batch."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification

from codingrate.training import save_recipe
from tests.training.toys import assert_same, lines, python, run, saved, toy

pytestmark = pytest.mark.slow

# Augmentation draws once per process and batch, so the two would see other images than the one.
CHANGES = {
    "augment.flip": 0.0, "augment.affine_degrees": 0.0, "schedule.steps": 20, "schedule.batch": 32,
    "run.evaluate_epochs": 0.2, "run.checkpoint_steps": 8, "optimise.lr": 3e-4, "model.config.hidden_size": 30,
}  # fmt: skip
KINDS = {"ddp": {}, "fsdp": {"run.fsdp": True}}


def torchrun(*arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    done = python(*launch, "--master-port", str(port), *map(str, arguments), seconds=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train_by_two(folder, kind, *more):
    recipe = folder.with_suffix(".yaml")
    save_recipe(toy({**CHANGES, **KINDS[kind]}), recipe)
    call = ["-m", "codingrate", "train", recipe, "--output", folder, "--json", *more]
    return json.loads(torchrun(*call))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run by one process, and by two of each kind."""
    root = tmp_path_factory.mktemp("runs")
    run(root / "one", CHANGES)
    return root, {kind: train_by_two(root / kind, kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_curve_of_one_process(runs, kind):
    root, _ = runs
    one, two = (lines(root / name, "training") for name in ("one", kind))
    assert [line["step"] for line in two] == [line["step"] for line in one] == list(range(1, 21))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], abs=1e-4)
    assert [line["grad_norm"] for line in two] == pytest.approx([line["grad_norm"] for line in one], abs=1e-3)
    assert one[0]["loss"] - one[-1]["loss"] > 0.05, "something is learned"


@pytest.mark.parametrize("kind", KINDS)
def test_the_evaluation_of_one_process(runs, kind):
    """359 test images do not share out evenly; none may count twice."""
    root, printed = runs
    one, two = (lines(root / name, "evaluation") for name in ("one", kind))
    assert [line["step"] for line in two] == [9, 18, 20]
    assert [line["eval_loss"] for line in two] == pytest.approx([line["eval_loss"] for line in one], abs=1e-4)
    assert [line["eval_top1"] for line in two] == pytest.approx([line["eval_top1"] for line in one], abs=1.5 / 359)
    assert printed[kind]["top1"] == two[-1]["eval_top1"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_whole(runs, kind):
    root, _ = runs
    model = AutoModelForImageClassification.from_pretrained(root / kind / "model" / "last")
    mine, theirs = saved(root / "one"), dict(model.state_dict())
    assert mine.keys() == theirs.keys()
    assert max(float((mine[key] - theirs[key]).abs().max()) for key in mine) < 1e-3  # AdamW: 20 steps of 3e-4 at most
    assert not list((root / kind / "checkpoints").glob(".*")), "nothing is left of writing"


@pytest.mark.parametrize("kind", KINDS)
def test_resuming(runs, tmp_path, kind):
    root, _ = runs
    folder = tmp_path / kind
    shutil.copytree(root / kind, folder)
    shutil.rmtree(folder / "checkpoints" / "checkpoint-20")
    shutil.rmtree(folder / "model")
    train_by_two(folder, kind, "--resume")
    assert_same(saved(root / kind), saved(folder))
    again, before = lines(folder, "training"), lines(root / kind, "training")
    assert [line["loss"] for line in again] == [line["loss"] for line in before]


SHARDS = """
import json, sys, torch
from pathlib import Path
from torch.distributed.tensor import DTensor
from codingrate.training import build_classifier, load_recipe
from codingrate.training.processes import leave_processes
from codingrate.training.run import build_trainer
from codingrate.training.tasks import load_data
recipe = load_recipe(sys.argv[1])
data = load_data(recipe.data)
trainer = build_trainer(recipe, Path(sys.argv[2]), build_classifier(recipe, data.classes), data, True)
trainer.train()
parameters = dict(trainer.model.named_parameters())
held = sum(p.to_local().numel() for p in parameters.values() if isinstance(p, DTensor))
all_of_them = sum(p.numel() for p in parameters.values())
whole = [name for name, p in parameters.items() if not isinstance(p, DTensor)]
Path(sys.argv[2], f"rank{trainer.args.process_index}.json").write_text(json.dumps([held, all_of_them, whole]))
leave_processes()
"""


def test_fsdp_shards(tmp_path):
    save_recipe(toy({**CHANGES, "run.fsdp": True, "schedule.steps": 1}), tmp_path / "toy.yaml")
    (tmp_path / "script.py").write_text(SHARDS)
    torchrun(tmp_path / "script.py", tmp_path / "toy.yaml", tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [whole for *_, whole in ranks] == [[], []], "every parameter is sharded"
    assert ranks[0][0] + ranks[1][0] == ranks[0][1], "no number is held twice"
    assert max(held / total for held, total, _ in ranks) < 0.6


SEEN = """
import json, sys
from pathlib import Path
from codingrate.training import build_classifier, load_recipe
from codingrate.training.processes import leave_processes
from codingrate.training.run import build_trainer
from codingrate.training.tasks import load_data
recipe, folder = load_recipe(sys.argv[1]), Path(sys.argv[2])
data = load_data(recipe.data)
trainer = build_trainer(recipe, folder, build_classifier(recipe, data.classes), data, True)
seen, plain = [], trainer._prepare_inputs
def prepare(inputs):
    if trainer.model.training:
        pixels = inputs["pixel_values"].long()
        epoch = int(trainer.state.global_step // int(sys.argv[3]))
        seen.append([epoch, (pixels[:, 0, 0, 0] * 256 + pixels[:, 0, 0, 1]).tolist()])
    return plain(inputs)
trainer._prepare_inputs = prepare
trainer.train()
(folder / f"rank{trainer.args.process_index}.json").write_text(json.dumps(seen))
leave_processes()
"""


def numbered(path, rows):
    """Grey images whose first two pixels are the number of their row, and a test split."""
    import datasets

    path.mkdir()
    for split, count in (("train", rows), ("test", 4)):
        images = np.zeros((count, 8, 8), np.uint8)
        images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(count), 256)
        table = {"image": list(images.tolist()), "label": [row % 2 for row in range(count)]}
        datasets.Dataset.from_dict(table).to_parquet(path / f"{split}.parquet")
    return path


def rows_seen(tmp_path, rows, **changes):
    """Row numbers of each epoch, process by process."""
    recipe = toy(
        {**CHANGES, "schedule.steps": None, "schedule.epochs": 2, "schedule.batch": 32, "run.evaluate_epochs": 2,
         "data.name": str(numbered(tmp_path / "data", rows)), **changes}
    )  # fmt: skip
    save_recipe(recipe, tmp_path / "toy.yaml")
    (tmp_path / "script.py").write_text(SEEN)
    torchrun(tmp_path / "script.py", tmp_path / "toy.yaml", tmp_path, -(-rows // 32))
    epochs = {0: [[], []], 1: [[], []]}
    for rank in (0, 1):
        for epoch, numbers in json.loads((tmp_path / f"rank{rank}.json").read_text()):
            epochs[epoch][rank] += numbers
    return epochs


def test_every_sample_is_seen_once_in_an_epoch(tmp_path):
    epochs = rows_seen(tmp_path, 320, **{"run.device_batch": 8})
    for first, second in epochs.values():
        assert sorted(first + second) == list(range(320))
        assert len(first) == len(second) == 160
    assert epochs[0] != epochs[1], "in another order"


def test_only_the_last_batch_is_filled_up(tmp_path):
    """Where the rows do not share out, accelerate fills the last batch with the first rows; none is left out."""
    for first, second in rows_seen(tmp_path, 310).values():
        assert sorted({*first, *second}) == list(range(310))
        assert len(first) == len(second) == 160
        twice = sorted(first + second)
        for row in range(310):
            twice.remove(row)
        assert len(set(twice)) == 10


def test_two_processes_hold_equal_weights_in_every_checkpoint(runs):
    root, _ = runs
    last = Path(root / "ddp" / "checkpoints" / "checkpoint-20" / "model.safetensors")
    assert_same(load_file(last), saved(root / "ddp"))
