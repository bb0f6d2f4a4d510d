"""`crate curves`, the milestones of a run, and `crate glue --checkpoints all`."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from codingrate.data import GLUE
from codingrate.inspection import read_metrics
from codingrate.runs import Run, kept_steps, train

from .conftest import check_refusal, crate, crate_json, train_toy, words


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run of five steps that keeps two of them and the last checkpoint."""
    changes = {"schedule.steps": 5, "run.milestones": [1, 3], "run.save_total_limit": 1, "run.checkpoint_steps": 2}
    return train_toy(tmp_path_factory.mktemp("runs") / "kept", changes)


def test_milestones_are_kept_beside_the_latest_checkpoint(kept):
    assert kept_steps(Run(kept)) == [1, 3, 5]
    assert Run(kept).evaluate(checkpoint=1).loss != Run(kept).evaluate(checkpoint=3).loss


def test_curves_draw_what_was_logged(capsys, kept, digits_run, tmp_path):
    report = crate_json(capsys, "curves", kept, digits_run, "--output", tmp_path / "loss.png")
    logged = read_metrics(kept / "metrics.jsonl")
    wanted = [(line["step"], "training", line["loss"]) for line in logged if line["kind"] == "training"]
    wanted += [(line["step"], "validation", line["eval_loss"]) for line in logged if line["kind"] == "evaluation"]
    found = [(one["step"], one["split"], one["value"]) for one in report["curves"]["kept"]]
    assert sorted(found) == sorted(wanted)
    assert list(report["curves"]) == ["kept", "digits"]
    with Image.open(tmp_path / "loss.png") as picture:
        assert min(picture.size) > 400
    code, out, _ = crate(capsys, "curves", kept, "--metric", "top1", "--output", tmp_path / "top1.svg")
    assert code == 0
    assert "validation" in out
    assert "training step" in (tmp_path / "top1.svg").read_text()
    check_refusal(capsys, ["curves", kept, "--metric", "los"], 1, "logged no 'los'; known:")


@pytest.mark.slow
def test_glue_scores_every_checkpoint(capsys, tmp_path):
    (tmp_path / "text").mkdir()
    for seed, split in enumerate(("train", "valid")):
        (tmp_path / "text" / f"{split}.txt").write_text(words(seed, 400))
    config = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.0}
    recipe = {
        "task": "masked-lm", "model": {"name": "crate-bert-base", "config": config}, "text": {"block": 32},
        "data": {"name": str(tmp_path / "text"), "workers": 0}, "schedule": {"steps": 3, "batch_size": 4},
        "run": {"evaluate_epochs": 0, "milestones": [1], "save_total_limit": 1},
    }  # fmt: skip
    from codingrate.recipes import build_recipe

    run = train(build_recipe(recipe), tmp_path / "run", quiet=True).folder
    folder = tmp_path / "glue" / "rte"
    folder.mkdir(parents=True)
    for split, count in (("train", 16), ("validation", 8)):
        rows = [{**dict.fromkeys(GLUE["rte"].columns, words(index, 5)), "label": index % 2} for index in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = [
        "glue",
        run,
        "schedule.epochs=1",
        "schedule.batch_size=8",
        "run.precision=fp32",
        "text.max_length=30",
        "data.workers=0",
    ]
    call += ["--data", tmp_path / "glue", "--checkpoints", "all", "--output", tmp_path / "curve"]
    report = crate_json(capsys, *call)
    assert [one["step"] for one in report["curve"]] == [1, 3]
    assert (tmp_path / "curve" / "curve.png").stat().st_size > 1000
    assert (tmp_path / "curve" / "step-1" / "rte" / "scores.json").is_file()
    check_refusal(capsys, ["glue", run, "--checkpoints", "some"], 1, "it can only be all")
