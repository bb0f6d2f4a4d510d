"""Masked autoencoders by the recipe engine: what they learn, what is measured, what is refused."""

import shutil

import numpy as np
import pytest
import torch

from codingrate.evaluation import own_masks, reconstruct
from codingrate.models import create_model
from codingrate.models.autoencoder import CrateForMaskedAutoencoding
from codingrate.training import load_data, load_weights, saved_model
from codingrate.training.run import build_trainer
from codingrate.training.tasks import task_of
from tests.refusals import refused

from .toys import assert_same, lines, measured, run, saved, toy

MAE = {
    "task": "autoencoding",
    "model.name": "crate-mae-base",
    "model.config": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 2},
    "augment.flip": 0.0,
    "augment.affine_degrees": 0.0,
    "optimise.lr": 3e-3,
}
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


def mae(changes=None):
    return {**MAE, **(changes or {})}


def form(name):
    return mae({"model.config": {**MAE["model.config"], **FORMS[name]}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("mae") / "run", mae({"schedule.epochs": 8}))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_learns(name, tmp_path):
    result = run(tmp_path / "run", {**form(name), "schedule.epochs": 5})
    losses = [line["eval_loss"] for line in lines(result.folder, "evaluation")]
    assert losses[-1] < 0.9 * losses[0]
    assert result.headline == f"test reconstruction loss {losses[-1]:.4f}"


def test_the_measured_loss_is_that_of_evaluation(finished):
    model, data = load_weights(str(finished.folder)), load_data(toy().data)
    report = reconstruct(model, data, toy().augment, batch_size=101)  # other batches than in training
    assert report.loss == pytest.approx(finished.metrics["loss"], rel=1e-5)
    assert report.images == 359
    assert report.loss_std > 0


def test_the_loss_of_evaluation_is_a_naive_sum(finished):
    model = load_weights(str(finished.folder)).eval()
    rows = task_of(toy(MAE)).datasets(load_data(toy().data), 0, 1)[1]
    pixels = torch.stack([rows[index]["image"] for index in range(17)]).double() / 255 * 2 - 1  # mean and deviation ½
    mask = own_masks(pixels.float(), 16, 0.75)
    with torch.no_grad():
        output = model(pixel_values=pixels.float(), mask=mask)
    image = model.image(output.reconstruction).double()
    naive = [((image[index] - pixels[index]) ** 2).mean() for index in range(17)]
    torch.testing.assert_close(output.losses.double(), torch.stack(naive), rtol=1e-5, atol=0)
    assert float(output.loss) == pytest.approx(float(torch.stack(naive).mean()), rel=1e-5)


def test_the_best_model_has_the_lowest_loss(finished):
    losses = [line["eval_loss"] for line in lines(finished.folder, "evaluation")]
    model = load_weights(str(saved_model(finished.folder, "best")))
    found = reconstruct(model, load_data(toy().data), toy().augment)
    assert found.loss == pytest.approx(min(losses), rel=1e-5)


def test_resumed_is_uninterrupted(tmp_path):
    changes = mae({"schedule.epochs": 8, "run.checkpoint_epochs": 3, "run.keep": 9})
    run(tmp_path / "whole", changes)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for late in (24, 32):
        shutil.rmtree(tmp_path / "killed" / "checkpoints" / f"checkpoint-{late}")
    run(tmp_path / "killed", changes, resume=True)
    assert_same(saved(tmp_path / "whole"), saved(tmp_path / "killed"))
    assert measured(tmp_path / "whole") == measured(tmp_path / "killed")


def test_training_masks_change_from_step_to_step_and_come_again(tmp_path):
    recipe = toy(mae())
    data = load_data(recipe.data)
    task = task_of(recipe)
    trainer = build_trainer(recipe, tmp_path, task.build_model(data), data, quiet=True)
    batch = {"pixel_values": torch.zeros(31, 1, 8, 8, dtype=torch.uint8), "labels": torch.zeros(31).long()}
    first, again, other = (trainer.task.prepare(batch, seed)["mask"] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first.sum(dim=1) == 12).all()


def test_own_masks_belong_to_the_image_alone():
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
    # as of random_mask: χ² with 15 degrees of freedom, 99 % of it, both sides
    statistic = ((counts - ratio * draws) ** 2).sum() * (patches - 1) / (patches * draws * ratio * (1 - ratio))
    assert 4.6 < float(statistic) < 32.8


@pytest.mark.parametrize("name", ["paper", "released"])
def test_without_a_mask_an_image_is_learned_by_heart(name):
    torch.manual_seed(0)
    fields = {**MAE["model.config"], "hidden_size": 48, **FORMS[name], "normalize_pixels": False, "loss_on": "all"}
    model = create_model("crate-mae-base", image_size=8, num_channels=1, **fields)
    rows = task_of(toy(MAE)).datasets(load_data(toy().data), 0, 1)[0]
    pixels = torch.stack([rows[index]["image"] for index in range(4)]).float() / 127.5 - 1
    mask = torch.zeros(4, 16, dtype=torch.bool)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        loss = model(pixel_values=pixels, mask=mask).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    error = (model.image(model(pixel_values=pixels, mask=mask).reconstruction) - pixels).square().mean()
    assert float(error.detach() / pixels.var()) < 0.01


@pytest.mark.parametrize("ratio", [0, 1, 0.97])
def test_a_mask_must_keep_some_and_remove_some(ratio):
    said = refused(
        "mask_ratio", create_model, "crate-mae-base", **{**MAE["model.config"], "image_size": 8}, mask_ratio=ratio
    )
    assert str(ratio) in said or f"{ratio:g}" in said


def test_a_mask_may_remove_the_last_but_one():
    model = create_model("crate-mae-base", **MAE["model.config"], image_size=8, num_channels=1, mask_ratio=0.9375)
    assert (model(pixel_values=torch.randn(3, 1, 8, 8)).mask.sum(dim=1) == 15).all()


def test_what_is_no_autoencoder_is_refused(tmp_path):
    said = "autoencoding needs a masked autoencoder such as crate-mae-base"
    refused(said, run, tmp_path / "run", mae({"model.name": "crate-tiny-patch16-224"}))


def test_trained_further(finished, tmp_path):
    changes = mae({"model.from": str(finished.folder), "model.config": {}, "schedule.epochs": 1, "optimise.lr": 1e-9})
    result = run(tmp_path / "further", changes)
    assert result.metrics["loss"] == pytest.approx(finished.metrics["loss"], rel=1e-3)
    refused("trained further as it is", run, tmp_path / "b", {**changes, "augment.image_size": 16})
    refused("trained further as it is", run, tmp_path / "c", {**changes, "model.config": {"sparsity": 0.3}})


def test_fine_tuned_to_classes(finished, tmp_path):
    changes = {"model.from": str(finished.folder), "model.config": {}, "schedule.epochs": 1}
    model = run(tmp_path / "fine", {**changes, "optimise.lr": 1e-12}).model
    body = dict(finished.model.crate.state_dict())
    assert isinstance(finished.model, CrateForMaskedAutoencoding)
    for key, weight in model.crate.state_dict().items():
        np.testing.assert_allclose(weight, body[key], atol=1e-9)
