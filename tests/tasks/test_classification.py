"""Image classification: the loss with label smoothing, metrics per image, augmentation by seed, predictions."""

import pytest
import torch

from codingrate.tasks import Task
from tests.refusals import refused
from tests.runs.toys import digit_pictures, digits_images, toy_task

LABELS = torch.tensor([3, 1, 9, 0, 2, 2, 5])


@pytest.fixture(scope="module")
def task() -> Task:
    return toy_task()


def test_a_batch_without_readable_images_has_no_loss_but_a_gradient(task):
    model = task.build_model()
    batch = {"pixel_values": torch.zeros(1, 1, 8, 8), "labels": torch.zeros(0, dtype=torch.long)}
    step = task.loss(model, model, batch)
    step.loss.backward()
    assert (float(step.loss.detach()), step.samples) == (0.0, 0)
    assert all(not p.grad.any() for p in model.parameters())


def test_augmentation_follows_the_seed_and_evaluation_has_none(task):
    model, again, other = (toy_task({"run.seed": seed}).build_model() for seed in (0, 0, 1))
    assert model.config.id2label == {index: str(index) for index in range(10)}
    assert torch.equal(model.head.weight, again.head.weight)
    assert not torch.equal(model.head.weight, other.head.weight)
    train, test = task.datasets()
    assert (len(train), len(test)) == (1438, 359)
    batch, still = (task.on_batch(task.collate([rows[index] for index in range(7)])) for rows in (train, test))
    first, again, other = (task.prepare(batch, seed, model)["pixel_values"] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(task.prepare(still, None, model)["pixel_values"], digits_images(7)[0])
    assert torch.equal(still["labels"], digits_images(7)[1])


def test_predictions_are_classes_with_probabilities(task, tmp_path):
    model, pictures, files = task.build_model(), digit_pictures(3), [tmp_path / f"{index}.png" for index in range(3)]
    for file, picture in zip(files, pictures, strict=True):
        picture.save(file)
    with torch.no_grad():
        expected = model.eval()(digits_images(3)[0]).logits.softmax(-1)
    assert task.predict(model, pictures) == task.predict(model, files)
    for answers, row in zip(task.predict(model, files), expected, strict=True):
        assert [answer["score"] for answer in answers] == pytest.approx(sorted(row.tolist(), reverse=True), abs=1e-6)
        found = {answer["label"]: answer["score"] for answer in answers}
        assert found == pytest.approx({str(index): score for index, score in enumerate(row.tolist())}, abs=1e-6)
    refused("missing.png", task.predict, model, [tmp_path / "missing.png"])


def test_a_task_on_other_data_keeps_everything_else(task, few):
    other, file = task.with_data(few["data.name"]), few["data.name"] + "/train.parquet"
    assert (type(other), other.recipe.augment) == (type(task), task.recipe.augment)
    tasks = (other, task.with_data("digits"), task.with_data(file), task.with_data("cifar10", file))
    assert [len(one.data.test) for one in tasks] == [23, 359, 77, 77], "data without splits are measured in full"
    assert 0 < len(task.with_data(file, held_out=False).data.test) < 77
    refused("classification", task.baseline)
