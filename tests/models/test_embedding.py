"""Patches, masks and positions."""

import math

import pytest
import torch

from codingrate.errors import CrateError
from codingrate.models.autoencoder import random_mask
from codingrate.models.embedding import PositionTable, grid_sinusoids, patchify, sinusoids, unpatchify

from . import naive, toys


def test_patches_run_row_by_row_with_the_channel_fastest():
    images = torch.randn(2, 3, 35, 21)
    patches = patchify(images, 7)
    assert patches.shape == (2, 15, 147)
    assert torch.equal(patches, naive.patches(images, 7))
    # patch (3, 2) of a 5 × 3 grid, pixel (4, 6) in it, channel 1
    assert torch.equal(patches[:, 3 * 3 + 2, (4 * 7 + 6) * 3 + 1], images[:, 1, 3 * 7 + 4, 2 * 7 + 6])


def test_unpatchify_undoes_patchify():
    images = torch.randn(2, 3, 35, 21)
    assert torch.equal(unpatchify(patchify(images, 7), 7, (5, 3)), images)
    model = toys.build("masked-autoencoding")
    pixels = toys.pixels()
    assert torch.equal(model.image(patchify(pixels, 7)), pixels)
    assert torch.equal(model.image(patchify(images, 7), (5, 3)), images)


@pytest.mark.parametrize(("patches", "ratio", "removed"), [(196, 0.75, 147), (6, 0.75, 5), (7, 0.5, 4), (11, 0.3, 4)])
def test_a_random_mask_removes_an_exact_count(patches, ratio, removed):
    mask = random_mask(13, patches, ratio)
    assert mask.shape == (13, patches)
    assert mask.dtype == torch.bool
    assert mask.sum(1).tolist() == [removed] * 13


def test_a_random_mask_is_uniform_and_independent_of_the_image():
    draws, patches = 4000, 12
    mask = random_mask(draws, patches, 0.75)
    # Removed counts per patch: n draws without replacement, so that the covariance is r(1 − r)n/(N − 1)·(NI − 11ᵀ)/N
    # and the statistic below is χ² with N − 1 degrees of freedom.
    ratio = 0.75
    counts = mask.sum(0).double()
    statistic = ((counts - ratio * draws) ** 2).sum() * (patches - 1) / (patches * draws * ratio * (1 - ratio))
    assert 2.6 < float(statistic) < 26.8  # 99 % of χ² with 11 degrees of freedom, both sides
    pairs = (mask[:, :, None] & mask[:, None, :]).double().mean(0)
    expected = ratio * (ratio * patches - 1) / (patches - 1)  # two patches removed together
    off = pairs[~torch.eye(patches, dtype=torch.bool)]
    # the deviation of a mean of 4000 coin flips is 0.008
    assert float((off - expected).abs().max()) < 5 * 0.008
    assert len(mask.unique(dim=0)) > 150  # of the 220 there are


def test_the_autoencoder_draws_its_own_mask():
    model = toys.build("masked-autoencoding", mask_ratio=0.5)
    first, second = model(toys.pixels(64)).mask, model(toys.pixels(64)).mask
    assert first.sum(1).tolist() == [3] * 64
    assert not torch.equal(first, second)


def test_grid_sinusoids_put_the_column_first():
    rows, columns, d = 5, 3, 20
    q = d // 4
    table = grid_sinusoids(rows, columns, d)
    assert table.shape == (15, 20)
    for a in range(rows):
        for b in range(columns):
            angles = [10000 ** (-i / q) for i in range(q)]
            expected = [math.sin(b * w) for w in angles] + [math.cos(b * w) for w in angles]
            expected += [math.sin(a * w) for w in angles] + [math.cos(a * w) for w in angles]
            torch.testing.assert_close(table[a * columns + b], torch.tensor(expected), rtol=0, atol=1e-6)


def test_sequence_sinusoids_alternate():
    table = sinusoids(101, 14)
    for t in (0, 1, 50, 100):
        for i in range(7):
            angle = t / 10000 ** (2 * i / 14)
            # float32 angles of up to 100
            assert abs(float(table[t, 2 * i]) - math.sin(angle)) < 1e-5
            assert abs(float(table[t, 2 * i + 1]) - math.cos(angle)) < 1e-5


def test_the_class_row_of_a_frozen_table_is_zero_and_survives_initialization():
    for front in (True, False):
        config = toys.autoencoding(positions="sinusoidal", class_token=front)
        table = toys.CrateModel(config).embedding.positions.weight
        assert not table.requires_grad
        assert torch.equal(table[int(front) :], grid_sinusoids(3, 2, 12))
        assert len(table) == 6 + front
        if front:
            assert float(table[0].abs().max()) == 0


def test_position_scale_is_the_amplitude_of_a_frozen_table():
    vision = toys.CrateModel(toys.autoencoding(positions="sinusoidal", class_token=False, position_scale=0.25))
    assert torch.equal(vision.embedding.positions.weight, 0.25 * grid_sinusoids(3, 2, 12))
    text = toys.CrateModel(toys.causal(positions="sinusoidal", position_scale=0.25)).embedding.positions.weight
    assert torch.equal(text, 0.25 * sinusoids(*text.shape))


def test_a_frozen_table_stays_frozen_and_a_learned_one_learned():
    for positions in ("sinusoidal", "learned"):
        model = toys.CrateModel(toys.autoencoding(positions=positions))
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
        assert model.embedding.positions.weight.requires_grad == (positions == "learned")


def test_a_table_is_used_as_it_is_on_its_own_grid():
    table = PositionTable(toys.vision())
    assert table.for_grid((3, 2)) is table.weight


@pytest.mark.parametrize("offset", [0.0, 0.1])
@pytest.mark.parametrize("grid", [(6, 4), (2, 5), (7, 3), (1, 1)])
def test_a_resized_table_keeps_constants_and_the_class_row(grid, offset):
    table = PositionTable(toys.vision(interpolate_offset=offset))
    with torch.no_grad():
        table.weight.copy_(torch.arange(15.0).expand(7, -1))
        table.weight[0] = -1
    resized = table.for_grid(grid)
    assert resized.shape == (1 + grid[0] * grid[1], 15)
    assert torch.equal(resized[0], table.weight[0])
    # bicubic weights sum to one, up to float32 with values of up to 14
    torch.testing.assert_close(resized[1:], torch.arange(15.0).expand(len(resized) - 1, -1), rtol=0, atol=5e-5)


def test_a_resized_table_follows_rows_and_columns():
    table = PositionTable(toys.vision(class_token=False, pooling="mean"))
    with torch.no_grad():
        grid = torch.arange(3.0)[:, None].expand(3, 2)  # grows with the row only
        table.weight.copy_(grid.reshape(6, 1).expand(-1, 15))
    resized = table.for_grid((6, 5)).detach().reshape(6, 5, 15)
    assert (resized[:, 1:] - resized[:, :-1]).abs().max() < 1e-5
    assert (resized[1:] > resized[:-1]).all()


@pytest.mark.parametrize(("height", "width"), [(42, 28), (14, 35), (7, 7)])
@pytest.mark.parametrize("task", ["image-classification", "masked-autoencoding"])
def test_other_image_sizes_run(task, height, width):
    model = toys.build(task)
    output = toys.main_output(model(toys.pixels(height=height, width=width)))
    patches = (height // 7) * (width // 7)
    assert output.shape == ((3, 5) if task == "image-classification" else (3, patches, 147))
    assert output.isfinite().all()


def test_initialization_of_the_parts():
    model = toys.CrateForImageClassification(toys.vision(hidden_size=120, num_attention_heads=3, image_size=[70, 70]))
    embedding, layer = model.crate.embedding, model.crate.layers[0]
    assert 0.9 < float(embedding.positions.weight.detach().std()) < 1.1
    assert 0.8 < float(embedding.class_token.detach().std()) < 1.2
    bound = math.sqrt(6 / 120)  # Kaiming
    assert 0.95 * bound < float(layer.sparsifier.dictionary.detach().abs().max()) <= bound
    assert 0.9 / math.sqrt(120) < float(layer.attention.project.weight.detach().abs().max()) <= 1 / math.sqrt(120)
    mae = toys.CrateForMaskedAutoencoding(toys.autoencoding(hidden_size=120))
    bound = math.sqrt(6 / 240)  # Xavier
    assert 0.95 * bound < float(mae.crate.layers[0].attention.project.weight.detach().abs().max()) <= bound
    assert float(mae.predict.bias.detach().abs().max()) == 0
    assert 0.01 < float(mae.mask_token.detach().std()) < 0.03
    lm = toys.CrateForCausalLM(toys.causal(hidden_size=120, initializer_range=0.02))
    assert 0.019 < float(lm.crate.layers[0].attention.project.weight.detach().std()) < 0.021


@pytest.mark.parametrize("class_token", [True, False])
def test_patch_dropout_keeps_a_random_share_of_the_patches(class_token):
    """Every token that is kept equals that of the whole image, in order; each patch is kept equally often."""
    pooling = "class" if class_token else "mean"
    model = toys.build("body", patch_dropout=0.5, class_token=class_token, pooling=pooling)
    embedding, pixels = model.embedding, toys.pixels(1).expand(600, -1, -1, -1)
    whole = embedding.eval()(pixels[:1])[0]
    kept = embedding.train()(pixels)
    front = int(class_token)
    assert kept.shape == (600, 3 + front, 15)
    rows = (kept[:, :, None] == whole).all(-1)  # (image, kept token, token)
    assert (rows.sum(-1) == 1).all()
    places = rows.int().argmax(-1)
    assert (places.diff(dim=1) > 0).all()
    counts = places.flatten().bincount()
    if class_token:
        assert counts[0] == 600
    # 600 draws of 3 out of 6: the deviation of a count is 12.2, and five of them are exceeded once in 300,000 tests
    assert (counts[front:] - 300).abs().max() < 62


def test_a_masked_autoencoder_refuses_patch_dropout():
    with pytest.raises(CrateError, match="patch_dropout"):
        toys.build("masked-autoencoding", patch_dropout=0.5)


@torch.no_grad()
@pytest.mark.parametrize("skip", ["normalized", "residual"])
def test_a_residual_sparsifier_has_the_skip_of_the_layer(skip):
    """With an MLP, Z^{ℓ+1} = MLP(x) + x for x = LN(Z^{ℓ+½}), or MLP(x) + Z^{ℓ+½} with the residual skip."""
    layer = toys.build("body", sparsifier="mlp", skip=skip).eval().layers[0]
    tokens, compressed, _ = layer(torch.randn(2, 7, 15))
    x = layer.sparsifier_norm(compressed)
    torch.testing.assert_close(tokens, layer.sparsifier(x) + (x if skip == "normalized" else compressed))


def test_the_convolutions_of_the_stem_against_loops():
    model = toys.build("body", stem="convolution", image_size=[12, 20], patch_size=4, hidden_size=24).double()
    stem, pixels = model.embedding.stem, torch.randn(2, 3, 12, 20, dtype=torch.float64, requires_grad=True)
    assert [tuple(c.weight.shape) for c in stem.convolutions] == [(6, 3, 3, 3), (12, 6, 3, 3)]
    expected = pixels
    for convolution in stem.convolutions:
        rows, columns = expected.shape[-2:]
        around = torch.nn.functional.pad(expected, (1, 1, 1, 1))
        mixed = convolution.bias[:, None, None] + sum(
            torch.einsum("oc,bchw->bohw", convolution.weight[:, :, a, b], around[..., a : a + rows, b : b + columns])
            for a in range(3)
            for b in range(3)
        )
        expected = mixed.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5)).clamp(min=0)
    expected = expected.permute(0, 2, 3, 1).flatten(1, 2)  # (batch, patches, channels), row by row
    features, grid = model.embedding.patches(pixels)
    assert grid == (3, 5)
    torch.testing.assert_close(features, expected)
    weights = torch.randn_like(features)
    (one,), (other,) = (torch.autograd.grad((value * weights).sum(), pixels) for value in (features, expected))
    torch.testing.assert_close(one, other)


def test_a_stem_starts_at_the_variance_of_its_input():
    stem = toys.build("body", stem="convolution", patch_size=4, image_size=64, hidden_size=192).embedding.stem
    x = torch.randn(8, 48, 16, 16)
    second = stem.convolutions[1]
    # E relu(w·x)² = 1 if w ~ N(0, 2/fan-in): the convolution doubles the mean square, whose ReLU halves it
    assert float(second(x)[..., 1:-1, 1:-1].relu().square().mean().detach()) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("task", "fields"), [("masked-autoencoding", {}), ("body", {"patch_size": 7})])
def test_models_that_cannot_have_a_stem(task, fields):
    with pytest.raises(CrateError, match="stem"):
        toys.build(task, stem="convolution", **{"patch_size": 4, "image_size": 28, "hidden_size": 24, **fields})


def test_a_model_with_a_stem_is_saved_and_loaded(tmp_path):
    model = toys.build("image-classification", stem="convolution", patch_size=4, image_size=28, hidden_size=24).eval()
    model.save_pretrained(tmp_path)
    again, pixels = type(model).from_pretrained(tmp_path), torch.randn(2, 3, 28, 28)
    assert torch.equal(again(pixels).logits, model(pixels).logits)
