"""`crate inspect`, `attention`, `segment` and `reconstruct`."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from codingrate import Run, create_model
from codingrate._attention_mass import at_size, mass_masks
from codingrate.data import Augment, balanced_indices, load_images, load_tokenizer
from codingrate.inspection import layerwise, square_input, trace
from codingrate.models import CrateForCausalLM, CrateForImageClassification
from tests.data.conftest import picture, write_classes
from tests.pages import Reader

from .conftest import BLOCK, SMALL, check_refusal, crate, crate_json, disc_image, last_evaluation

LAYERS = {"compression", "attention-step", "sparsity", "ista-step", "rates"}
"""Panels that every report has."""


@pytest.fixture
def small_presets(monkeypatch):
    """Models by name are small."""
    monkeypatch.setattr("codingrate.runs.folder.create_model", lambda name: create_model(name, **SMALL))


def load(folder):
    return CrateForImageClassification.from_pretrained(folder).eval()


# inspect


def compression(report, model=None):
    rows = report["panels"]["compression"]["table"]
    return [row["compression"] for row in rows if model in (None, row["model"])]


@pytest.mark.usefixtures("undrawn")
def test_a_run_is_inspected_on_its_own_test_split(capsys, digits_run):
    report = crate_json(capsys, "inspect", digits_run, "--batch-size", 100)
    assert report["report"] == str(digits_run / "inspect" / "report.html")
    kept = json.loads((digits_run / "inspect" / "report.json").read_text())
    assert {**kept, "report": report["report"]} == report
    assert {"across-training", "subspaces", "tokens", "patches", *LAYERS} <= set(report["panels"])
    assert "attention" not in report["panels"]
    assert report["notes"] == [
        "No attention maps: the model has no class token whose attention could be shown; use a model with "
        "class_token=True, or crate segment, which needs none."
    ]
    assert report["facts"]["Data"] == {"name": "digits", "split": "test", "samples": 359}
    assert report["facts"]["Command"] == f"crate inspect {digits_run}"
    assert report["facts"]["Recipe of digits"] == (digits_run / "recipe.yaml").read_text()
    assert report["facts"]["Model digits"]["config"]["hidden_size"] == 24
    rows = load_images("digits").test["image"]
    images = np.stack([np.frombuffer(row["bytes"][-64:], np.uint8).reshape(8, 8) for row in rows])
    pixels = (torch.from_numpy(images.copy())[:, None].float() / 255 - 0.5) / 0.5
    expected = layerwise(load(digits_run / "model" / "last"), [pixels])
    assert compression(report) == pytest.approx(expected["compression"].tolist(), rel=1e-4)
    score = report["summary"]["scores"][0]
    assert score["value"] == pytest.approx(last_evaluation(digits_run)["eval_top1"])
    labels = load_images("digits").test["label"]
    assert score["baseline"] == pytest.approx(max(map(labels.count, labels)) / len(labels))
    assert len(report["summary"]["samples"]) == 6
    assert len(report["summary"]["key_panels"]) == 4
    assert set(report["summary"]["key_panels"].values()) <= {"agrees", "agrees in part", "does not agree", None}


@pytest.mark.slow  # every figure is drawn
def test_the_page_needs_nothing_else_and_says_what_was_measured(capsys, digits_run, twin_run, tmp_path):
    options = ("--compare", twin_run, "--limit", 5, "--layer", -1, "--measure", "released", "--eps", 0.2)
    code, out, _ = crate(capsys, "inspect", digits_run, *options, "--output", tmp_path / "out")
    assert code == 0
    assert "digits" in out
    assert "vit" in out
    assert "5 samples of the test split of digits" in out
    assert f"report: {tmp_path / 'out' / 'report.html'}" in " ".join(out.split())
    page = Reader.of((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert len(page.ids) == len(set(page.ids))
    for reference in page.references:
        assert reference.startswith(("#", "data:image/")) or (tmp_path / "out" / reference).is_file()
        assert not reference.startswith("#") or reference[1:] in page.ids
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    table = report["panels"]["compression"]["table"]
    assert [(row["model"], row["layer"]) for row in table] == [("digits", 2), ("vit", 2)]
    assert f"--compare {twin_run} --layer -1 --eps 0.2 --measure released" in report["facts"]["Command"]
    for panel in report["panels"].values():
        plain = panel["measured"].translate(str.maketrans("", "", "^{}"))
        assert plain.split("_")[0] in page.text
    assert report["facts"]["Model vit"]["parameters"] == load(twin_run / "model" / "last").num_parameters()


@pytest.mark.usefixtures("undrawn")
def test_a_run_is_compared_with_itself_before_training(capsys, digits_run, tmp_path):
    report = crate_json(capsys, "inspect", digits_run, "--compare", "untrained", "--limit", 5, "--output", tmp_path)
    run = Run(digits_run)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = type(run.model())(run.model().config).eval()
    expected = layerwise(model, run.task.batches(model, limit=5, batch_size=5))["compression"].tolist()
    assert compression(report, "digits, untrained") == pytest.approx(expected, rel=1e-5)
    assert compression(report, "digits") != pytest.approx(expected, rel=1e-2)


@pytest.mark.usefixtures("undrawn")
def test_checkpoints_of_a_run_are_compared_with_it(capsys, digits_run, twin_run, tmp_path):
    (checkpoint,) = sorted((digits_run / "checkpoints").iterdir())[-1:]
    others = ("--compare", checkpoint, "--compare", twin_run)
    report = crate_json(capsys, "inspect", digits_run, *others, "--limit", 50, "--output", tmp_path / "out")
    names = {row["model"] for row in report["panels"]["compression"]["table"]}
    assert names == {"digits", checkpoint.name, "vit"}
    assert compression(report, "digits") == compression(report, checkpoint.name), (
        "the last checkpoint is the last model"
    )
    assert compression(report, "digits") != compression(report, "vit")
    assert report["facts"][f"Recipe of {checkpoint.name}"] == (digits_run / "recipe.yaml").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_model_without_a_run_is_measured_on_two_photographs(capsys, saved, tmp_path):
    report = crate_json(capsys, "inspect", saved, "--batch-size", 20, "--output", tmp_path)
    assert report["facts"]["Data"]["samples"] == 32
    assert report["notes"] == [
        "No dataset is given, so the model is measured on parts of scikit-learn's two photographs: "
        "enough to look, not enough to judge."
    ]
    assert {"attention", "heads", "patches"} <= set(report["panels"])
    assert "32 images" in report["panels"]["heads"]["measured"]
    assert len(report["panels"]["heads"]["table"]) == SMALL["num_attention_heads"]


@pytest.mark.usefixtures("undrawn", "small_presets")
def test_a_model_by_name_is_said_to_be_untrained(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = crate(capsys, "inspect", "crate-tiny-patch16-224", "--limit", 3, "--layer", 1)
    assert code == 0
    assert "note: crate-tiny-patch16-224 has random weights" in err
    assert "Verdicts" not in out, "predictions are for trained models"
    assert "report: inspect-crate-tiny-patch16-224/report.html" in out
    assert (tmp_path / "inspect-crate-tiny-patch16-224" / "report.html").is_file()


@pytest.mark.usefixtures("undrawn")
def test_the_encoder_of_an_autoencoder_is_inspected_on_whole_images(capsys, tmp_path):
    create_model("crate-mae-small", **SMALL).save_pretrained(tmp_path / "mae")
    report = crate_json(capsys, "inspect", tmp_path / "mae", "--limit", 4)
    assert "mae is an autoencoder. Its encoder was inspected, on whole images." in report["notes"]
    assert [row["layer"] for row in report["panels"]["compression"]["table"]] == [1, 2, 3]
    assert "16 tokens" in report["panels"]["tokens"]["measured"]


@pytest.mark.usefixtures("undrawn")
def test_a_text_run_is_inspected_on_blocks_of_its_text(capsys, gpt, tmp_path):
    report = crate_json(capsys, "inspect", gpt, "--limit", 3, "--batch-size", 2, "--output", tmp_path)
    assert report["facts"]["Data"]["samples"] == 3
    assert report["facts"]["Data"]["split"] == "validation"
    assert f"Samples are blocks of {BLOCK} tokens." in report["notes"]
    assert {"lens", "lens-candidates", "units", "token-attention", "tokens", *LAYERS} <= set(report["panels"])
    ids = load_tokenizer("bytes")((gpt.parent / "text" / "valid.txt").read_text())["input_ids"]
    count = (len(ids) + 1) // BLOCK  # the document ends with a token of its own
    some = torch.tensor([ids[n * BLOCK : (n + 1) * BLOCK] for n in (0, count // 3, 2 * count // 3)])
    expected = layerwise(CrateForCausalLM.from_pretrained(gpt / "model" / "last"), [some])
    assert compression(report) == pytest.approx(expected["compression"].tolist(), rel=1e-4)
    assert next(iter(report["panels"])) == "lens", "panels on text come first"
    (sample,) = report["summary"]["samples"]
    assert sample["answer"]
    (score,) = report["summary"]["scores"]
    lens = report["panels"]["lens"]["table"][-1]["cross_entropy"]
    assert score["value"] == pytest.approx(lens, rel=1e-3), "the last layer of the lens is the model"
    assert 1 < score["baseline"] < 4


@pytest.mark.usefixtures("undrawn")
def test_other_tasks_have_a_summary_too(capsys, bert, mae_run, dino_run):
    for run, name in ((bert, "Loss in nats per masked token"), (mae_run, "Reconstruction loss of masked patches")):
        report = crate_json(capsys, "inspect", run, "--limit", 5)
        summary = report["summary"]
        assert [score["name"] for score in summary["scores"]] == [name], report["notes"]
        assert summary["scores"][0]["value"] > 0
        assert summary["scores"][0]["baseline"] > 0
        assert summary["samples"]
    summary = crate_json(capsys, "inspect", dino_run, "--limit", 5)["summary"]
    assert summary["scores"] == [], "distillation has no metric of its own"
    assert len(summary["key_panels"]) == 4


@pytest.mark.usefixtures("undrawn")
def test_the_summary_names_the_classes_of_the_model(capsys, digits_run, tmp_path):
    """Two of the model's ten classes, whose indices in the data are not those in the model."""
    data = write_classes(tmp_path / "data", {"2": 6, "7": 5})
    summary = crate_json(capsys, "inspect", digits_run, "--data", data, "--output", tmp_path / "out")["summary"]
    report = crate_json(capsys, "evaluate", digits_run, "--data", data, "--output", tmp_path / "report")
    assert summary["scores"][0]["value"] == pytest.approx(report["top1"])
    assert summary["scores"][0]["baseline"] == pytest.approx(6 / 11)
    shown = [(sample["caption"], sample["correct"]) for sample in summary["samples"]]
    true = [caption if correct else caption.rpartition("(true: ")[2].rstrip(")") for caption, correct in shown]
    assert len(true) == 6
    assert {*true} == {"2", "7"}


@pytest.mark.usefixtures("undrawn")
def test_unreadable_images_are_counted(capsys, saved, tmp_path):
    root = write_classes(tmp_path / "images", {"a": 60, "b": 50})
    (root / "a" / "000.png").write_bytes(b"no image")
    report = crate_json(capsys, "inspect", saved, "--data", root, "--layer", 1, "--output", tmp_path / "out")
    assert report["facts"]["Data"]["samples"] == 109
    assert any(note.startswith("1 images could not be read; the first of them is ") for note in report["notes"])
    for file in root.rglob("*.png"):
        file.write_bytes(b"no image")
    check_refusal(capsys, ["inspect", saved, "--data", root], 1, "images cannot be read")


WRONG_INSPECTION = [
    (
        ["DIGITS", "--layer", 3],
        1,
        "--layer 3: layers are numbered from 1, and the model has 2 layers",
    ),
    (["DIGITS", "--layer", 0], 1, "--layer 0: layers are numbered from 1"),
    (["DIGITS", "--data", "pydoc"], 1, "DIGITS reads images; give images instead"),
    (["DIGITS", "--data", "digts"], 1, "unknown dataset 'digts'; did you mean 'digits'?"),
    (["DIGITS", "--split", "validation"], 1, "unknown split 'validation'; did you mean"),
    (["DIGITS", "--measure", "papers"], 2, "'papers' is not one of"),
    (["DIGITS", "--checkpoint", "worst"], 2, "'worst' must be last, best or a training step"),
    (["DIGITS", "--eps", 0], 1, "eps"),
    (["DIGITS", "--path", "x"], 1, "--path is the folder of the dataset that --data names; give both"),
    (["DIGITS", "--limit", 0], 2, "--limit"),
    (["DIGITS", "--compare", "crate-tny"], 1, "unknown run folder, checkpoint file or model 'crate-tny'; did you"),
    (["DIGITS", "--compare", "SAVED"], 1, "it reads 32 pixels a side, but"),
    (["DIGITS", "--compare", "GPT"], 1, "--compare GPT: it reads text, but DIGITS reads images"),
    (["DIGITS", "--compare", "DIGITS"], 1, "this is the model itself; give another"),
    (["crate-tny-patch16-224"], 1, "did you mean 'crate-tiny-patch16-224'"),
    (["EMPTY"], 1, "no saved model"),
    (["GPT", "--data", "digits"], 1, "--data digits: GPT reads text; give text instead"),
    (["TEXT"], 1, "give --data"),
    (["TEXT", "--data", "pydoc"], 1, "no tokenizer"),
    (["SAVED", "--data", "IMAGES", "--split", "train"], 1, "the train split of IMAGES has no images"),
]


def test_inspect_refuses(capsys, digits_run, saved, gpt, tmp_path):
    paths = {"DIGITS": digits_run, "SAVED": saved, "GPT": gpt}
    paths |= {"EMPTY": tmp_path / "empty", "TEXT": tmp_path / "text", "IMAGES": tmp_path / "images"}
    paths["EMPTY"].mkdir()
    write_classes(paths["IMAGES"], {"a": 3, "b": 2})
    fields = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 50, "head_dim": 8}
    create_model("crate-gpt-base", **fields).save_pretrained(paths["TEXT"])
    before = sorted(path.name for path in paths["TEXT"].glob("*"))
    for arguments, code, message in WRONG_INSPECTION:
        for name, path in paths.items():
            message = message.replace(name, str(path))
        check_refusal(capsys, ["inspect", *(paths.get(word, word) for word in arguments)], code, message)
        assert sorted(path.name for path in paths["TEXT"].glob("*")) == before, "a refused call writes nothing"


# attention


def naive_maps(folder, path, side, layer):
    """Return the class token's row of the attention inside the forward pass, over the patches, (K, side/8, side/8)."""
    model = load(folder)
    with Image.open(path) as image:
        pixels = square_input(model, image, Augment(), side)[1]
    row = trace(model, pixels).attention(layer)[0, :, 0, 1:].double()
    return (row / row.sum(-1, keepdim=True)).unflatten(-1, (side // 8, side // 8)).numpy()


def check_attention(entry, maps, mass, width, height):
    """Compare the numbers and files of one layer with the maps (K, rows, columns) of its heads."""
    expected = {str(k): own for k, own in enumerate(maps, 1)} | {"mean": sum(maps) / len(maps)}
    assert [part["head"] for part in entry["heads"]] == list(expected)
    for part in entry["heads"]:
        own = expected[part["head"]]
        shares = own.ravel().tolist()
        entropy = -sum(share * math.log(share) for share in shares) / math.log(len(shares))
        assert part["entropy"] == pytest.approx(entropy, abs=1e-6)
        running, count = 0.0, 0
        for share in sorted(shares, reverse=True):
            running, count = running + share, count + 1
            if running >= mass:
                break
        assert part["patches"] == count
        with Image.open(part["mask"]) as drawn:
            np.testing.assert_array_equal(np.asarray(drawn) > 0, at_size(mass_masks(own, mass), height, width))


def test_attention_draws_grids_and_masks_of_the_maps(capsys, saved, photo, tmp_path):
    output = tmp_path / "out"
    options = ("--layer", -1, "--layer", 1, "--layer", 3, "--mass", 0.45, "--size", 40)
    report = crate_json(capsys, "attention", saved, photo, photo, *options, "--output", output)
    assert (report["size"], report["patches"], report["mass"]) == (40, 25, 0.45)
    for entry, name in zip(report["images"], ("disc", "disc-2"), strict=True):
        assert (entry["image"], entry["width"], entry["height"]) == (str(photo), 90, 60)
        assert [layer["layer"] for layer in entry["layers"]] == [3, 1]
        for layer in entry["layers"]:
            assert layer["picture"] == str(output / f"{name}-layer{layer['layer']}.png")
            with Image.open(layer["picture"]) as grid:
                assert grid.size == (7 * 244 - 4, 18 + 2 * 160 + 4)  # image, five heads, mean
            assert layer["heads"][1]["mask"] == str(output / f"{name}-layer{layer['layer']}-head2-mask.png")
            check_attention(layer, naive_maps(saved, photo, 40, layer["layer"] - 1), 0.45, 90, 60)
    assert len(list(output.iterdir())) == 2 * 2 * (1 + 6)


def test_attention_has_a_default_layer_size_and_folder(capsys, saved, photo):
    report = crate_json(capsys, "attention", saved, photo)
    assert (report["size"], report["mass"]) == (32, 0.6)
    (layer,) = report["images"][0]["layers"]
    assert layer["layer"] == 2, "the last but one of three"
    assert layer["picture"] == str(saved / "attention" / "disc-layer2.png")
    check_attention(layer, naive_maps(saved, photo, 32, 1), 0.6, 90, 60)


def test_attention_prints_a_table_of_one_head_in_all_layers(capsys, saved, photo, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # so that no path is broken into lines
    output = tmp_path / "out"
    code, out, _ = crate(capsys, "attention", saved, photo, "--layer", "all", "--head", 4, "--output", output)
    assert code == 0
    rows = [line.split("│")[1:-1] for line in out.splitlines() if str(photo) in line]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [("1", "4"), ("2", "4"), ("3", "4")]
    for layer, row in enumerate(rows):
        count = int(mass_masks(naive_maps(saved, photo, 32, layer)[3]).sum())
        assert row[4].strip() == f"{count} of 16"
    assert f"patches that hold 60% of it; pictures in {output}" in out
    assert len(list(output.iterdir())) == 3 * 2


@pytest.mark.usefixtures("small_presets")
@pytest.mark.parametrize(
    ("verb", "name"), [("attention", "vit-tiny-patch16-224"), ("segment", "crate-tiny-patch16-224")]
)
def test_untrained_models_and_enormous_images_are_noted(capsys, tmp_path, verb, name):
    path = tmp_path / "large.png"
    Image.new("L", (5000, 50), 90).save(path)  # gray, for a model of color images
    code, out, err = crate(capsys, verb, name, path, "--size", 32, "--output", tmp_path / "out", "--json")
    assert code == 0
    assert f"note: {name} has random weights" in err
    assert f"note: {path}: scaled down from 5000 × 50 to 4096 × 41 pixels" in err
    (entry,) = json.loads(out)["images"]
    assert (entry["width"], entry["height"]) == (4096, 41)
    assert entry["note"].endswith("4096 × 41 pixels")
    if verb == "attention":
        assert [layer["layer"] for layer in entry["layers"]] == [3], "the last of a ViT"


WRONG_ATTENTION = [
    (["--layer", 4], 1, "--layer 4: layers are numbered from 1, and the model has 3 layers; give 1 to 3, -1 to -3"),
    (["--layer", 1, "--layer", -4], 1, "--layer -4: layers are numbered from 1"),
    (["--layer", 0], 1, "--layer 0: layers are numbered from 1"),
    (["--layer", "last"], 1, "--layer last: layers are numbered from 1"),
    (["--head", 6], 1, "head 6 is out of range; the model has 5 heads, 1 to 5"),
    (["--head", 0], 1, "head 0 is out of range"),
    (["--mass", 0], 1, "mass must lie in (0, 1]"),
    (["--mass", 1.5], 1, "mass must lie in (0, 1]"),
    (["--size", 7], 1, "side 7 is not divisible by the model's patch_size 8; use 8"),
    (["--size", 100_000], 1, "side 100000 has more than 128 patches of 8 pixels; use at most 1024"),
    (["--size", 41], 1, "side 41 is not divisible by the model's patch_size 8; use 40"),
    (["--checkpoint", "worst"], 2, "'worst' must be last, best or a training step"),
]


def test_attention_refuses(capsys, saved, photo, tmp_path):
    for options, code, message in WRONG_ATTENTION:
        check_refusal(capsys, ["attention", saved, photo, "--output", tmp_path / "out", *options], code, message)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("crate-mae-small", SMALL, "no class token whose attention could be shown; use a model with class_token=True"),
        ("crate-tiny-patch16-224", {**SMALL, "attention": "tssa"}, "'tssa' compares no two tokens"),
        (
            "crate-bert-medium",
            {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 50},
            "the model reads text; use a vision model",
        ),
    ],
)
def test_attention_refuses_models_without_maps(capsys, photo, tmp_path, name, fields, message):
    create_model(name, **fields).save_pretrained(tmp_path / "model")
    check_refusal(capsys, ["attention", tmp_path / "model", photo], 1, message)


@pytest.mark.parametrize("verb", ["attention", "segment"])
def test_verbs_on_pictures_refuse_the_same_files_and_models(capsys, saved, photo, tmp_path, verb):
    Image.new("RGB", (1, 1)).save(tmp_path / "one.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    fields = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 50}
    create_model("crate-bert-medium", **fields).save_pretrained(tmp_path / "text")
    for model, file, message in (
        (saved, tmp_path / "one.png", "one.png: is only 1 × 1 pixels"),
        (saved, tmp_path / "broken.png", "broken.png: is not an image that can be read"),
        (saved, tmp_path / "none.png", "none.png: no such image file"),
        (tmp_path / "empty", photo, "no saved model"),
        (tmp_path / "text", photo, "the model reads text; use a vision model"),
        ("crate-tny-patch16-224", photo, "did you mean 'crate-tiny-patch16-224'"),
    ):
        check_refusal(capsys, [verb, model, file], 1, message)


# segment

QUICK = ("--threshold", 0.5, "--size", 96)


def test_segment_writes_masks_and_overlays(capsys, by_color, photo, tmp_path):
    output = tmp_path / "out"
    report = crate_json(capsys, "segment", by_color, photo, photo, *QUICK, "--output", output)
    disc = disc_image()[1]
    for entry, name in zip(report["images"], ("disc", "disc-2"), strict=True):
        assert (entry["image"], entry["width"], entry["height"]) == (str(photo), 90, 60)
        (layer,) = entry["layers"]
        assert layer["layer"] == 2, "the last but one of three"
        assert layer["overlay"] == str(output / f"{name}-layer2-overlay.png")
        with Image.open(layer["overlay"]) as drawn:
            assert drawn.size == (90, 60)
        first = layer["segments"][0]
        assert first["mask"] == str(output / f"{name}-layer2-mask1.png")
        with Image.open(first["mask"]) as drawn:
            mask = np.asarray(drawn) > 0
        assert (mask & disc).sum() / (mask | disc).sum() > 0.9
        assert first["area"] == pytest.approx(mask.mean())
        assert first["border"] == 0, "the disc does not touch the border"
        x, y, width, height = first["box"]
        assert mask[y : y + height, x : x + width].sum() == mask.sum()
        assert 0.5 < first["cut_quality"] <= 1
        assert "score" not in first
    assert "may be background" in report["about"]
    assert "not the probability of an object" in report["about"]
    assert len(list(output.iterdir())) == sum(1 + len(entry["layers"][0]["segments"]) for entry in report["images"])
    coarse = crate_json(capsys, "segment", by_color, photo, *QUICK, "--no-refine", "--output", tmp_path / "coarse")
    with Image.open(coarse["images"][0]["layers"][0]["segments"][0]["mask"]) as drawn:
        blocky = np.asarray(drawn) > 0
    assert (blocky & disc).sum() / (blocky | disc).sum() < (mask & disc).sum() / (mask | disc).sum()


def test_segment_prints_a_table(capsys, by_color, photo, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # so that no path is broken into lines
    Image.new("RGB", (30, 30), (9, 90, 190)).save(tmp_path / "even.png")
    options = (*QUICK, "--masks", 1, "--no-refine", "--layer", 1)
    code, out, _ = crate(capsys, "segment", by_color, photo, tmp_path / "even.png", *options)
    assert code == 0
    assert "disc.png" in out
    words = " ".join(out.split())
    assert f"1 regions in 2 images, none in 1; pictures in {by_color / 'segments'}" in words
    assert "cut quality" in words
    assert "MaskCut finds regions" in words
    assert "may be background" in words
    assert "score" not in words
    assert (by_color / "segments" / "disc-layer1-mask1.png").is_file()


def test_segment_reads_color_files_with_a_run_on_gray_images(capsys, digits_run, photo):
    report = crate_json(capsys, "segment", digits_run, photo, "--size", 64)
    assert report["images"][0]["layers"][0]["overlay"] == str(digits_run / "segments" / "disc-layer1-overlay.png")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--layer", 9], 1, "--layer 9: layers are numbered from 1, and the model has 3 layers"),
        (["--layer", 0], 1, "--layer 0: layers are numbered from 1"),
        (["--threshold", 1.5], 1, "threshold in [0, 1)"),
        (["--size", 100_000], 1, "side 100000 has more than 128 patches of 8 pixels; use at most 1024"),
        (["--size", 97], 1, "side 97 is not divisible by the model's patch_size 8; use 96"),
        (["--size", 8], 1, "an image of one patch cannot be cut"),
        (["--checkpoint", "worst"], 2, "'worst' must be last, best or a training step"),
    ],
    ids=str,
)
def test_segment_refuses(capsys, by_color, photo, tmp_path, options, code, message):
    check_refusal(capsys, ["segment", by_color, photo, "--output", tmp_path / "out", *options], code, message)


@pytest.mark.usefixtures("undrawn")
def test_layers_have_the_same_numbers_in_every_verb(capsys, saved, photo, tmp_path):
    """The first, the last from the end, and all; the same file names, tables and JSON everywhere."""
    for given, numbers in ((["--layer", 1, "--layer", -1], [1, 3]), (["--layer", "all"], [1, 2, 3])):
        options = ("--output", tmp_path / str(len(numbers)), *given)
        for verb in ("attention", "segment"):
            (entry,) = crate_json(capsys, verb, saved, photo, "--size", 32, *options)["images"]
            assert [layer["layer"] for layer in entry["layers"]] == numbers
            names = [layer["picture" if verb == "attention" else "overlay"] for layer in entry["layers"]]
            assert all(f"disc-layer{number}" in name for number, name in zip(numbers, names, strict=True))
        report = crate_json(capsys, "inspect", saved, *options)
        assert [row["layer"] for row in report["panels"]["compression"]["table"]] == numbers


# reconstruct


def test_reconstruct_draws_test_images_of_different_classes(capsys, mae_run, tmp_path):
    report = crate_json(capsys, "reconstruct", mae_run, "--count", 3, "--output", tmp_path / "a.png")
    labels = np.array(load_images("digits").test["label"])
    rows = balanced_indices(labels, 3)
    assert [entry["image"] for entry in report["images"]] == [f"test image {row}" for row in rows]
    assert len({*labels[rows]}) == 3
    assert report["loss"] == pytest.approx(np.mean([entry["loss"] for entry in report["images"]]))
    sheet = Image.open(tmp_path / "a.png")
    assert sheet.size == (3 * 160 + 4 * 8, 20 + 3 * 168)
    # the masked picture shows the visible quarter of the original and gray elsewhere; the third is something else
    original, masked, rebuilt = (
        np.asarray(sheet.convert("L"))[20:180, left : left + 160].astype(int) for left in (8, 176, 344)
    )
    same = (masked == original).reshape(4, 40, 4, 40).all(axis=(1, 3))
    gray = (np.abs(masked - 128) <= 1).reshape(4, 40, 4, 40).all(axis=(1, 3))
    assert (same | gray).all()
    assert gray.sum() >= 12
    assert (rebuilt != original).any()


def test_reconstruct_reads_files_and_draws_masks_from_a_seed(capsys, mae_run, tmp_path):
    files = [tmp_path / "one.png", tmp_path / "two.jpg"]
    for number, file in enumerate(files):  # of another size and color than the run's images
        picture(number, 31, 23).save(file)
    same, other = (
        crate_json(capsys, "reconstruct", mae_run, *files, "--seed", seed, "--output", tmp_path / "c.png")["loss"]
        for seed in (0, 5)
    )
    assert same != other
    assert (tmp_path / "c.png").is_file()


def test_reconstruct_refuses(capsys, mae_run, dino_run, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    for arguments, code, message in (
        ([mae_run, tmp_path / "none.png"], 1, f"{tmp_path / 'none.png'}: no such image file"),
        ([mae_run, tmp_path / "broken.png"], 1, f"{tmp_path / 'broken.png'}: is not an image that can be read"),
        ([mae_run, "--checkpoint", "worst"], 2, "'worst' must be last, best or a training step"),
        ([dino_run], 1, "its task is distillation; reconstruct needs a run of task autoencoding"),
        ([tmp_path / "empty"], 1, "no saved model"),
    ):
        check_refusal(capsys, ["reconstruct", *arguments], code, message)
