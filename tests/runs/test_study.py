"""Studies: a grid of runs gives one table, whether it was interrupted or not."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from codingrate import __version__
from codingrate.cli import main
from codingrate.recipes import load_study, study_names
from codingrate.runs import Run, TrainingStopped, check_study, run_study
from codingrate.runs.callbacks import Metrics
from tests.refusals import refused

from .toys import ENVIRONMENT, one_error, python, torchrun

GRID = """\
what: Does depth matter?
recipe: digits
overrides: [schedule.epochs=1, schedule.batch_size=256, run.layerwise_epochs=0, run.checkpoint_steps=2]
rows:
  ViT: {overrides: [model.config.attention=mhsa, model.config.sparsifier=mlp, model.config.skip=residual]}
  wide: [model.config.hidden_size=120]
grid: {model.config.num_hidden_layers: [1, 2]}
seeds: [3, 4]
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "depth.yaml").write_text(GRID)
    return tmp_path / "depth.yaml"


def test_rows_and_the_grid_become_recipes(study):
    plan = load_study(str(study))
    assert list(plan.settings) == ["ViT", "wide", "num_hidden_layers=1", "num_hidden_layers=2"]
    recipe = plan.recipe_of("num_hidden_layers=2", 4, ("optimizer.lr=0.5",))
    assert (recipe.model.config["num_hidden_layers"], recipe.run.seed, recipe.optimizer.lr) == (2, 4, 0.5)
    assert plan.recipe_of("ViT", 3).model.config["attention"] == "mhsa"


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_are_valid(name):
    plan = load_study(name)
    recipes = [plan.recipe_of(row, plan.seeds[0]) for row in plan.settings]
    assert all(one != two for one, two in itertools.pairwise(recipes)), "rows differ"
    assert len(plan.seeds) >= 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rows"), ("recipe: digts\nrows: {a: []}", "digits"), ("rows: {a: [lr=1]}", "optimizer.lr"),
        ("seed: [1]\nrows: {a: []}", "seed"), ("seeds: []\nrows: {a: []}", "seeds"),
        ("seeds: [4294967296]\nrows: {a: []}", "seeds.0"),
        (f"grid: {dict.fromkeys(['optimizer.lr', 'schedule.epochs', 'schedule.batch_size'], [1] * 51)}", "1000"),
        *((f"rows: {{'{row}': []}}", "name") for row in ("..", ".", "/", "-")),
    ],
)  # fmt: skip
def test_mistakes_are_refused(tmp_path, text, words):
    recipe = "" if "recipe" in text else "recipe: digits\n"
    (tmp_path / "study.yaml").write_text(f"what: a\n{recipe}{text}\n")
    refused(words, run_study, tmp_path / "study.yaml", tmp_path / "out")
    assert not (tmp_path / "out").exists(), "no run is written, here or elsewhere"
    refused("digits-architecture", load_study, "digits-architectur")


def logged(output):
    """Return the number of lines that the runs of a study have logged."""
    return sum(len(file.read_bytes().splitlines()) for file in output.glob("*/*/metrics.jsonl"))


def killed_at_random(study, output, draw):
    """Run `crate study` in processes that are killed after a random number of logged lines, until one ends by itself.

    Return how many were killed.
    """
    arguments = [sys.executable, "-m", "codingrate", "study", str(study), "--output", str(output)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    for killed in itertools.count():
        enough = logged(output) + draw.randint(1, 6)  # of 24
        with subprocess.Popen(arguments, env=ENVIRONMENT, **quiet) as process:
            while process.poll() is None and logged(output) < enough:
                time.sleep(0.05)
            time.sleep(draw.uniform(0, 0.5))  # between two lines, a run writes checkpoints and results
            process.kill()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0
            return killed


@pytest.mark.slow
def test_an_interrupted_study_gives_the_same_table(study, tmp_path, monkeypatch):
    """Processes are killed; training is stopped before and after a checkpoint; a finished run is not trained again."""
    whole = run_study(study, tmp_path / "whole")
    assert killed_at_random(study, tmp_path / "killed", random.Random(0)) > 2
    killed = pd.read_csv(tmp_path / "killed" / "runs.csv").drop(columns="seconds")
    pd.testing.assert_frame_equal(killed, whole.runs.drop(columns="seconds"), check_dtype=False, check_exact=True)
    assert whole.runs["seed"].tolist() == [3, 4] * 4
    stops = [3, 11]

    def on_log(self, args, state, control, logs=None, **_):
        original(self, args, state, control, logs, **_)
        stop_at.append(state.global_step)
        if len(stop_at) in stops:
            raise TrainingStopped(args.output_dir, state.global_step, 2)

    original, stop_at = Metrics.on_log, []
    monkeypatch.setattr(Metrics, "on_log", on_log)
    for _ in stops:
        with pytest.raises(TrainingStopped, match="continue with the same command: crate study depth"):
            run_study(study, tmp_path / "parts")
    parts = run_study(study, tmp_path / "parts")
    values = [name for name in whole.runs if name != "seconds"]
    pd.testing.assert_frame_equal(whole.runs[values], parts.runs[values])
    monkeypatch.setattr("codingrate.runs.study.train", None)
    again = run_study(study, tmp_path / "parts")
    pd.testing.assert_frame_equal(again.runs, parts.runs)

    table = whole.table.set_index("row")
    runs = whole.runs.set_index(["row", "seed"])
    both = [runs.loc[("wide", seed), "loss"] for seed in (3, 4)]
    assert table.loc["wide", "loss"] == pytest.approx(np.mean(both))
    assert table.loc["wide", "loss_std"] == pytest.approx(abs(both[0] - both[1]) / 2**0.5)
    assert Run(tmp_path / "whole" / "wide" / "seed-4").metrics["loss"] == both[1]
    saved = json.loads((tmp_path / "whole" / "study.json").read_text())
    assert saved["runs"][0]["top1"] == whole.runs["top1"][0]
    assert (tmp_path / "whole" / "table.md").read_text().count("\n|") == 6
    assert (tmp_path / "whole" / "figure.png").stat().st_size > 1000
    refused("the run there has another recipe", run_study, study, tmp_path / "whole", ["optimizer.lr=0.1"])


def test_a_run_of_the_table_is_trained_again(tmp_path, capsys):
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    settings = "[schedule.steps=2, schedule.batch_size=256, model.config.hidden_size=24, run.layerwise_epochs=0]"
    file.write_text(f"what: a\nrecipe: digits\noverrides: {settings}\nrows: {{plain: []}}\nseeds: [5]\n")
    refused(str(out), check_study, file, out)
    report, found = run_study(file, out), check_study(file, out)
    assert (found.row, found.seed, found.version, found.different) == ("plain", 5, __version__, [])
    page = (out / "table.md").read_text().splitlines()[-1]
    assert all(words in page for words in (f"crate study {file}", __version__, "5")), "a table says how to repeat it"
    assert found.recorded == {name: report.runs[name][0] for name in found.recorded}
    assert {"loss", "top1"} <= set(found.recorded)
    stored = json.loads((out / "study.json").read_text())
    stored["runs"][0]["loss"] *= 1.001
    (out / "study.json").write_text(json.dumps(stored))
    with pytest.raises(SystemExit) as stop:
        main(["study", str(file), "--check", "--output", str(out)])
    assert stop.value.code == 1
    assert "loss" in capsys.readouterr().err


# Several processes

SMALL = """\
what: Does depth matter?
recipe: digits
overrides: [schedule.steps=2, schedule.batch_size=64, run.layerwise_epochs=0, run.evaluate_epochs=0, data.workers=0]
grid: {model.config.num_hidden_layers: [1, 2]}
seeds: [3, 4]
"""


PLAIN = ("augment.affine_degrees=0", "augment.affine_translate=0", "augment.affine_scale=0")
"""Without augmentation, which is drawn per process."""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path / "small.yaml"


def test_shards_train_each_run_once_and_together_give_the_table(small, tmp_path):
    whole = run_study(small, tmp_path / "whole").runs.drop(columns="seconds")
    finished = {}
    for number in (3, 1, 2):
        report = run_study(small, tmp_path / "shards", shard=(number, 3))
        finished[number] = len(report.runs)
        assert report.planned == 4
        assert not (tmp_path / "shards" / "study.json").exists()
    assert finished == {3: 1, 1: 3, 2: 4}, "the first shard has two runs"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("metrics.jsonl")}
    table = run_study(small, tmp_path / "shards").runs.drop(columns="seconds")
    pd.testing.assert_frame_equal(table, whole)
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing is trained again"
    assert (tmp_path / "shards" / "study.json").is_file()


def test_a_study_measures_the_layers_of_its_models(tmp_path):
    file, folder = tmp_path / "layers.yaml", tmp_path / "runs"
    rows = "rows: {mssa: [], wide: [model.config.hidden_size=120]}\nseeds: [0]\nmeasure_layers: 20\n"
    file.write_text(GRID[: GRID.index("rows:")].replace("epochs=1,", "epochs=0.2,") + rows)
    report = run_study(file, folder)
    for _, line in report.runs.iterrows():
        layers = report.layers[report.layers["row"] == line["row"]]
        assert (set(layers["samples"]), list(layers["layer"])) == ({20}, list(range(1, 7)))
        gaps = layers[["gap_uniform", "gap_random", "gap_permuted", "gap_mean"]]
        expected = (layers["alignment"].min(), (gaps < 0).to_numpy().mean(), layers["reduction_normalized"].iloc[-1])
        assert (line["alignment"], line["beaten"], line["reduction"]) == expected
    pd.testing.assert_frame_equal(pd.read_csv(folder / "layers.csv"), report.layers)
    assert (folder / "frontier.png").read_bytes()[:4] == b"\x89PNG"


def test_impossible_shards_are_refused(small, tmp_path):
    wrong = [{"shard": shard} for shard in ((0, 2), (3, 2), (1, 5))]
    for options in (*wrong, {"shard": (1, 2), "jobs": 2}, {"jobs": 0}):
        refused(next(iter(options)) if len(options) > 1 else "", run_study, small, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_jobs_and_torchrun_give_the_table_of_one_process(small, tmp_path):
    """Jobs train each run alone, bit for bit; under torchrun, each run is trained by all processes together."""
    call = ["-m", "codingrate", "study", str(small), *PLAIN, "--json", "--output"]
    alone, jobs = (
        python(*call, str(tmp_path / name), *more, seconds=900)
        for name, more in (("one", []), ("jobs", ["--jobs", "2"]))
    )
    together = torchrun(*call, str(tmp_path / "torchrun"))
    one, two, three = (pd.DataFrame(json.loads(text)["runs"]) for text in (alone.stdout, jobs.stdout, together))
    assert len(one) == 4
    pd.testing.assert_frame_equal(two.drop(columns="seconds"), one.drop(columns="seconds"))
    pd.testing.assert_frame_equal(three.drop(columns="seconds"), one.drop(columns="seconds"), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_an_error_in_a_job_is_one_line(small, tmp_path):
    (tmp_path / "out" / "num_hidden_layers=2" / "seed-4").mkdir(parents=True)
    (tmp_path / "out" / "num_hidden_layers=2" / "seed-4" / "mine.txt").write_text("not a run")
    done = python(
        "-m", "codingrate", "study", str(small), "--output", str(tmp_path / "out"), "--jobs", "2", seconds=900
    )
    assert "a process of the study has failed" in one_error(done)
    assert "the folder is not empty (mine.txt)" in one_error(done)
