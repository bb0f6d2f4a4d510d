"""`crate train`, `crate evaluate`, `crate recipes` as a user meets them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml

from codingrate.cli import main
from codingrate.training import recipe_names, save_recipe
from tests.data.conftest import _private_cache, write_classes  # noqa: F401  (an autouse fixture)
from tests.training.toys import lines, saved, toy

TINY = [
    "model.config.hidden_size=24", "model.config.num_hidden_layers=2", "model.config.num_attention_heads=3",
    "model.config.patch_size=4", "schedule.steps=2", "run.layerwise_epochs=0",
]  # fmt: skip


def crate(capsys, *arguments):
    """Exit code, standard output, and the one line that an error gets."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line.startswith("crate:")]
    code = int(stop.value.code or 0)
    assert len(said) == (code != 0)
    return code, out, said[0] if said else err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", *TINY, "--output", str(folder), "--json"])
    assert not stop.value.code
    return folder


def size(run):
    return sum(weight.numel() for weight in saved(run).values())


# train


def test_train_prints_json(capsys, tmp_path):
    code, out, err = crate(capsys, "train", "digits", *TINY, "--output", tmp_path / "run", "--json")
    report = json.loads(out)
    last = lines(tmp_path / "run", "evaluation")[-1]
    assert code == 0
    assert err == ""
    assert report["run"] == str(tmp_path / "run")
    assert (report["top1"], report["top5"], report["loss"]) == (last["eval_top1"], last["eval_top5"], last["eval_loss"])
    assert report["parameters"] == size(tmp_path / "run")
    assert report["seconds"] > 0


def test_train_prints_text(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = crate(capsys, "train", "digits", *TINY)
    top1 = lines(tmp_path / "runs" / "digits", "evaluation")[-1]["eval_top1"]
    assert code == 0
    assert f"top-1 {top1:.2%}" in out
    assert f"with {size(tmp_path / 'runs' / 'digits'):,} parameters" in out
    assert "next: crate evaluate runs/digits" in out
    assert f"top-1 {top1:.2%}" in err, "progress goes to standard error"


def test_train_by_a_file_with_other_data(capsys, tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 6, "bee": 7})
    save_recipe(toy({"schedule.batch": 4, "schedule.steps": 1}), tmp_path / "own.yaml")
    call = ["train", tmp_path / "own.yaml", "--data", data, "--output", tmp_path / "run", "--json"]
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert json.loads(out)["top5"] == 1
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["data"]["name"] == str(data)


def test_train_resumes(capsys, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    code, _, said = crate(capsys, "train", "digits", *TINY, "--output", tmp_path / "run")
    assert (code, "go on with --resume" in said) == (1, True)
    code, out, _ = crate(capsys, "train", "digits", *TINY, "--output", tmp_path / "run", "--resume", "--json")
    assert code == 0
    assert json.loads(out)["top1"] == lines(trained, "evaluation")[-1]["eval_top1"]
    code, _, said = crate(capsys, "train", "digits", *TINY, "optimise.lr=3", "--output", tmp_path / "run", "--resume")
    assert (code, "optimise.lr" in said) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["digist"], 1, "did you mean 'digits'"),
        (["nowhere.yaml"], 1, "nowhere.yaml: no such recipe file"),
        (["digits", "optimise.lr"], 1, "override 'optimise.lr' is not of the form key=value"),
        (["digits", "optimize.lr=1"], 1, "did you mean 'optimise'"),
        (["digits", "optimise.rl=1"], 1, "did you mean 'optimise.lr'"),
        (["digits", "optimise.name=sgd"], 1, "optimise.name"),
        (["digits", "optimise.lr=-1"], 1, "optimise.lr is -1.0; it must be positive"),
        (["digits", "schedule.batch=many"], 1, "schedule.batch"),
        (["digits", "--data", "no-such-folder/"], 1, "no-such-folder"),
        (["digits", "--variant", "large"], 1, "large"),
        (["digits", "model.from=nonsense"], 1, "model.from: nonsense"),
        (["digits", "--resume"], 1, "holds no run to resume"),
        (["digits", "--nope"], 2, "--nope"),
        ([], 2, "'recipe'"),
    ],
    ids=str,
)
def test_bad_trains_get_one_line_and_a_code(capsys, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    got, out, said = crate(capsys, "train", *arguments)
    assert got == code
    assert words.lower() in said.lower()
    assert out == ""


def test_debug_shows_the_traceback(tmp_path):
    from codingrate import CrateError

    with pytest.raises(CrateError, match="holds no run"):
        main(["train", "digits", "--output", str(tmp_path / "none"), "--resume", "--debug"])


# evaluate


def test_evaluate_agrees_with_training(capsys, trained, tmp_path):
    code, out, _ = crate(capsys, "evaluate", trained, "--output", tmp_path / "report", "--json")
    report, last = json.loads(out), lines(trained, "evaluation")[-1]
    assert code == 0
    assert report["top1"] == pytest.approx(last["eval_top1"], abs=1e-9)
    assert report["top5"] == pytest.approx(last["eval_top5"], abs=1e-9)
    assert report["loss"] == pytest.approx(last["eval_loss"], rel=1e-5)
    assert (report["run"], report["which"], report["split"], report["images"]) == (str(trained), "last", "test", 359)
    assert report["folder"] == str(tmp_path / "report")
    assert (tmp_path / "report" / "confusion.png").stat().st_size > 1000


def test_evaluate_prints_a_table(capsys, trained):
    code, out, _ = crate(capsys, "evaluate", trained, "--split", "train", "--which", "best", "--batch", "100")
    assert code == 0
    assert "best model, train split" in " ".join(out.split())
    assert "1438 images" in out
    assert len(re.findall(r"│ \d ", out)) == 10, "a row for every class"
    assert (trained / "evaluation" / "confusion.png").is_file()


def test_evaluate_other_data(capsys, trained, tmp_path):
    data = write_classes(tmp_path / "data", {str(digit): 2 for digit in range(10)})
    call = ["evaluate", trained, "--data", data, "--output", tmp_path / "report", "--json"]
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert json.loads(out)["images"] == 10


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["RUN", "--which", "lats"], 1, "did you mean 'last'"),
        (["RUN", "--split", "tset"], 1, "did you mean 'test'"),
        (["RUN", "--batch", "0"], 2, "--batch"),
        (["RUN", "--data", "no-such-folder/"], 1, "no-such-folder"),
        (["RUN", "--data", "TWO"], 1, "tells 10 classes apart"),
        (["nowhere"], 1, "nowhere: is not a run folder"),
        (["RUN/model"], 1, "is not a run folder"),
        (["UNTRAINED"], 1, "holds no saved model"),
        ([], 2, "'run'"),
    ],
    ids=str,
)
def test_bad_evaluations_get_one_line_and_a_code(capsys, trained, tmp_path, arguments, code, words):
    (tmp_path / "untrained").mkdir()
    shutil.copy(trained / "recipe.yaml", tmp_path / "untrained")
    write_classes(tmp_path / "two", {"ape": 4, "bee": 4})
    places = {
        "RUN": trained,
        "UNTRAINED": tmp_path / "untrained",
        "TWO": tmp_path / "two",
        "RUN/model": trained / "model",
    }
    got, out, said = crate(capsys, "evaluate", *(places.get(argument, argument) for argument in arguments))
    assert got == code
    assert words.lower() in said.lower()
    assert out == ""


# recipes


def test_recipes_are_listed(capsys):
    code, out, _ = crate(capsys, "recipes", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == recipe_names()
    assert all(row["what"] and row["command"] for row in rows)
    code, out, _ = crate(capsys, "recipes")
    assert code == 0
    assert all(name in out for name in recipe_names())


def test_a_recipe_is_shown(capsys):
    code, out, _ = crate(capsys, "recipes", "digits")
    assert code == 0
    assert out.startswith("# What: ")
    assert yaml.safe_load(out)["data"]["name"] == "digits"


def test_a_recipe_is_shown_as_json(capsys):
    code, out, _ = crate(capsys, "recipes", "digits", "--json")
    assert code == 0
    assert json.loads(out)["data"]["name"] == "digits"


def test_an_unknown_recipe(capsys):
    code, out, said = crate(capsys, "recipes", "digist")
    assert (code, out) == (1, "")
    assert "did you mean 'digits'" in said
