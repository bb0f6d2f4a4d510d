"""transformers' guide to image classification, step by step, with a shipped model as its checkpoint."""

import random

import numpy as np
import pytest
import torch
from datasets import load_dataset
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    DefaultDataCollator,
    Trainer,
    TrainingArguments,
    pipeline,
)

import codingrate as cr
from codingrate.models import pretrained_folder

from .test_journeys import write_images

pytestmark = pytest.mark.slow


def test_the_guide_to_image_classification_of_transformers(tmp_path):
    """Fine-tune with Trainer, save, use by pipeline, load again everywhere, and train on."""
    shapes = {"disc": 50, "square": 50, "blank": 50}
    folder = write_images(tmp_path / "shapes", {"disc": shapes["disc"], "square": shapes["square"]}, 0)
    (folder / "blank").mkdir()
    draw = random.Random(1)
    for number in range(shapes["blank"]):
        color = tuple(draw.randrange(60) for _ in range(3))
        Image.new("RGB", (48, 40), color).save(folder / "blank" / f"{number}.png")

    # Load the dataset
    data = load_dataset("imagefolder", data_dir=str(folder), split="train").train_test_split(test_size=0.2, seed=0)
    labels = data["train"].features["label"].names
    label2id, id2label = {}, {}
    for i, label in enumerate(labels):
        label2id[label] = str(i)
        id2label[str(i)] = label

    # Preprocess; the guide's RandomResizedCrop is of torchvision, which is not a dependency
    checkpoint = str(pretrained_folder("crate-cifar10-dino") / "model" / "last")
    image_processor = AutoImageProcessor.from_pretrained(checkpoint)

    def transforms(examples):
        images = [image.convert("RGB") for image in examples.pop("image")]
        return {**examples, "pixel_values": image_processor(images, return_tensors="pt")["pixel_values"]}

    data = data.with_transform(transforms)

    def compute_metrics(evaluated):
        predictions, references = evaluated
        return {"accuracy": float((np.argmax(predictions, axis=1) == references).mean())}

    # Train
    def trainer(model, epochs):
        arguments = TrainingArguments(
            output_dir=str(tmp_path / "my_model"), remove_unused_columns=False, eval_strategy="epoch",
            save_strategy="epoch", learning_rate=1e-3, per_device_train_batch_size=16, gradient_accumulation_steps=2,
            per_device_eval_batch_size=16, num_train_epochs=epochs, warmup_steps=0.1, logging_steps=10,
            load_best_model_at_end=True, metric_for_best_model="accuracy", report_to=[], use_cpu=True,
            disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        return Trainer(
            model=model, args=arguments, data_collator=DefaultDataCollator(), train_dataset=data["train"],
            eval_dataset=data["test"], processing_class=image_processor, compute_metrics=compute_metrics,
        )  # fmt: skip

    model = AutoModelForImageClassification.from_pretrained(
        checkpoint, num_labels=len(labels), id2label=id2label, label2id=label2id, ignore_mismatched_sizes=True
    )
    tuned = trainer(model, 4)
    tuned.train()
    measured = tuned.evaluate()
    assert measured["eval_loss"] < np.log(3)
    assert measured["eval_accuracy"] > 0.6
    tuned.save_model(str(tmp_path / "saved"))

    # Inference, by a pipeline and by hand
    images = [row["image"].convert("RGB") for row in data["test"].with_format(None)]
    truth = [labels[row["label"]] for row in data["test"].with_format(None)]
    classifier = pipeline("image-classification", model=str(tmp_path / "saved"))
    answers = [answer[0]["label"] for answer in classifier(images)]
    assert np.mean([one == two for one, two in zip(answers, truth, strict=True)]) == measured["eval_accuracy"]
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "saved")
    inputs = AutoImageProcessor.from_pretrained(tmp_path / "saved")(images[0], return_tensors="pt")
    with torch.no_grad():
        assert again.config.id2label[again(**inputs).logits.argmax(-1).item()] == answers[0]

    # The same model in this package, and saved once more
    again.save_pretrained(tmp_path / "twice")
    for place in ("saved", "twice"):
        assert [classes[0]["label"] for classes in cr.Run(tmp_path / place).predict(images)] == answers
    more = trainer(cr.load(tmp_path / "twice"), 1)
    more.train()
    assert more.evaluate()["eval_loss"] < np.log(3)
