"""`task.evaluate` of images: accuracy against scikit-learn's, reconstruction losses image by image, and refusals."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, top_k_accuracy_score

from codingrate.data import Augment, load_images
from codingrate.data.columns import map_labels
from codingrate.models import CrateConfig, CrateForMaskedAutoencoding
from codingrate.tasks import reports
from codingrate.tasks.autoencoding import own_masks
from tests.data.conftest import write_classes
from tests.refusals import refused

from .conftest import GRAY, RGB, Fixed, Linear, answers, evaluate, image_task, one_hot, pixels_and_labels, tiny


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("build", [lambda: Linear(10), lambda: tiny().eval()], ids=["linear", "crate"])
def test_accuracy_agrees_with_scikit_learn(digits, build, split):
    model = build()
    logits, labels = answers(model, digits, GRAY, split)
    report, every = evaluate(model.double(), digits, split=split), range(10)  # the model runs in its own precision
    assert (report.data, report.split, report.images, report.corrupt) == ("digits", split, len(labels), ())
    confusion = confusion_matrix(labels, logits.argmax(1), labels=every)
    assert np.array_equal(report.confusion, confusion)
    probabilities = torch.from_numpy(logits).softmax(1).numpy()
    expected = {
        "loss": log_loss(labels, probabilities, labels=every),
        "top1": accuracy_score(labels, logits.argmax(1)),
        "top5": top_k_accuracy_score(labels, logits, k=5, labels=every),
    }
    assert report.metrics == pytest.approx(expected, rel=1e-5)  # float32 logits
    assert report.per_class == [
        {"class": model.config.id2label[index], "images": row.sum(), "accuracy": pytest.approx(row[index] / row.sum())}
        for index, row in enumerate(confusion)
    ]
    assert report.images_per_second == pytest.approx(report.images / report.seconds)


def test_neither_batch_size_nor_workers_matter_and_splits_are_measured_together(digits):
    model = Linear(10)
    first, train, both = (evaluate(model, digits, split=split, batch_size=359) for split in ("test", "train", "all"))
    for batch_size, workers in ((7, 0), (64, 2), (1, 0)):
        other = evaluate(model, digits, batch_size=batch_size, workers=workers)
        assert np.array_equal(other.confusion, first.confusion)
        assert other.metrics == pytest.approx(first.metrics, rel=1e-6)
    assert np.array_equal(both.confusion, first.confusion + train.confusion)
    assert [(part.images, part.total) for part in (train, first, both)] == [(1438, 1797), (359, 1797), (1797, 1797)]


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_measured_like_datasets(workers):
    model = Linear(10)
    whole = evaluate(model, load_images("digits", test_share=1))
    stream = load_images("digits", streaming=True)
    parts = [evaluate(model, stream, split=split, workers=workers) for split in ("train", "test")]
    assert np.array_equal(parts[0].confusion + parts[1].confusion, whole.confusion)
    assert evaluate(model, stream, limit=13, workers=workers).images == 13


def test_the_classes_of_data_are_matched_with_the_models_by_name(digits):
    """Any of the model's classes in any order, in the split that is measured or besides it, and some renamed."""
    draw = np.random.default_rng(0)
    for number in range(12):
        names = tuple(f"digit {digit}" for digit in draw.permutation(10))
        model = Linear(names)
        kept = [int(label) for label in draw.permutation(10)[: draw.integers(1, 11)]]  # digits of this dataset
        own = [f"digit {label}" for label in kept]
        test = digits.test.filter(lambda row, kept=kept: row["label"] in kept)
        data = digits.with_splits(test=test)
        logits, labels = answers(model, data, GRAY)
        relabeled = map_labels(test, "label", [kept.index(n) if n in kept else -1 for n in range(10)].__getitem__)
        renamed = {name: f"{name} (mine)" for name in own[: number % 3]}
        data = dataclasses.replace(
            data,
            splits={"train": relabeled.select([]), "test": relabeled},
            classes=(*(renamed.get(name, name) for name in own), "a class without images"),
        )
        if renamed:
            refused(f"map them with `labels='{renamed[own[0]]}=", evaluate, model, data)
        report = evaluate(model, data, class_map={other: name for name, other in renamed.items()})
        true = [names.index(f"digit {label}") for label in labels]
        assert report.classes == names
        assert np.array_equal(report.confusion, confusion_matrix(true, logits.argmax(1), labels=range(10)))
        assert report.top1 == pytest.approx(accuracy_score(true, logits.argmax(1)), abs=1e-12)


def test_few_classes_have_no_top_five_and_ties_go_where_topk_puts_them(tmp_path, digits):
    data = load_images(str(write_classes(tmp_path / "set", {"ant": 3, "bee": 4, "cat": 2})), test_share=1)
    flat = torch.zeros(9, 3)
    report = evaluate(Fixed(flat), data, RGB, batch_size=9)
    assert report.top5 is None
    assert report.confusion[:, flat.topk(3).indices[0, 0]].tolist() == [3, 4, 2]
    assert report.loss == pytest.approx(np.log(3))
    some = digits.with_splits(test=digits.test.filter(lambda row: row["label"] != 4))
    row = evaluate(Linear(digits.classes), some).per_class[4]
    assert row == {"class": "4", "images": 0, "accuracy": None}, "without images there is no accuracy"


@pytest.mark.parametrize("streaming", [False, True])
def test_corrupt_images_are_left_out_and_named(tmp_path, streaming):
    folder = write_classes(tmp_path / "set", {"ant": 8, "bee": 8})
    broken = [folder / "ant" / "003.png", folder / "bee" / "000.png"]
    for file in broken:
        file.write_bytes(b"no image")
    data, heard = load_images(str(folder), test_share=1, streaming=streaming), []
    report = evaluate(Linear(2, 3 * 49), data, RGB, batch_size=5, max_corrupt=0.2, progress=heard.append)
    assert sorted(report.corrupt) == sorted(map(str, broken))
    assert (report.images, report.confusion.sum(1).tolist(), sum(heard)) == (14, [7, 7], 16)
    refused("2 of 16 images cannot be read", evaluate, Linear(2, 3 * 49), data, RGB)


def test_a_batch_of_corrupt_images_is_skipped_and_a_set_of_them_refused(tmp_path):
    folder = write_classes(tmp_path / "set", {"ant": 4, "bee": 4})
    data = load_images(str(folder), test_share=1)
    for file in (folder / "ant").iterdir():
        file.write_bytes(b"")
    report = evaluate(Fixed(one_hot([1, 1, 1, 0], 2)), data, RGB, batch_size=4, max_corrupt=0.5)
    assert report.confusion.tolist() == [[0, 0], [1, 3]]
    for file in (folder / "bee").iterdir():
        file.write_bytes(b"")
    refused("all 8 images cannot be read", evaluate, Linear(2, 3 * 49), data, RGB, max_corrupt=1.0)


def test_the_model_runs_in_eval_mode_and_is_given_back_as_it_was(digits):
    model, trained, broken = Linear(10).train(), tiny(dropout=0.5).train(), Linear(10, pixels=63).train()
    model.map.eval()  # a frozen part
    for one in (model, trained):
        evaluate(one, digits, limit=20)
    assert set(model.modes) == {(False, True)}
    assert (model.training, model.map.training) == (True, False)
    with pytest.raises(RuntimeError):
        evaluate(broken, digits)
    assert all(module.training for one in (trained, broken) for module in one.modules())
    trained(pixel_values=torch.randn(2, 1, 8, 8), labels=torch.tensor([1, 2])).loss.backward()
    assert trained.head.weight.grad.abs().sum() > 0


def test_many_classes_have_no_confusion_matrix(digits, monkeypatch):
    monkeypatch.setattr(reports, "_LARGEST_CONFUSION", 9)
    report = evaluate(Linear(10), digits)
    correct = sum(row["images"] * row["accuracy"] for row in report.per_class)
    assert report.confusion is None
    assert report.top1 == pytest.approx(correct / report.images)


def test_models_and_splits_that_do_not_fit_are_refused(digits):
    model, stream, odd = Linear(10), load_images("digits", streaming=True), dataclasses.replace(GRAY, image_size=10)
    for words, one, data, augment, options in (
        ("0, 1, 2", tiny(num_labels=7), digits, GRAY, {}),
        ("head", tiny(num_labels=0), digits, GRAY, {}),
        ("num_channels=1", tiny(), digits, Augment(image_size=8), {}),
        ("patch_size 4", tiny(), digits, odd, {}),
        ("finite", Fixed(torch.full((359, 10), torch.nan)), digits, GRAY, {}),
        ("tset", model, digits, GRAY, {"split": "tset"}),
        ("train", model, load_images("digits", test_share=1), GRAY, {"split": "train"}),
        ("test", model, stream.with_splits(test=stream.test.take(0)), GRAY, {}),
    ):
        refused(words, evaluate, one, data, augment, **options)
    assert evaluate(tiny(), digits, dataclasses.replace(GRAY, image_size=12), limit=5).images == 5, "another size fits"


# samples for an inspection


def test_samples_are_read_as_the_model_or_another_task_reads_them(digits):
    task, heard, model = image_task(digits), [], tiny().double()
    batches = list(task.batches(model, batch_size=150, progress=heard.append))
    assert [len(batch) for batch in batches] == heard == [150, 150, 59]
    assert all(batch.dtype == torch.float64 for batch in batches)
    raw = torch.frombuffer(bytearray(digits.test[151]["image"]["bytes"][-64:]), dtype=torch.uint8).view(8, 8)
    assert torch.allclose(batches[1][1, 0], raw.double() / 127.5 - 1, atol=1e-6)
    assert sum(map(len, task.batches(model, split="train", limit=7))) == 7
    other = image_task(digits, dataclasses.replace(GRAY, image_size=12))
    (batch,) = task.batches(tiny(), other, limit=5)
    assert torch.equal(batch, next(iter(other.batches(tiny(), limit=5))))
    assert batch.shape == (5, 1, 12, 12)


def test_unreadable_samples_are_named(tmp_path):
    root = write_classes(tmp_path, {"a": 6, "b": 5})
    (root / "b" / "001.png").write_bytes(b"no image")
    task, names = image_task(load_images(str(root), test_share=1), RGB, max_corrupt=0.1), []
    model = tiny(num_channels=3, image_size=7, patch_size=7)
    assert sum(map(len, task.batches(model, batch_size=1, unreadable=names))) == 10
    assert names == [str(root / "b" / "001.png")]


# autoencoding


def autoencoder(**fields):
    base = {
        "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "image_size": 8, "patch_size": 2,
        "num_channels": 1, "class_token": False, "pooling": "mean", "initializer": "xavier",
    }  # fmt: skip
    return CrateForMaskedAutoencoding(CrateConfig(**{**base, **fields}))


def test_the_reconstruction_loss_is_that_of_single_images(digits):
    model, task = autoencoder().train(), image_task(digits, task="autoencoding")
    report = task.evaluate(model, batch_size=100)
    assert model.training
    assert (report.data, report.split, report.images, report.corrupt) == ("digits", "test", 359, ())
    images, model = pixels_and_labels(digits, GRAY)[0], model.eval()
    with torch.no_grad():
        outputs = [model(pixel_values=x, mask=own_masks(x, 16, model.config.mask_ratio)) for x in images.split(1)]
    losses = [float(output.loss) for output in outputs]
    assert report.metrics == pytest.approx({"loss": np.mean(losses), "loss_std": np.std(losses)}, rel=1e-4)
    assert task.evaluate(model, batch_size=7).loss == pytest.approx(report.loss, rel=1e-6)
    torch.nn.init.constant_(next(iter(model.parameters())), torch.nan)
    refused("not finite", task.evaluate, model, limit=5)
