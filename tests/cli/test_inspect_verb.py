"""`crate inspect` as a user meets it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from codingrate import create_model
from codingrate.inspection import layerwise
from codingrate.models import CrateForCausalLM
from codingrate.training import load_weights
from tests.data.conftest import _private_cache, write_classes  # noqa: F401  (an autouse fixture)
from tests.inspection.test_segment import SMALL
from tests.pages import Reader
from tests.training.toys import run as train_toy

from .test_text_verbs import _own_token_files, gpt, said  # noqa: F401  (fixtures)
from .test_training_verbs import crate

TWIN = {"model.config.attention": "mhsa", "model.config.sparsifier": "mlp", "model.config.skip": "residual"}
LAYERS = {"compression", "attention-step", "sparsity", "small-entries", "rates"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run on grey images of digits, without a class token, that measured its layers twice."""
    folder = tmp_path_factory.mktemp("inspect") / "digits"
    train_toy(folder, {"schedule.epochs": 1, "run.layerwise_epochs": 1, "run.layerwise_images": 3})
    return folder


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """Its black-box twin."""
    folder = tmp_path_factory.mktemp("twin") / "vit"
    train_toy(folder, {"schedule.steps": 1, **TWIN})
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are left out, which take most of the time of a report of so little."""
    monkeypatch.setattr("codingrate.inspection.report._figure", lambda panel, folder: "")


def compression(report):
    return [row["compression"] for row in report["panels"]["compression"]["table"]]


@pytest.mark.usefixtures("undrawn")
def test_a_run_is_measured_on_its_own_test_split(capsys, digits):
    report = said(capsys, "inspect", digits, "--batch", 100)
    assert report["report"] == str(digits / "inspect" / "report.html")
    kept = json.loads((digits / "inspect" / "report.json").read_text())
    assert {**kept, "report": report["report"]} == report
    assert {"across-training", "subspaces", "tokens", "patches", *LAYERS} <= set(report["panels"])
    assert "attention" not in report["panels"]
    assert report["notes"] == [
        "No attention maps: the model has no class token whose attention could be shown; take one with "
        "class_token=True, or crate segment, which needs none."
    ]
    assert report["facts"]["Data"] == {"name": "digits", "split": "test", "samples": 359}
    assert report["facts"]["Command"] == f"crate inspect {digits}"
    assert report["facts"]["Recipe of digits"] == (digits / "recipe.yaml").read_text()
    assert report["facts"]["Model digits"]["config"]["hidden_size"] == 24
    from codingrate.data import load_images

    rows = load_images("digits").test["image"]
    images = np.stack([np.frombuffer(row["bytes"][-64:], np.uint8).reshape(8, 8) for row in rows])
    pixels = (torch.from_numpy(images.copy())[:, None].float() / 255 - 0.5) / 0.5
    expected = layerwise(load_weights(str(digits / "model" / "last")), [pixels])
    assert compression(report) == pytest.approx(expected["compression"].tolist(), rel=1e-4)


def test_the_page_is_whole_and_a_table_says_what_was_found(capsys, digits, twin, tmp_path):
    options = ("--compare", twin, "--limit", 5, "--layers", -1, "--measure", "released", "--eps", 0.2)
    code, out, _ = crate(capsys, "inspect", digits, *options, "--output", tmp_path / "out")
    assert code == 0
    assert "digits" in out
    assert "vit" in out
    assert "5 samples of the test split of digits" in out
    assert f"report: {tmp_path / 'out' / 'report.html'}" in " ".join(out.split())
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    read = Reader.of(page)
    assert len(read.ids) == len(set(read.ids))
    for reference in read.references:
        assert reference.startswith(("#", "data:image/png;base64,")) or (tmp_path / "out" / reference).is_file()
        assert not reference.startswith("#") or reference[1:] in read.ids
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    table = report["panels"]["compression"]["table"]
    assert [(row["model"], row["layer"]) for row in table] == [("digits", 2), ("vit", 2)]
    assert f"--compare {twin} --layers -1 --eps 0.2 --measure released" in report["facts"]["Command"]
    for panel in report["panels"].values():
        plain = panel["measured"].translate(str.maketrans("", "", "^{}"))
        assert plain.split("_")[0] in read.text
    model = load_weights(str(twin / "model" / "last"))
    assert report["facts"]["Model vit"]["parameters"] == sum(weight.numel() for weight in model.parameters())


@pytest.mark.usefixtures("undrawn")
def test_checkpoints_of_a_run_are_measured_beside_it_as_the_run_reads_images(capsys, digits, twin, tmp_path):
    (checkpoint,) = sorted((digits / "checkpoints").iterdir())[-1:]
    others = ("--compare", checkpoint, "--compare", twin)
    report = said(capsys, "inspect", digits, *others, "--limit", 50, "--output", tmp_path / "out")
    rows = report["panels"]["compression"]["table"]
    by_model = {
        name: [row["compression"] for row in rows if row["model"] == name] for name in ("digits", checkpoint.name)
    }
    assert by_model["digits"] == by_model[checkpoint.name], "the last checkpoint is the last model"
    assert {row["model"] for row in rows} == {"digits", checkpoint.name, "vit"}
    assert report["facts"][f"Recipe of {checkpoint.name}"] == (digits / "recipe.yaml").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_model_without_a_run_looks_at_two_photographs(capsys, saved, tmp_path):
    report = said(capsys, "inspect", saved, "--batch", 20, "--output", tmp_path)
    assert report["facts"]["Data"]["samples"] == 32
    assert report["notes"] == [
        "Without --data, on 32 parts of scikit-learn's two photographs: enough to look, not to judge."
    ]
    assert {"attention", "heads", "patches"} <= set(report["panels"])
    assert "On 32 images" in report["panels"]["heads"]["measured"]
    assert len(report["panels"]["heads"]["table"]) == SMALL["num_attention_heads"]


@pytest.mark.usefixtures("undrawn")
def test_a_preset_is_said_to_be_untrained(capsys, tmp_path, monkeypatch):
    from codingrate import models

    build = models.create_model
    monkeypatch.setattr(models, "create_model", lambda name: build(name, **SMALL))
    monkeypatch.chdir(tmp_path)
    code, out, err = crate(capsys, "inspect", "crate-tiny-patch16-224", "--limit", 3, "--layers", 0)
    assert code == 0
    assert "note: crate-tiny-patch16-224 has random weights" in err
    assert "report: inspect-crate-tiny-patch16-224/report.html" in out
    assert (tmp_path / "inspect-crate-tiny-patch16-224" / "report.html").is_file()


@pytest.mark.usefixtures("undrawn")
def test_an_autoencoder_shows_its_encoder_on_whole_images(capsys, tmp_path):
    folder = tmp_path / "mae"
    torch.manual_seed(0)
    create_model("crate-mae-small", **SMALL).save_pretrained(folder)
    report = said(capsys, "inspect", folder, "--limit", 4)
    assert "Of mae, an autoencoder, the encoder is looked into, and sees whole images." in report["notes"]
    assert [row["layer"] for row in report["panels"]["compression"]["table"]] == [1, 2, 3]
    assert "this sample's 16 tokens" in report["panels"]["tokens"]["measured"]


@pytest.mark.usefixtures("undrawn")
def test_a_text_run(capsys, gpt, tmp_path):  # noqa: F811
    report = said(capsys, "inspect", gpt, "--limit", 3, "--batch", 2, "--output", tmp_path)
    assert report["facts"]["Data"]["samples"] == 3
    assert report["facts"]["Data"]["split"] == "validation"
    assert "Samples are pieces of 32 tokens." in report["notes"]
    assert {"lens", "lens-candidates", "units", "token-attention", "tokens", *LAYERS} <= set(report["panels"])
    from codingrate.data import load_tokenizer

    ids = load_tokenizer("bytes")((gpt.parent / "text" / "valid.txt").read_text())["input_ids"]
    pieces = (len(ids) + 1) // 32  # the document ends with a token of its own
    some = torch.tensor([ids[place * 32 : place * 32 + 32] for place in (0, pieces // 3, 2 * pieces // 3)])
    expected = layerwise(CrateForCausalLM.from_pretrained(gpt / "model" / "last"), [some])
    assert compression(report) == pytest.approx(expected["compression"].tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layers", 2), "layer 2 is out of range; the model has 2 layers, -2 to 1"),
        (("--data", "pydoc"), "--data pydoc: holds text, but"),
        (("--data", "digts"), "unknown dataset 'digts'; did you mean 'digits'?"),
        (("--split", "validation"), "unknown --split 'validation'; did you mean"),
        (("--measure", "papers"), "unknown measure 'papers'; did you mean 'paper'?"),
        (("--which", "worst"), "unknown --which 'worst'"),
        (("--eps", 0), "--eps is 0.0; it must be positive"),
        (("--path", "x"), "--path says where the files of --data lie; give both"),
        (("--compare", "crate-tny"), "unknown run folder, checkpoint file or model 'crate-tny'; did you mean"),
    ],
)
def test_bad_options(capsys, digits, options, message):
    code, _, line = crate(capsys, "inspect", digits, *options)
    assert code == 1
    assert message in line


def test_no_samples_are_an_error_of_the_call(capsys, digits):
    code, _, line = crate(capsys, "inspect", digits, "--limit", 0)
    assert code == 2
    assert "--limit" in line


def test_bad_sources(capsys, tmp_path, gpt):  # noqa: F811
    assert "did you mean 'crate-tiny-patch16-224'" in crate(capsys, "inspect", "crate-tny-patch16-224")[2]
    assert "holds no saved model" in crate(capsys, "inspect", tmp_path)[2]
    assert (
        f"--data digits: holds images, but {gpt} reads text; give text, as pydoc"
        in crate(capsys, "inspect", gpt, "--data", "digits")[2]
    )
    create_model("crate-gpt-base", hidden_size=24, num_hidden_layers=1, num_attention_heads=3, vocab_size=50,
                 head_dim=8).save_pretrained(tmp_path / "text")  # fmt: skip
    assert "has no tokenizer; give a run" in crate(capsys, "inspect", tmp_path / "text")[2]


def test_models_that_read_other_samples_are_not_compared(capsys, digits, saved, gpt):  # noqa: F811
    assert "reads 32 pixels a side, but" in crate(capsys, "inspect", digits, "--compare", saved)[2]
    assert (
        f"--compare {gpt}: reads text, but {digits} reads images"
        in crate(capsys, "inspect", digits, "--compare", gpt)[2]
    )
    assert "is the model itself; give another" in crate(capsys, "inspect", digits, "--compare", digits)[2]


def test_a_split_without_images(capsys, saved, tmp_path):
    write_classes(tmp_path / "images", {"a": 3, "b": 2})
    line = crate(capsys, "inspect", saved, "--data", tmp_path / "images", "--split", "train")[2]
    assert "the train split of" in line
    assert "has no images" in line


@pytest.mark.usefixtures("undrawn")
def test_images_that_cannot_be_read(capsys, saved, tmp_path):
    root = write_classes(tmp_path / "images", {"a": 60, "b": 50})
    (root / "a" / "000.png").write_bytes(b"no image")
    report = said(capsys, "inspect", saved, "--data", root, "--layers", 0, "--output", tmp_path / "out")
    assert report["facts"]["Data"]["samples"] == 109
    assert any(note.startswith("1 images could not be read, the first of them ") for note in report["notes"])
    for file in root.rglob("*.png"):
        file.write_bytes(b"no image")
    assert "images cannot be read" in crate(capsys, "inspect", saved, "--data", root)[2]
