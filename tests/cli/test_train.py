"""`crate train`, `finetune`, `recipes`, `models` and `convert`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from codingrate import create_model
from codingrate.models import CrateForImageClassification
from codingrate.recipes import load_recipe, recipe_names, save_recipe
from codingrate.runs import Run
from tests.data.conftest import write_classes
from tests.models import released_files

from .conftest import SMALL, check_refusal, crate, crate_json, last_evaluation, toy, train_toy

TINY = [
    "model.config.hidden_size=24", "model.config.num_hidden_layers=2", "model.config.num_attention_heads=3",
    "model.config.patch_size=4", "schedule.steps=2", "run.layerwise_epochs=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the recipe `digits` with a small model, trained by the command."""
    from codingrate.cli import main

    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", *TINY, "--output", str(folder), "--json"])
    assert not stop.value.code
    return folder


def size(run):
    return sum(weight.numel() for weight in load_file(run / "model" / "last" / "model.safetensors").values())


# train


def test_train_prints_json(capsys, tmp_path):
    code, out, err = crate(capsys, "train", "digits", *TINY, "--output", tmp_path / "run", "--json")
    report, last = json.loads(out), last_evaluation(tmp_path / "run")
    assert (code, err) == (0, "")
    assert report["run"] == str(tmp_path / "run")
    assert {name: report[name] for name in ("top1", "top5", "loss")} == {
        name: last[f"eval_{name}"] for name in ("top1", "top5", "loss")
    }
    assert report["parameters"] == size(tmp_path / "run")
    assert report["seconds"] > 0


def test_train_prints_text_and_shows_progress_on_standard_error(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = crate(capsys, "train", "digits", *TINY)
    top1 = f"top-1 {last_evaluation(tmp_path / 'runs' / 'digits')['eval_top1']:.2%}"
    assert code == 0
    assert top1 in out
    assert f"with {size(tmp_path / 'runs' / 'digits'):,} parameters" in out
    assert "next: crate evaluate runs/digits" in out
    assert top1 in err


def test_train_by_a_file_with_other_data(capsys, tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 6, "bee": 7})
    save_recipe(toy({"schedule.batch_size": 4, "schedule.steps": 1}), tmp_path / "own.yaml")
    call = ["train", tmp_path / "own.yaml", "--data", data, "--output", tmp_path / "run"]
    report = crate_json(capsys, *call)
    assert 0 <= report["top1"] <= 1
    assert "top5" not in report, "two classes"
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["data"]["name"] == str(data)


def test_train_names_the_folder_of_a_variant(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_recipe(toy({"schedule.steps": 1}), tmp_path / "own.yaml")
    with (tmp_path / "own.yaml").open("a") as file:
        file.write("variants:\n  slow: [optimizer.lr=0.00007]\n")
    report = crate_json(capsys, "train", "own.yaml", "--variant", "slow")
    assert report["run"] == "runs/own-slow"
    assert load_recipe("runs/own-slow/recipe.yaml").optimizer.lr == 7e-5


def test_train_resumes(capsys, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    call = ["train", "digits", *TINY, "--output", tmp_path / "run"]
    check_refusal(capsys, call, 1, "continue it with crate train --resume")
    assert crate_json(capsys, *call, "--resume")["top1"] == last_evaluation(trained)["eval_top1"]
    check_refusal(capsys, [*call, "optimizer.lr=3", "--resume"], 1, "started with optimizer.lr=")


WRONG_TRAINING = [
    (["digist"], 1, "did you mean 'digits'"),
    (["nowhere.yaml"], 1, "no such recipe file: nowhere.yaml"),
    (["digits", "optimizer.lr"], 1, "override 'optimizer.lr' must have the form key=value"),
    (["digits", "optimiser.lr=1"], 1, "did you mean 'optimizer'"),
    (["digits", "optimizer.rl=1"], 1, "did you mean 'optimizer.lr'"),
    (["digits", "optimizer.name=sgd"], 1, "optimizer.name is 'sgd'"),
    (["digits", "optimizer.lr=-1"], 1, "optimizer.lr is -1; it must be greater than 0"),
    (["digits", "schedule.batch_size=many"], 1, "schedule.batch_size is 'many'"),
    (["digits", "--data", "no-such-folder/"], 1, "no-such-folder"),
    (["digits", "--variant", "large"], 1, "unknown variant of digits 'large'"),
    (["digits", "model.from=nonsense"], 1, "model.from=nonsense"),
    (["digits", "--resume"], 1, "there is no run to resume"),
    ([], 2, "'recipe'"),
]


def test_train_refuses(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, code, message in WRONG_TRAINING:
        check_refusal(capsys, ["train", *arguments], code, message)


# finetune


def test_finetune_starts_from_the_run_by_the_papers_numbers(capsys, digits_run, tmp_path):
    run = shutil.copytree(digits_run, tmp_path / "run")
    call = ["finetune", run, "schedule.steps=2", "schedule.batch_size=360"]
    report = crate_json(capsys, *call, "run.per_device_batch_size=360")
    assert report["run"] == str(run / "finetune")
    assert 0 <= report["top1"] <= report["top5"] <= 1
    recipe = load_recipe(str(run / "finetune" / "recipe.yaml"))
    assert recipe.model.from_ == str(run / "model" / "last")
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("adamw", 5e-5, 0.01)
    assert recipe.augment == toy().augment, "runs on gray images keep their augmentation"
    check_refusal(capsys, call, 1, "a run is here already")
    again = crate_json(capsys, *call, "run.per_device_batch_size=360", "--resume")
    assert again["top1"] == report["top1"]


def test_finetune_augments_color_images_as_the_paper_does(capsys, tmp_path):
    data = write_classes(tmp_path / "a folder: with #signs", {"ape": 12, "bee": 13})
    changes = {
        "data.name": str(data), "data.test_share": 0.3, "run.seed": 7, "schedule.batch_size": 5, "schedule.steps": 1,
        "augment": {"image_size": 8, "crop": "pad", "mean": [0.4, 0.5, 0.6], "jitter": [0.1, 0.1, 0.1, 0.1]},
    }  # fmt: skip
    run = train_toy(tmp_path / "run: #7", changes)
    quick = ["schedule.steps=1", "schedule.batch_size=6", "run.per_device_batch_size=6"]
    crate_json(capsys, "finetune", run, *quick, "--output", tmp_path / "tuned")
    recipe, source = load_recipe(str(tmp_path / "tuned" / "recipe.yaml")), load_recipe(str(run / "recipe.yaml"))
    assert recipe.model.from_ == str(run / "model" / "last")
    augment = recipe.augment
    assert (augment.image_size, augment.mean, augment.evaluation_crop) == (8, (0.4, 0.5, 0.6), "resize")
    assert (augment.crop, augment.rand_augment, augment.jitter) == ("random-resized", (2, 14), None)
    assert (recipe.data, recipe.run.seed) == (source.data, 7)
    assert load_recipe("finetune-cifar10").schedule.batch_size == 256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "optimizer.rl=1"], "did you mean 'optimizer.lr'"),
        (["RUN", "--path", "x"], "--path is the folder of the dataset that --data names; give both"),
        (["RUN", "--data", "no-such-folder/"], "no-such-folder"),
        (["RUN", "--resume"], "there is no run to resume"),
    ],
    ids=str,
)
def test_finetune_refuses(capsys, digits_run, tmp_path, arguments, message):
    call = ["finetune", *(digits_run if word == "RUN" else word for word in arguments), "--output", tmp_path / "tuned"]
    check_refusal(capsys, call, 1, message)


# recipes


def test_recipes_are_listed(capsys):
    rows = crate_json(capsys, "recipes")
    assert [row["name"] for row in rows] == recipe_names()
    assert all(row["what"] and row["command"] for row in rows)
    code, out, _ = crate(capsys, "recipes")
    assert code == 0
    assert all(f"\n{name}\n" in out for name in recipe_names())
    assert out.index("\ndigits\n") < out.index("Recipes of the paper") < out.index("\ncrate-base-imagenet1k\n")
    assert max(map(len, out.splitlines())) <= 80, "readable in a narrow terminal"
    assert "96.9 % top-1" in out


def test_a_recipe_is_shown_key_by_key(capsys):
    code, out, _ = crate(capsys, "recipe", "digits", "optimizer.lr=0.5")
    assert code == 0
    assert "\noptimizer.lr: 0.5  (default: 0.001)\n    Peak learning rate.\n" in out
    assert "\nrun.fsdp: false\n" in out, "defaults too"
    shown = crate_json(capsys, "recipe", "digits", "optimizer.lr=0.5")
    assert shown["optimizer.lr"] == {"value": 0.5, "default": 0.001, "meaning": "Peak learning rate."}
    check_refusal(capsys, ["recipe", "digist"], 1, "did you mean 'digits'")
    check_refusal(capsys, ["train", "digits", "lr=3"], 1, "did you mean 'optimizer.lr'")


def test_mistakes_are_found_before_torch_is_imported():
    code = "import sys\nfrom codingrate.cli import main\ntry:\n    main(['train', 'digits', 'lr=3'])\n"
    code += "except SystemExit:\n    print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_recipe_is_shown_as_its_file_or_resolved(capsys):
    code, out, _ = crate(capsys, "recipes", "digits")
    assert code == 0
    assert out.startswith("# What: ")
    assert yaml.safe_load(out)["data"]["name"] == "digits"
    assert crate_json(capsys, "recipes", "digits") == load_recipe("digits").to_dict()
    check_refusal(capsys, ["recipes", "digist"], 1, "did you mean 'digits'")


# models


def test_models_are_listed(capsys):
    (row,) = crate_json(capsys, "models", "crate-tiny-patch16*")
    assert (row["name"], row["parameters"]) == ("crate-tiny-patch16-224", 6_090_856)
    code, out, _ = crate(capsys, "models", "crate-tiny-patch16*")
    assert code == 0
    assert "6,090,856" in out
    check_refusal(capsys, ["models", "vti-*"], 1, "no model matches 'vti-*'")


# convert


def test_convert_writes_a_folder_that_loads(capsys, tmp_path):
    from transformers import AutoModelForImageClassification

    file = tmp_path / "crate.pth"
    shapes = released_files.classifier(d=24, depth=2, side=8, patches=9, classes=5)
    torch.save({"state_dict": {f"module.{key}": torch.randn(shape) for key, shape in shapes.items()}}, file)
    report = crate_json(capsys, "convert", file, tmp_path / "model", "--heads", 3)
    assert report["model"] == "CrateForImageClassification"
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "model")
    assert model(torch.zeros(1, 3, 24, 24)).logits.shape == (1, 5)
    assert report["parameters"] == model.num_parameters()
    assert isinstance(Run(tmp_path / "model").model(), CrateForImageClassification)


def test_convert_refuses(capsys, tmp_path):
    create_model("crate-tiny-patch16-224", **SMALL).save_pretrained(tmp_path / "full")
    torch.save({"a": torch.zeros(1)}, tmp_path / "x.pth")
    check_refusal(capsys, ["convert", tmp_path / "x.pth", tmp_path / "full"], 1, "full")
    check_refusal(capsys, ["convert", "no-such-file.pth", tmp_path / "out"], 1, "no-such-file.pth")
