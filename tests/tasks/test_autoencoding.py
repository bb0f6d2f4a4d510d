"""Masked autoencoding: masks in training and evaluation, the reconstruction loss, what is learned and refused."""

import numpy as np
import pytest
import torch

from codingrate.models import create_model
from codingrate.models.autoencoder import CrateForMaskedAutoencoding
from codingrate.tasks.autoencoding import own_masks
from tests.refusals import refused
from tests.runs.toys import MAE, digit_pictures, digits_images, digits_sample, lines, mae, toy_task, train_toy

RELEASED = {
    "class_token": True, "positions": "sinusoidal", "mask_space": "embedding", "subtract_positions": False,
    "loss_on": "masked", "final_norm": True, "skip": "residual", "normalize_pixels": True,
}  # fmt: skip
FORMS = {
    "paper": {},
    "released": RELEASED,
    "vit-mae": {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual", "mask_space": "drop",
                "decoder_type": "forward", "class_token": True, "loss_on": "masked", "subtract_positions": False},
}  # fmt: skip


def form(name):
    return mae({"model.config": {**MAE["model.config"], **FORMS[name]}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("mae") / "run", mae({"schedule.epochs": 4}))


@pytest.mark.parametrize("name", ["paper", "released", pytest.param("vit-mae", marks=pytest.mark.slow)])
def test_every_form_learns(name, few, tmp_path):
    run = train_toy(tmp_path / "run", {**form(name), **few, "schedule.epochs": 25, "run.evaluate_epochs": 5})
    losses = [line["eval_loss"] for line in lines(run.folder, "evaluation")]
    assert losses[-1] < 0.9 * losses[0]
    assert run.headline == f"test reconstruction loss {losses[-1]:.4f}"


def test_the_loss_of_training_is_that_of_evaluation_and_the_best_model_has_the_lowest(finished):
    report = finished.task.evaluate(finished.model(), batch_size=101)  # other batches than in training
    assert report.loss == pytest.approx(finished.metrics["loss"], rel=1e-5)
    losses = [line["eval_loss"] for line in lines(finished.folder, "evaluation")]
    assert finished.evaluate(checkpoint="best").loss == pytest.approx(min(losses), rel=1e-5)
    assert (finished.task.best_metric, finished.task.higher_is_better) == ("loss", False)


def test_the_loss_of_evaluation_is_a_naive_sum(finished):
    model, task = finished.model(), finished.task
    pixels, labels = digits_images(17)
    batch = task.add_targets({"pixel_values": pixels, "labels": labels}, None, model)
    assert torch.equal(batch["mask"], own_masks(pixels, 16, 0.75))
    with torch.no_grad():
        losses = task.measure(model, model, batch)["loss"]
        image = model.image(model(pixel_values=pixels, mask=batch["mask"]).reconstruction).double()
        step = task.loss(model, model, batch)
    naive = torch.stack([((image[index] - pixels[index].double()) ** 2).mean() for index in range(17)])
    torch.testing.assert_close(losses.double(), naive, rtol=1e-5, atol=0)
    assert float(step.loss) == pytest.approx(float(naive.mean()), rel=1e-5)
    assert step.samples == 17


def test_training_masks_follow_the_seed_and_evaluation_masks_the_image():
    task = toy_task(mae())
    model = task.build_model()
    batch = {"pixel_values": torch.zeros(31, 1, 8, 8, dtype=torch.uint8), "labels": torch.zeros(31).long()}
    first, again, other = (task.prepare(batch, seed, model)["mask"] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first.sum(dim=1) == 12).all()
    still = task.prepare(batch, None, model)["mask"]
    assert torch.equal(still, still[:1].expand(31, 16)), "equal images have equal masks"


def test_own_masks_depend_on_the_image_alone():
    pixels = torch.randn(37, 3, 8, 8)
    masks = own_masks(pixels, 16, 0.75)
    order = torch.randperm(37)
    assert torch.equal(own_masks(pixels[order], 16, 0.75), masks[order])
    assert torch.equal(own_masks(pixels[5:6], 16, 0.75), masks[5:6])
    assert (masks.sum(dim=1) == 12).all()
    assert not torch.equal(own_masks(pixels, 16, 0.75, seed=1), masks)


def test_own_masks_are_uniform():
    draws, patches, ratio = 4000, 16, 0.75
    masks = own_masks(torch.randn(draws, 1, 2, 2, generator=torch.Generator().manual_seed(3)), patches, ratio)
    counts = masks.sum(dim=0).double()
    # χ² with 15 degrees of freedom; the interval holds 99 % of it
    statistic = ((counts - ratio * draws) ** 2).sum() * (patches - 1) / (patches * draws * ratio * (1 - ratio))
    assert 4.6 < float(statistic) < 32.8


def test_a_mask_must_keep_some_patches_and_may_keep_a_single_one():
    fields = {**MAE["model.config"], "image_size": 8, "num_channels": 1}
    for ratio in (1, 0.97):
        assert f"{ratio:g}" in refused("mask_ratio", create_model, "crate-mae-base", **fields, mask_ratio=ratio)
    model = create_model("crate-mae-base", **fields, mask_ratio=0.9375)
    assert (model(pixel_values=torch.randn(3, 1, 8, 8)).mask.sum(dim=1) == 15).all()


def test_reconstructions_show_originals_masks_and_results(finished):
    task, model, pictures = finished.task, finished.model(), digit_pictures(3)
    result = task.reconstruct(model, pictures, seed=7)
    (original, masked, rebuilt), pixels = result.columns, digits_images(3)[0]
    torch.testing.assert_close(original, pixels)
    with torch.no_grad():
        output = model(pixel_values=pixels, mask=own_masks(pixels, 16, 0.75, 7))
    torch.testing.assert_close(rebuilt, model.image(output.reconstruction))
    assert int((masked.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).abs().sum(-1) == 0).sum()) >= 3 * 12
    assert result.losses == pytest.approx(output.losses.tolist())
    assert np.array_equal(np.asarray(result.pictures()[1][0]), np.asarray(pictures[1])), "the original comes first"
    sample, (indices, pixels) = task.reconstruct_samples(model, 3, seed=7), digits_sample(3)
    assert sample.names == [f"test image {index}" for index in indices]
    torch.testing.assert_close(sample.columns[0], pixels)


def test_the_baseline_of_the_summary_is_one_color_for_the_removed_patches(finished):
    task, model = finished.task, finished.model()
    score = task.outcome(model, [], True, limit=13, batch_size=5).scores[0]
    errors = []
    for pixels in task.batches(model, limit=13, batch_size=5):
        removed = model.embedding.patches(pixels)[0][
            own_masks(pixels, 16, 0.75)
        ]  # (removed patches, pixels of a patch)
        errors += removed.square().mean(-1).tolist()
    assert len(errors) == 13 * 12
    assert score.baseline == pytest.approx(np.mean(errors), rel=1e-5)


# Starting from other models


def test_training_continues_from_a_run(finished, tmp_path):
    changes = mae({"model.from": str(finished.folder), "model.config": {}, "schedule.epochs": 1, "optimizer.lr": 1e-9})
    run = train_toy(tmp_path / "continued", changes)
    assert run.metrics["loss"] == pytest.approx(finished.metrics["loss"], rel=1e-3)
    refused("task autoencoding", train_toy, tmp_path / "a", mae({"model.name": "crate-tiny-patch16-224"}))
    for change in ({"augment.image_size": 16}, {"model.config": {"sparsity": 0.3}}):
        refused("model.from", train_toy, tmp_path / "b", {**changes, **change})


def test_the_encoder_is_fine_tuned_to_classes(finished, few, tmp_path):
    changes = {**few, "model.from": str(finished.folder), "model.config": {}, "schedule.epochs": 1}
    model, source = train_toy(tmp_path / "fine", {**changes, "optimizer.lr": 1e-12}).model(), finished.model()
    assert isinstance(source, CrateForMaskedAutoencoding)
    for key, weight in model.crate.state_dict().items():
        np.testing.assert_allclose(weight, source.crate.state_dict()[key], atol=1e-9)
