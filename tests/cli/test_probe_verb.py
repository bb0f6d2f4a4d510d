"""`crate probe` as a user meets it: three methods, baselines, kept features, one-line errors."""

from __future__ import annotations

import json
import shutil

import pytest

from codingrate.cli.finetune import changes
from codingrate.evaluation import extract_features, knn_probe, pixel_features
from codingrate.models import CrateForImageClassification
from codingrate.training import load_recipe, save_recipe
from tests.data.conftest import _private_cache, write_classes  # noqa: F401  (an autouse fixture)
from tests.training.toys import run as train_toy
from tests.training.toys import toy

from .test_training_verbs import crate

BOTH = ["--baseline", "untrained", "--baseline", "pixels"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe") / "run"
    train_toy(folder, {"schedule.steps": 2})
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_neighbours_of_the_trained_the_untrained_and_the_pixels(capsys, run, digits):
    code, out, _ = crate(capsys, "probe", run, "--method", "knn", *BOTH, "--json")
    report = json.loads(out)
    assert code == 0
    about = {"run": str(run), "which": "last", "data": "digits"}
    assert {key: report[key] for key in about} == about
    assert list(report["probes"]) == ["trained", "untrained", "pixels"]
    augment = load_recipe(str(run / "recipe.yaml")).augment
    model = CrateForImageClassification.from_pretrained(run / "model" / "last")
    for name, source in (
        ("trained", lambda split: extract_features(model, digits, augment, split=split)),
        ("pixels", lambda split: pixel_features(digits, augment, split=split)),
    ):
        wanted = knn_probe(source("train"), source("test"))
        found = report["probes"][name]
        assert (found["metrics"], found["chosen"]) == (wanted.metrics, wanted.chosen)
        assert found["about"] == {**about, "features": name}
        assert json.loads((run / "probe" / f"knn-{name}.json").read_text()) == found
    widths = {name: probe["width"] for name, probe in report["probes"].items()}
    assert widths == {"trained": 24, "untrained": 24, "pixels": 64}
    assert report["probes"]["untrained"]["metrics"] != report["probes"]["trained"]["metrics"]
    assert len(list((run / "features").iterdir())) == 6, "three kinds of features, two splits"


def test_the_untrained_model_is_always_the_same(capsys, run):
    call = ["probe", run, "--method", "knn", *BOTH, "--limit", 100, "--json"]
    first, second = (json.loads(crate(capsys, *call)[1])["probes"]["untrained"]["metrics"] for _ in range(2))
    assert first == second
    assert len(list((run / "features").iterdir())) == 6


def test_a_table_for_people(capsys, run, tmp_path):
    call = ["probe", run, "--limit", 200, "--output", tmp_path / "out", "--cache", tmp_path / "kept"]
    for method, letter, names in (
        ("logistic", "C", ["trained"]),
        ("knn", "k", ["trained", "untrained", "pixels"]),
    ):
        code, out, _ = crate(capsys, *call, "--method", method, *(BOTH if len(names) > 1 else []))
        assert code == 0
        assert f"{method} on digits" in " ".join(out.split())
        for name in names:
            report = json.loads((tmp_path / "out" / f"{method}-{name}.json").read_text())
            (line,) = (line for line in out.splitlines() if line.startswith(f"│ {name} "))
            assert f"{report['metrics']['top1']:.2%}" in line
            assert f"{letter} = {report['chosen'][letter]:g} " in line
    assert len(list((tmp_path / "kept").iterdir())) == 6
    assert not (run / "probe").exists()
    assert not (run / "features").exists()


def test_other_data_and_other_neighbours(capsys, run, tmp_path):
    data = write_classes(tmp_path / "data", {"ant": 20, "bee": 20})
    code, out, _ = crate(capsys, "probe", run, "--data", data, "--method", "knn", "--k", 3, "--k", 5, "--json")
    report = json.loads(out)["probes"]["trained"]
    assert code == 0
    assert [row["k"] for row in report["table"]] == [3, 5]
    assert report["images"] == {"train": 36, "test": 4}
    assert report["metrics"]["top5"] is None


def test_finetuning_starts_from_the_run_by_the_papers_numbers(capsys, run, tmp_path):
    call = ["probe", run, "--method", "finetune", "--json", "schedule.steps=2", "schedule.batch=360"]
    code, out, _ = crate(capsys, *call, "run.device_batch=360")
    report = json.loads(out)
    assert code == 0
    assert report["run"] == str(run / "finetune")
    assert 0 <= report["top1"] <= report["top5"] <= 1
    recipe = load_recipe(str(run / "finetune" / "recipe.yaml"))
    assert recipe.model.from_ == str(run / "model" / "last")
    assert (recipe.optimise.name, recipe.optimise.lr, recipe.optimise.weight_decay) == ("adamw", 5e-5, 0.01)
    assert recipe.augment == toy().augment
    code, _, said = crate(capsys, *call)
    assert (code, "holds a run already" in said) == (1, True)
    code, out, _ = crate(capsys, *call, "run.device_batch=360", "--resume")
    assert code == 0
    assert json.loads(out)["top1"] == report["top1"]


def test_finetuning_in_colour_varies_images_as_the_paper_does(tmp_path):
    run = toy({
        "augment": {"image_size": 32, "crop": "pad", "mean": [0.4, 0.5, 0.6], "jitter": [0.1, 0.1, 0.1, 0.1]},
        "run.seed": 7, "data.test_share": 0.3,
    })  # fmt: skip
    recipe = load_recipe("finetune-cifar10", changes(run, tmp_path / "a folder: with #signs"))
    assert recipe.model.from_ == str(tmp_path / "a folder: with #signs")
    augment = recipe.augment
    assert (augment.image_size, augment.mean, augment.evaluation_crop) == (32, (0.4, 0.5, 0.6), "resize")
    assert (augment.crop, augment.rand_augment, augment.jitter) == ("random-resized", (2, 14), None)
    assert (recipe.data, recipe.run.seed, recipe.schedule.batch) == (run.data, 7, 256)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["RUN", "--method", "knm"], 1, "did you mean 'knn'"),
        (["RUN", "--which", "lats"], 1, "did you mean 'last'"),
        (["nowhere"], 1, "nowhere: is not a run folder"),
        (["RUN", "--k", "3"], 1, "--k does not go with --method logistic"),
        (["RUN", "--method", "knn", "--k", "0"], 2, "--k"),
        (["RUN", "--method", "knn", "--k", "2000"], 1, "1438 training images are too few for k=2000"),
        (
            ["RUN", "--data", "RARE", "--method", "knn", "--limit", "5"],
            1,
            "5 training images are too few for k=10",
        ),
        (["RUN", "optimise.lr=1"], 1, "key=value does not go with --method logistic"),
        (["RUN", "--resume"], 1, "--resume does not go with"),
        (["RUN", "--method", "finetune", *BOTH], 1, "--baseline does not go with --method finetune"),
        (["RUN", "--baseline", "pixel"], 1, "pixels"),
        (["RUN", "--method", "finetune", "--limit", "9"], 1, "--limit does not go with"),
        (["RUN", "--method", "finetune", "optimise.rl=1"], 1, "did you mean 'optimise.lr'"),
        (["RUN", "--path", "x"], 1, "--path says where the files of --data lie"),
        (["RUN", "--data", "no-such-folder/"], 1, "no-such-folder"),
        (["RUN", "--data", "ONE"], 1, "one class only"),
        (["RUN", "--data", "RARE", "--limit", "2"], 1, "one class only"),
        (["RUN", "--data", "RARE", "--limit", "3"], 1, "class 'bee' has a single training image"),
        (["LANGUAGE"], 1, "a CrateForCausalLM gives no features of images"),
        ([], 2, "'run'"),
    ],
    ids=str,
)
def test_bad_probes_get_one_line_and_a_code(capsys, run, tmp_path, arguments, code, words):
    places = {"RUN": run, "ONE": tmp_path / "one", "RARE": tmp_path / "rare", "LANGUAGE": tmp_path / "language"}
    write_classes(tmp_path / "one", {"ape": 4})
    write_classes(tmp_path / "rare", {"ape": 9, "bee": 5})
    if "LANGUAGE" in arguments:
        from codingrate.models import CrateConfig, CrateForCausalLM

        config = CrateConfig(
            modality="text", hidden_size=12, num_hidden_layers=1, num_attention_heads=3, vocab_size=17, causal=True
        )
        CrateForCausalLM(config).save_pretrained(tmp_path / "language" / "model" / "last")
        save_recipe(toy(), tmp_path / "language" / "recipe.yaml")
    got, out, said = crate(capsys, "probe", *(places.get(argument, argument) for argument in arguments))
    assert got == code
    assert words.lower() in said.lower()
    assert out == ""


@pytest.fixture
def digits():
    from codingrate.data import load_images

    return load_images("digits")
