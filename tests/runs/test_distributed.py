"""Two processes with replicated (DDP) or sharded (FSDP) weights train as one process with their batch does."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification

from codingrate.data import load_text
from codingrate.recipes import save_recipe

from .texts import text_recipe, train_text
from .toys import assert_same, command, dino, lines, mae, saved, torchrun, toy, train_toy

pytestmark = pytest.mark.slow

# Augmentation is drawn per process and batch, so two processes would see other images than one.
CHANGES = {
    "augment.flip": 0.0, "augment.affine_degrees": 0.0, "schedule.steps": 20, "schedule.batch_size": 32,
    "run.evaluate_epochs": 0.2, "run.checkpoint_steps": 8, "optimizer.lr": 3e-4, "model.config.hidden_size": 30,
}  # fmt: skip
KINDS = {"ddp": {}, "fsdp": {"run.fsdp": True}}


def train_by_two(folder, recipe, *more):
    """Train a recipe in two processes and return what the command prints."""
    file = folder.with_suffix(".yaml")
    save_recipe(recipe, file)
    return json.loads(torchrun(*command(folder, file, *more)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run by one process and by two of each kind, and what the latter printed."""
    root = tmp_path_factory.mktemp("runs")
    train_toy(root / "one", CHANGES)
    return root, {kind: train_by_two(root / kind, toy({**CHANGES, **more})) for kind, more in KINDS.items()}


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
    """359 test images do not divide evenly; none may count twice."""
    root, printed = runs
    one, two = (lines(root / name, "evaluation") for name in ("one", kind))
    assert [line["step"] for line in two] == [9, 18, 20]
    assert [line["eval_loss"] for line in two] == pytest.approx([line["eval_loss"] for line in one], abs=1e-4)
    assert [line["eval_top1"] for line in two] == pytest.approx([line["eval_top1"] for line in one], abs=1.5 / 359)
    assert printed[kind]["top1"] == two[-1]["eval_top1"]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_models_are_whole(runs, kind):
    root, _ = runs
    model = AutoModelForImageClassification.from_pretrained(root / kind / "model" / "last")
    mine, theirs = saved(root / "one"), dict(model.state_dict())
    assert mine.keys() == theirs.keys()
    assert max(float((mine[key] - theirs[key]).abs().max()) for key in mine) < 1e-3  # AdamW: 20 steps of 3e-4 at most
    assert not list((root / kind / "checkpoints").glob(".*")), "nothing is left of writing"


def test_a_checkpoint_of_two_processes_has_the_saved_weights(runs):
    root, _ = runs
    assert_same(load_file(root / "ddp" / "checkpoints" / "checkpoint-20" / "model.safetensors"), saved(root / "ddp"))


@pytest.mark.parametrize("kind", KINDS)
def test_resuming(runs, tmp_path, kind):
    root, _ = runs
    folder = tmp_path / kind
    shutil.copytree(root / kind, folder)
    shutil.rmtree(folder / "checkpoints" / "checkpoint-20")
    shutil.rmtree(folder / "model")
    train_by_two(folder, toy({**CHANGES, **KINDS[kind]}), "--resume")
    assert_same(saved(root / kind), saved(folder))
    again, before = lines(folder, "training"), lines(root / kind, "training")
    assert [line["loss"] for line in again] == [line["loss"] for line in before]


# Inside the processes

BUILD = """
import json, sys, torch
from pathlib import Path
from codingrate._distributed import exit_together
from codingrate.recipes import load_recipe
from codingrate.runs import Run
from codingrate.runs.training import build_trainer
folder = Path(sys.argv[2])
run, _ = Run.start(folder / "run", load_recipe(sys.argv[1]))
trainer = build_trainer(run, run.task, run.task.build_model(), quiet=True)
{observe}
trainer.train()
{report}
(folder / f"rank{{trainer.args.process_index}}.json").write_text(json.dumps(result))
exit_together()
"""
SHARDS = BUILD.format(
    observe="",
    report="""
from torch.distributed.tensor import DTensor
parameters = dict(trainer.model.named_parameters())
held = sum(p.to_local().numel() for p in parameters.values() if isinstance(p, DTensor))
whole = [name for name, p in parameters.items() if not isinstance(p, DTensor)]
result = [held, sum(p.numel() for p in parameters.values()), whole]
""",
)
SEEN = BUILD.format(
    observe="""
result, plain = [], trainer.task.on_batch
def on_batch(batch):
    if trainer.model.training:
        pixels = batch["pixel_values"].long()
        epoch = int(trainer.state.global_step // int(sys.argv[3]))
        result.append([epoch, (pixels[:, 0, 0, 0] * 256 + pixels[:, 0, 0, 1]).tolist()])
    return plain(batch)
trainer.task.on_batch = on_batch
""",
    report="",
)


def results_of(folder, script, recipe, *arguments):
    """Run a script on a recipe in two processes and return the result of each."""
    save_recipe(recipe, folder / "toy.yaml")
    (folder / "script.py").write_text(script)
    torchrun(folder / "script.py", folder / "toy.yaml", folder, *arguments)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_fsdp_shards(tmp_path):
    ranks = results_of(tmp_path, SHARDS, toy({**CHANGES, "run.fsdp": True, "schedule.steps": 1}))
    assert [whole for *_, whole in ranks] == [[], []], "every parameter is sharded"
    assert ranks[0][0] + ranks[1][0] == ranks[0][1], "no number is held twice"
    assert max(held / total for held, total, _ in ranks) < 0.6


def numbered(path, count):
    """Write gray images whose first two pixels are the number of their row, and a test split."""
    import datasets

    path.mkdir()
    for split, rows in (("train", count), ("test", 4)):
        images = np.zeros((rows, 8, 8), np.uint8)
        images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(rows), 256)
        table = {"image": list(images.tolist()), "label": [row % 2 for row in range(rows)]}
        datasets.Dataset.from_dict(table).to_parquet(path / f"{split}.parquet")
    return path


def rows_seen(tmp_path, rows, **changes):
    """Return the row numbers of each epoch, by process."""
    fixed = {"schedule.steps": None, "schedule.epochs": 2, "run.evaluate_epochs": 2}
    recipe = toy({**CHANGES, **fixed, "data.name": str(numbered(tmp_path / "data", rows)), **changes})
    epochs = {0: [[], []], 1: [[], []]}
    for rank, seen in enumerate(results_of(tmp_path, SEEN, recipe, -(-rows // 32))):
        for epoch, numbers in seen:
            epochs[epoch][rank] += numbers
    return epochs


def test_every_sample_is_seen_once_in_an_epoch(tmp_path):
    epochs = rows_seen(tmp_path, 320, **{"run.per_device_batch_size": 8})
    for first, second in epochs.values():
        assert sorted(first + second) == list(range(320))
        assert len(first) == len(second) == 160
    assert epochs[0] != epochs[1], "in another order"


def test_only_the_last_batch_is_filled_up(tmp_path):
    """If the rows do not divide evenly, accelerate fills the last batch with the first rows; none is left out."""
    for first, second in rows_seen(tmp_path, 310).values():
        assert sorted({*first, *second}) == list(range(310))
        assert len(first) == len(second) == 160
        repeated = sorted(first + second)
        for row in range(310):
            repeated.remove(row)
        assert len(set(repeated)) == 10


STOPPED = """
import json, os, signal, sys
from pathlib import Path
from codingrate._distributed import exit_together
from codingrate.recipes import load_recipe
from codingrate.runs import TrainingStopped, train
from codingrate.runs.callbacks import TaskHooks

class Signalled(TaskHooks):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        super().on_step_end(args, state, control, **more)

import codingrate.runs.training as training
training.TaskHooks = Signalled
folder, result = Path(sys.argv[2]), None
try:
    train(load_recipe(sys.argv[1]), folder / "run", quiet=True)
except TrainingStopped as stopped:
    result = str(stopped)
(folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))
exit_together()
"""


def test_a_signal_to_one_process_stops_both_after_the_same_step(tmp_path):
    """The processes ask each other in one step and hear the answer in the next."""
    first, second = results_of(tmp_path, STOPPED, toy({**CHANGES, "run.ema": 0.5}))
    assert first == second
    assert first.startswith("stopped after step 4, checkpoint saved")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["checkpoint-4"]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_of_a_stream_is_seen_once_in_an_epoch(tmp_path, workers):
    """Each process reads its part of the stream, and nobody divides it a second time."""
    stream = {"data.streaming": True, "data.workers": workers, "schedule.steps": 20, "run.evaluate_epochs": 0.02}
    epochs = rows_seen(tmp_path, 320, **stream)
    for first, second in epochs.values():
        assert sorted(first + second) == list(range(320))
        assert len(first) == len(second) == 160
    assert epochs[0] != epochs[1], "in another order"
    assert [line["step"] for line in lines(tmp_path / "run", "evaluation")] == [20]


# Other tasks

STEPS = {
    "schedule.batch_size": 64, "schedule.steps": 20, "run.checkpoint_steps": 20, "run.evaluate_epochs": 0,
    "optimizer.lr": 3e-4,
}  # fmt: skip


def test_student_teacher_and_center_of_self_distillation(tmp_path):
    """Crops depend on the row and the epoch, and nothing else is random here; the 20 batches lie within an epoch."""
    recipe = toy(dino(STEPS))
    train_toy(tmp_path / "one", dino(STEPS))
    train_by_two(tmp_path / "two", recipe)
    alone, together = (lines(tmp_path / name, "training") for name in ("one", "two"))
    assert [line["loss"] for line in together] == pytest.approx([line["loss"] for line in alone], abs=2e-4)
    states = [tmp_path / name / "checkpoints" / "checkpoint-20" / "model.safetensors" for name in ("one", "two")]
    mine, theirs = map(load_file, states)
    torch.testing.assert_close(theirs["center"], mine["center"], rtol=0, atol=2e-5)
    for name, weight in mine.items():
        torch.testing.assert_close(theirs[name], weight, rtol=0, atol=2e-3, msg=name)  # AdamW: 20 steps of 3e-4
    from codingrate.tasks import open_task

    start = open_task(recipe).build_model().state_dict()
    moved = max(float((mine[name] - start[name]).abs().max()) for name in mine if name.startswith("student"))
    assert moved > 3e-3, "more than the tolerance"


@pytest.mark.parametrize("kind", KINDS)
def test_an_autoencoder(tmp_path, kind):
    """Masks are drawn per process, so losses differ from those of one process; both are saved whole."""
    changes = mae({**STEPS, "run.evaluate_epochs": 1})
    train_by_two(tmp_path / "two", toy({**changes, **KINDS[kind]}))
    alone = train_toy(tmp_path / "one", changes)
    two = lines(tmp_path / "two", "evaluation")[-1]["eval_loss"]
    assert two == pytest.approx(alone.metrics["loss"], rel=0.05)
    assert saved(tmp_path / "two").keys() == saved(tmp_path / "one").keys()


def test_a_language_model(tmp_path):
    """Windows depend on their number and the epoch, and one process makes tokenizer and token files for both."""
    text = "".join(load_text("pydoc").train).encode("ascii", "ignore")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_bytes(text[: 512 * 16 - 1])  # 512 windows, with the end token
    (tmp_path / "text" / "valid.txt").write_bytes(text[-3000:])
    changes = {
        "schedule.steps": 14, "schedule.batch_size": 128, "data.name": str(tmp_path / "text"), "optimizer.lr": 3e-4,
    }  # fmt: skip
    one = train_text(tmp_path / "one", "causal-lm", changes)
    assert [line["epoch"] for line in lines(tmp_path / "one", "training")] == [step / 4 for step in range(1, 15)]
    printed = train_by_two(tmp_path / "two", text_recipe("causal-lm", changes))
    alone, together = (lines(tmp_path / name, "training") for name in ("one", "two"))
    assert [line["loss"] for line in together] == pytest.approx([line["loss"] for line in alone], abs=1e-4)
    assert printed["loss"] == pytest.approx(one.metrics["loss"], abs=1e-4)
    mine, theirs = saved(tmp_path / "one"), saved(tmp_path / "two")
    assert max(float((mine[key] - theirs[key]).abs().max()) for key in mine) < 1e-3
    names = [sorted(path.name for path in (tmp_path / name / "tokens").iterdir()) for name in ("one", "two")]
    assert names[0] == names[1]


def test_data_that_the_first_process_cannot_read_end_both(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(AssertionError, match="has no text"):
        train_by_two(tmp_path / "two", text_recipe("causal-lm", {"data.name": str(tmp_path / "empty.txt")}))
