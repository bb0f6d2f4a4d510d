"""The models that ship with the package as models of transformers: loaded in float32, saved, and loaded again."""

import operator
from io import BytesIO

import pandas as pd
import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

import codingrate as cr
from codingrate.models import pretrained_folder, pretrained_names
from codingrate.runs.folder import read_sample

AUTO = {
    "CrateForImageClassification": AutoModelForImageClassification,
    "CrateForMaskedAutoencoding": AutoModelForPreTraining,
    "CrateForMaskedLM": AutoModelForMaskedLM,
    "CrateForCausalLM": AutoModelForCausalLM,
    "CrateForSequenceClassification": AutoModelForSequenceClassification,
}
every = pytest.mark.parametrize("name", pretrained_names())


def load(folder, **options):
    """Load a model by the Auto class of its task."""
    architecture = cr.CrateConfig.from_pretrained(folder).architectures[0]
    return AUTO[architecture].from_pretrained(folder, **options).eval()


@torch.no_grad()
@every
def test_a_saved_model_answers_the_same_on_the_stored_sample(name, tmp_path):
    run, shipped = cr.Run(name), pretrained_folder(name) / "model" / "last"
    load(shipped).save_pretrained(tmp_path / "once")
    cr.load(tmp_path / "once").save_pretrained(tmp_path / "twice")
    again = load(tmp_path / "twice")
    if run.task.modality == "text":
        text = (run.folder / "README.md").read_text()[:300]
        given = AutoTokenizer.from_pretrained(shipped)(text, return_tensors="pt", truncation=True, max_length=32)
        assert torch.equal(again(**given).logits, run.model()(**given).logits)
        return
    sample, alone = str(run.folder / "sample.parquet"), cr.Run(tmp_path / "twice")
    rows = pd.read_parquet(sample)["image"][:20]
    images = [Image.open(BytesIO(row["bytes"])) for row in rows]
    expected = run.predict(images)
    equal = torch.equal if isinstance(expected[0], torch.Tensor) else operator.eq
    assert all(map(equal, alone.predict(images), expected))
    pixels = AutoImageProcessor.from_pretrained(tmp_path / "twice")(images, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixels, run.task.read(images))
    if run.recipe.task == "classification":
        assert alone.evaluate(sample).metrics == pytest.approx(read_sample(run.folder)["metrics"], rel=1e-5)
        answers = pipeline("image-classification", model=str(tmp_path / "twice"))(images, top_k=3)
        for ours, theirs in zip(expected, answers, strict=True):
            assert {answer["label"]: answer["score"] for answer in theirs} == pytest.approx(
                {answer["label"]: answer["score"] for answer in ours[:3]}, abs=1e-5
            )


@every
def test_weights_are_loaded_in_float32_unless_another_precision_is_asked_for(name):
    folder = pretrained_folder(name) / "model" / "last"
    models = [load(folder), cr.load(name), cr.create_model(name, pretrained=True), cr.models.load_model(folder)]
    assert [model.dtype for model in models] == [torch.float32] * 4
    assert all(torch.equal(*pair) for pair in zip(models[0].parameters(), models[1].parameters(), strict=True))
    assert load(folder, dtype=torch.bfloat16).dtype == torch.bfloat16
