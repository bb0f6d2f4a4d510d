"""`crate predict` and `crate export`, and the model card that goes with saved weights."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import codingrate as cr
from codingrate.runs import export_onnx

from .conftest import check_refusal, crate, crate_json, train_toy


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for name in ("b", "a", "c"):
        Image.fromarray(draw.integers(0, 255, (8, 8), np.uint8)).save(folder / f"{name}.png")
    (folder / "notes.txt").write_text("not an image")
    return folder


def test_classes_of_images(capsys, digits_run, images):
    report = crate_json(capsys, "predict", digits_run, images, "--top", 2)
    assert [entry["input"] for entry in report["predictions"]] == [str(images / f"{name}.png") for name in "abc"]
    model = cr.load(digits_run)
    pixels = cr.Run(digits_run).task.read([images / "a.png"])
    shares = model(pixel_values=pixels).logits.softmax(-1)[0]
    first = report["predictions"][0]["classes"]
    assert [part["score"] for part in first] == pytest.approx(shares.sort(descending=True).values[:2].tolist())
    assert first[0]["label"] == str(int(shares.argmax()))
    code, out, _ = crate(capsys, "predict", digits_run, images / "a.png", images / "b.png", "--top", 1)
    assert code == 0
    assert out.count(".png") == 2
    assert f"{first[0]['score']:.2%}" in out


def test_features_texts_and_masks(capsys, mae_run, gpt, bert, images, tmp_path):
    output = tmp_path / "features.npy"
    report = crate_json(capsys, "predict", mae_run, images, "--output", output)
    features = np.load(output)
    assert features.shape == (3, 24)
    assert report["predictions"][2]["features"] == pytest.approx(features[2].tolist())
    (entry,) = crate_json(capsys, "predict", gpt, "the cat")["predictions"]
    assert entry["text"] == cr.Run(gpt).predict("the cat")[0]
    (entry,) = crate_json(capsys, "predict", bert, "the <mask>at", "--top", 2)["predictions"]
    assert [len(mask) for mask in entry["masks"]] == [2]
    crate(capsys, "predict", gpt, "the cat", "--output", tmp_path / "text.json")
    assert json.loads((tmp_path / "text.json").read_text())[0]["input"] == "the cat"


def test_predictions_that_are_refused(capsys, digits_run, gpt, images, tmp_path):
    check_refusal(capsys, ["predict", digits_run, tmp_path / "none.png"], 1, "none.png")
    check_refusal(capsys, ["predict", digits_run, images / "notes.txt"], 1, "notes.txt")
    check_refusal(capsys, ["predict", digits_run, tmp_path], 1, "there are no images in the folder")
    check_refusal(capsys, ["predict", gpt, "a", "--output", tmp_path / "x.npy"], 1, "only features")
    check_refusal(capsys, ["predict", digits_run], 2, "INPUTS")


def test_a_run_is_exported(capsys, digits_run, images, tmp_path):
    report = crate_json(capsys, "export", digits_run, "--output", tmp_path / "model.onnx")
    assert report["difference"] < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    run = cr.Run(digits_run)
    pixels = run.task.read([images / f"{name}.png" for name in "abc"])
    (logits,) = session.run(None, {"pixel_values": pixels.numpy()})
    np.testing.assert_allclose(logits, run.model()(pixel_values=pixels).logits.detach(), atol=1e-4)


def config(**fields):
    return {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, **fields}


MODELS = {
    "classifier with a class token": ("crate-tiny-patch16-224", config(image_size=32, num_labels=5)),
    "features": ("crate-dino-small-patch16", config(image_size=32)),
    "autoencoder": ("crate-mae-base", config(image_size=32, patch_size=8)),
    "black-box autoencoder": ("vit-mae-base", config(image_size=32, patch_size=8, decoder_layers=1)),
    "masked language model": ("crate-bert-base", config(vocab_size=50, max_position_embeddings=20)),
    "causal language model": ("crate-gpt-base", config(vocab_size=50, max_position_embeddings=20)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_is_exported(name, tmp_path):
    preset, fields = MODELS[name]
    report = export_onnx(cr.create_model(preset, **fields), tmp_path / "model.onnx")
    assert report["difference"] < 1e-4
    assert report["batch_sizes"] == [1, 5], "the export saw 2"


@pytest.mark.slow
def test_a_text_classifier_is_exported(tmp_path):
    fields = config(vocab_size=50, max_position_embeddings=20, num_labels=3)
    model = cr.CrateForSequenceClassification(cr.create_model("crate-bert-base", **fields).config)
    assert export_onnx(model, tmp_path / "model.onnx")["difference"] < 1e-4


def test_a_wrong_export_is_noticed(digits_run, tmp_path, monkeypatch):
    monkeypatch.setattr("codingrate.runs.exporting.TOLERANCE", 0.0)
    with pytest.raises(cr.CrateError, match="differs from PyTorch"):
        export_onnx(cr.load(digits_run), tmp_path / "model.onnx")


def test_the_model_card_runs(digits_run, images, tmp_path, monkeypatch):
    """Both Python blocks of the card run as they stand, with the folder filled in."""
    folder = digits_run / "model" / "last"
    card = (folder / "README.md").read_text()
    assert "Classes: 0, 1, 2" in card
    monkeypatch.chdir(tmp_path)
    first, second = (part.split("```")[0] for part in card.split("```python\n")[1:])
    values: dict[str, object] = {}
    exec(second.replace("FOLDER", str(folder)), values)
    assert isinstance(values["model"], cr.CrateForImageClassification)
    code = first.replace("FOLDER", str(folder)).replace("photo.jpg", str(images / "a.png"))
    exec(code.replace('run.inspect().save("report")\n', ""), values)
    assert torch.equal(values["run"].model().head.weight, values["model"].head.weight)


def test_train_from_another_run_says_what_is_new(capsys, digits_run, tmp_path):
    call = ["train", "digits", f"model.from={digits_run}", "schedule.steps=1", "--output", tmp_path / "run"]
    changes = ["augment.crop=resize", "run.layerwise_epochs=0"]
    code, _, err = crate(capsys, *call, *changes)
    assert code == 0
    shape = "2 layers, width 24, 3 heads"
    assert f"took its architecture and weights ({shape}); new: head (10 outputs)" in err
    assert cr.load(tmp_path / "run").config.hidden_size == 24, "not that of the recipe"
    resize = ["augment.image_size=12", "--output", tmp_path / "larger"]
    _, _, err = crate(capsys, *call[:-2], *resize, *changes)
    assert "; resized: positions; new: head (10 outputs)" in err
    assert train_toy(tmp_path / "again", {"model.from": str(tmp_path / "run"), "model.config": {}})
