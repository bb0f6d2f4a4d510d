"""Image classification: the loss with label smoothing, metrics per image, augmentation by seed, predictions."""

import pytest
import torch
import torch.nn.functional as F

from codingrate.models import CrateForImageClassification
from codingrate.tasks import Task
from tests.refusals import refused
from tests.runs.toys import digit_pictures, digits_images, naive_metrics, toy_task

LABELS = torch.tensor([3, 1, 9, 0, 2, 2, 5])


@pytest.fixture(scope="module")
def task() -> Task:
    return toy_task()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_smoothed_in_training_but_not_in_evaluation(smoothing):
    task = toy_task({"optimizer.label_smoothing": smoothing})
    model, batch = task.build_model(), {"pixel_values": torch.randn(7, 1, 8, 8), "labels": LABELS}
    step = task.loss(model, model, batch)
    logits = model(batch["pixel_values"]).logits.detach().double()
    target = torch.full((7, 10), smoothing / 10).double()
    target[range(7), LABELS] += 1 - smoothing
    naive = -(target * logits.log_softmax(-1)).sum(-1).mean()
    assert float(step.loss.detach()) == pytest.approx(float(naive), rel=1e-6)
    assert float(step.metrics["accuracy"]) == pytest.approx(float((logits.argmax(-1) == LABELS).double().mean()))
    assert step.samples == 7
    measured = task.measure(model, model, batch)
    torch.testing.assert_close(measured["loss"].detach().double(), F.cross_entropy(logits, LABELS, reduction="none"))


def test_the_penalty_on_orthogonality_is_part_of_the_training_loss():
    task = toy_task({"model.config.orthogonality": "penalty"})
    model, batch = task.build_model(), {"pixel_values": torch.randn(7, 1, 8, 8), "labels": LABELS}
    plain = task.measure(model, model, batch)["loss"].mean()
    step = task.loss(model, model, batch)
    assert float(step.loss.detach()) > float(plain.detach()) + 1e-4
    torch.testing.assert_close(step.loss, model.regularized(plain), rtol=1e-6, atol=0)


def test_a_batch_without_readable_images_has_no_loss_but_a_gradient(task):
    model = task.build_model()
    batch = {"pixel_values": torch.zeros(1, 1, 8, 8), "labels": torch.zeros(0, dtype=torch.long)}
    step = task.loss(model, model, batch)
    step.loss.backward()
    assert (float(step.loss.detach()), step.samples) == (0.0, 0)
    assert all(not p.grad.any() for p in model.parameters())


def test_the_metrics_of_a_split_are_the_means_of_those_of_its_images(task):
    model = task.build_model()
    pixels, labels = digits_images()
    with torch.no_grad():
        measured = task.measure(model, model, {"pixel_values": pixels, "labels": labels})
    assert {name: values.shape for name, values in measured.items()} == dict.fromkeys(measured, (359,))
    metrics = task.summarize({name: values.double().numpy() for name, values in measured.items()})
    assert metrics == pytest.approx(naive_metrics(model), rel=1e-6)
    assert task.headline(metrics) == (
        f"top-1 {metrics['top1']:.2%}, top-5 {metrics['top5']:.2%}, test loss {metrics['loss']:.4f}"
    )
    assert (task.best_metric, task.higher_is_better) == ("top1", True)


@pytest.mark.parametrize("classes", [5, 6])
def test_top_5_needs_more_than_five_classes(task, classes):
    model = toy_task({"model.config.num_labels": classes}).build_model()
    batch = {"pixel_values": torch.randn(7, 1, 8, 8), "labels": torch.arange(7) % classes}
    measured = task.measure(model, model, batch)
    metrics = task.summarize({name: values.detach().double().numpy() for name, values in measured.items()})
    assert ("top5" in metrics) == ("top-5" in task.headline(metrics)) == (classes > 5)


def test_augmentation_follows_the_seed_and_evaluation_has_none(task):
    model = task.build_model()
    train, test = task.datasets()
    assert (len(train), len(test)) == (1438, 359)
    batch = task.on_batch(task.collate([train[index] for index in range(7)]))
    assert sorted(batch) == ["labels", "pixel_values"]
    first, again, other = (task.prepare(batch, seed, model)["pixel_values"] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    batch = task.on_batch(task.collate([test[index] for index in range(7)]))
    torch.testing.assert_close(task.prepare(batch, None, model)["pixel_values"], digits_images(7)[0])
    assert torch.equal(batch["labels"], digits_images(7)[1])


def test_the_model_is_drawn_from_the_seed_and_knows_the_classes(task):
    model, again, other = (toy_task({"run.seed": seed}).build_model() for seed in (0, 0, 1))
    assert isinstance(model, CrateForImageClassification)
    assert model.config.id2label == {index: str(index) for index in range(10)}
    assert torch.equal(model.head.weight, again.head.weight)
    assert not torch.equal(model.head.weight, other.head.weight)


def test_predictions_are_classes_with_probabilities(task, tmp_path):
    model, pictures = task.build_model(), digit_pictures(3)
    files = [tmp_path / f"{index}.png" for index in range(3)]
    for file, picture in zip(files, pictures, strict=True):
        picture.save(file)
    with torch.no_grad():
        expected = model.eval()(digits_images(3)[0]).logits.softmax(-1)
    assert task.predict(model, pictures) == task.predict(model, files)
    for answers, row in zip(task.predict(model, files), expected, strict=True):
        assert [answer["score"] for answer in answers] == pytest.approx(sorted(row.tolist(), reverse=True), abs=1e-6)
        assert {answer["label"]: answer["score"] for answer in answers} == pytest.approx(
            {str(index): score for index, score in enumerate(row.tolist())}, abs=1e-6
        )
    refused("no such image file", task.predict, model, [tmp_path / "missing.png"])


def test_a_task_on_other_data_keeps_everything_else(task, few):
    other = task.with_data(few["data.name"])
    assert type(other) is type(task)
    assert other.recipe.augment == task.recipe.augment
    assert len(other.data.test) == 23
    assert len(task.with_data("digits").data.test) == 359
    single = task.with_data(few["data.name"] + "/train.parquet")
    assert len(single.data.test) == 77, "data without splits are measured in full"
    assert 0 < len(task.with_data(few["data.name"] + "/train.parquet", held_out=False).data.test) < 77
    assert len(task.with_data("cifar10", few["data.name"] + "/train.parquet").data.test) == 77, "also of a known name"


def test_classification_has_no_text_baseline(task):
    refused("task classification has no baseline", task.baseline)
