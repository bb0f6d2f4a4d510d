"""Released checkpoints: each family against its formulas, files of every format, assumptions, folders."""

import argparse
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import codingrate
from codingrate import CrateError, CrateForImageClassification, CrateForMaskedAutoencoding
from codingrate.models import build_config
from codingrate.models.embedding import grid_sinusoids
from codingrate.models.loading import convert
from codingrate.models.presets import model_class
from codingrate.models.released import ALPHA, CLASSIFIER, DEMO, MAE, MAE_CLASSIFIER, load_released, plan_released

from . import oracles_released as oracle
from . import released_files as files
from .released_files import small_classifier, write

CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # float32 against float64, values of order one


def images(height, width=None, batch=2):
    return torch.randn(batch, 3, height, width or height)


def logits(model, pixels):
    with torch.no_grad():
        return model(pixels).logits.double()


def prefixed(state, prefix):
    return {prefix + key: value for key, value in state.items()}


# Values: every family against its formulas


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_classifier_matches_its_formulas(tmp_path, heads):
    state, pixels = small_classifier(), images(12)
    model = load_released(write(tmp_path, state), heads=heads)
    assert isinstance(model, CrateForImageClassification)
    assert not model.training
    assert (model.config.layer_norm_eps, model.config.head_norm_eps) == (1e-5, 1e-5)
    expected = oracle.classify(state, pixels, side=4, depth=3, heads=heads)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)


def test_sparsity_and_step_size_reach_the_layers(tmp_path):
    state, pixels = small_classifier(), images(12)
    path = write(tmp_path, state)
    model = load_released(path, heads=3, sparsity=5)
    expected = oracle.classify(state, pixels, side=4, depth=3, heads=3, lam=5.0)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)
    assert load_released(path, heads=3, step_size=0.2).config.step_size == 0.2


def test_single_head_without_output_map(tmp_path):
    state, pixels, notes = small_classifier(output=False), images(12), []
    model = load_released(write(tmp_path, state), report=notes.append)
    assert model.config.num_attention_heads == 1
    assert not any(note.startswith("heads") for note in notes)  # the file does tell
    expected = oracle.classify(state, pixels, side=4, depth=3, heads=1)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)
    with pytest.raises(CrateError, match="single head"):
        load_released(tmp_path / "file.pth", heads=2)


@pytest.mark.parametrize("size", [(24, 24), (40, 40), (16, 32)])
def test_patch_8_resizes_positions_with_the_released_offset(tmp_path, size):
    state, pixels = small_classifier(side=8), images(*size)
    model = load_released(write(tmp_path, {"model": state}), heads=3)
    assert model.config.interpolate_offset == 0.1
    expected = oracle.classify(state, pixels, side=8, depth=3, heads=3)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)


def test_demo_returns_features_and_leaves_its_classifier_out(tmp_path):
    state = files.random_values(files.demo(d=24, depth=2, side=8, patches=9, classes=31))
    pixels, notes = images(24), []
    model = load_released(write(tmp_path, {"model": state}), heads=4, report=notes.append)
    assert any("head.weight" in note and "not used" in note for note in notes)
    expected = oracle.classify(state, pixels, side=8, depth=2, heads=4)
    assert expected.shape == (2, 24)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)


def test_alpha_matches_its_formulas(tmp_path):
    state, pixels = files.random_values(files.alpha(**files.SMALL)), images(12)
    model = load_released(write(tmp_path, state), heads=3)
    assert model.config.layer_norm_eps == 1e-6
    assert model.config.head_norm_eps == 1e-5
    expected = oracle.classify_alpha(state, pixels, depth=3, heads=3)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)


def mae_state(**changes):
    sizes = {"d": 24, "depth": 3, "decoder": 2, "side": 4, "patches": 9}
    return files.random_values(files.mae(**{**sizes, **changes}))


@pytest.mark.parametrize("lam", [None, 5.0])
def test_mae_matches_its_formulas(tmp_path, lam):
    state, pixels, notes = mae_state(), images(12), []
    # The training file of the MAE convention, command line included.
    wrapped = {"model": state, "epoch": 3, "optimizer": {}, "scaler": {}, "args": argparse.Namespace(lr=0.1)}
    model = load_released(write(tmp_path, wrapped), heads=3, sparsity=lam, report=notes.append)
    assert isinstance(model, CrateForMaskedAutoencoding)
    mask = torch.rand(2, 9) < 0.6
    with torch.no_grad():
        actual = model(pixels, mask).reconstruction.double()
    expected = oracle.reconstruct(state, pixels, mask, depth=3, decoder=2, heads=3, lam=lam or 0.5)
    torch.testing.assert_close(actual, expected, **CLOSE)
    assert not model.crate.embedding.positions.weight.requires_grad
    assert (model.config.layer_norm_eps, model.config.head_norm_eps) == (1e-5, 1e-6)
    assert any("decoder_embed.bias, decoder_embed.weight, pos_embed" in note for note in notes)
    assert any("differ: took decoder_pos_embed" in note for note in notes)
    assert any("not the sinusoidal table" in note for note in notes)


def test_mae_with_its_own_table_says_nothing_of_positions(tmp_path):
    state, notes = mae_state(decoder=3), []
    table = torch.cat([torch.zeros(1, 24), grid_sinusoids(3, 3, 24)])[None]
    state["pos_embed"] = state["decoder_pos_embed"] = table
    model = load_released(write(tmp_path, state), heads=3, report=notes.append)
    assert not any("positions" in note or "differ" in note for note in notes)
    assert all(p.requires_grad for p in model.parameters())
    assert [name for name, _ in model.named_buffers()] == ["crate.embedding.positions.weight"]


@pytest.mark.parametrize("with_decoder", [False, True])
def test_fine_tuned_mae_is_a_classifier(tmp_path, with_decoder):
    state = files.random_values(files.mae_classifier(classes=7, d=24, depth=2, side=4, patches=9))
    if with_decoder:
        state = {**mae_state(depth=2, decoder=2), **state}
    pixels = images(12)
    model = load_released(write(tmp_path, {"model": state}), heads=3)
    assert isinstance(model, CrateForImageClassification)
    expected = oracle.classify_mae(state, pixels, depth=2, heads=3, lam=0.5)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)


# Files: formats, wrappers, precision


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {
            "epoch": 9,
            "arch": "x",
            "state_dict": prefixed(s, "module."),
            "best_acc1": torch.tensor(1.0),
        },
        lambda s: {"model": prefixed(s, "module._orig_mod."), "optimizer": {"state": {}}, "scaler": None},
        lambda s: {"model": {"state_dict": prefixed(s, "module.module.")}},
        lambda s: {key: torch.nn.Parameter(value) for key, value in s.items()},
    ],
    ids=["plain", "training", "compiled", "nested", "parameters"],
)
def test_wrappers_and_prefixes_are_seen_through(tmp_path, wrap):
    state, pixels = small_classifier(), images(12)
    plain = load_released(write(tmp_path, state, "plain.pt"), heads=3)
    model = codingrate.load_released(str(write(tmp_path, wrap(state), "checkpoint.pth.tar")), heads=3)
    assert torch.equal(logits(model, pixels), logits(plain, pixels))


def test_safetensors_and_legacy_files_are_read(tmp_path):
    state, pixels = small_classifier(), images(12)
    expected = logits(load_released(write(tmp_path, state), heads=3), pixels)
    save_file(state, tmp_path / "file.safetensors")
    torch.save(state, tmp_path / "legacy.bin", _use_new_zipfile_serialization=False)
    for name in ("file.safetensors", "legacy.bin"):
        assert torch.equal(logits(load_released(tmp_path / name, heads=3), pixels), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32_and_say_so(tmp_path, dtype):
    state, pixels, notes = small_classifier(), images(12), []
    state = {key: value.to(dtype) for key, value in state.items()}
    model = load_released(write(tmp_path, state), heads=3, report=notes.append)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert any(f"stored as {dtype}" in note for note in notes)
    expected = oracle.classify(state, pixels, side=4, depth=3, heads=3)
    torch.testing.assert_close(logits(model, pixels), expected, **CLOSE)


def test_model_outlives_its_file(tmp_path):
    path, pixels = write(tmp_path, small_classifier()), images(12)
    model = load_released(path, heads=3)
    before = logits(model, pixels)
    path.write_bytes(b"\0" * path.stat().st_size)  # in place: a mapped tensor would follow
    model.train().eval()
    assert torch.equal(logits(model, pixels), before)


def test_grid_that_is_no_square_needs_its_size(tmp_path):
    path = write(tmp_path, small_classifier(patches=6))
    with pytest.raises(CrateError, match="pos_embedding is for 6 patches, no square grid; pass image_size"):
        load_released(path, heads=3)
    with pytest.raises(CrateError, match="gives 9 patches"):
        load_released(path, heads=3, image_size=12)
    with pytest.raises(CrateError, match="multiples of the patch side 4"):
        load_released(path, heads=3, image_size=(9, 12))
    model = load_released(path, heads=3, image_size=(8, 12))
    assert model.config.grid == (2, 3)
    assert logits(model, images(8, 12)).shape == (2, 7)


# What is assumed, and that it is said


@pytest.mark.parametrize(
    ("make", "sizes", "expected"),
    [
        (files.classifier, (576, 12, 16, 196, 1000), (CLASSIFIER, 12, 0.1, 224, 0.0)),
        (files.classifier, (1024, 24, 16, 196, 1000), (CLASSIFIER, 16, 0.1, 224, 0.0)),
        (files.classifier, (384, 12, 8, 784, 21842), (CLASSIFIER, 6, 0.1, 224, 0.1)),
        (files.classifier, (768, 12, 8, 784, 21842), (CLASSIFIER, 12, 0.1, 224, 0.1)),
        (files.classifier, (768, 12, 8, 784, 768), (CLASSIFIER, 12, 0.1, 224, 0.1)),
        (files.demo, (768, 12, 8, 784, 21842), (DEMO, 6, 0.1, 224, 0.1)),
        (files.alpha, (1024, 24, 14, 256, 19167), (ALPHA, 16, 0.1, 224, 0.0)),
        (files.alpha, (192, 12, 16, 196, 1000), (ALPHA, 3, 0.1, 224, 0.0)),
        (files.mae_classifier, (768, 12, 16, 196, 1000), (MAE_CLASSIFIER, 12, 0.5, 224, 0.0)),
    ],
)
def test_published_sizes_are_recognized(make, sizes, expected):
    notes = []
    shapes = make(**dict(zip(("d", "depth", "side", "patches", "classes"), sizes, strict=True)))
    plan = plan_released(shapes, {}, notes.append)
    fields = {"interpolate_offset": 0.0, **plan.fields}
    names = ("num_attention_heads", "sparsity", "image_size", "interpolate_offset")
    assert (plan.title, *(fields[name] for name in names)) == (expected[0].title, *expected[1:])
    assert fields["skip"] == "residual"
    assert fields["num_labels"] == (768 if make is files.demo else sizes[-1])
    with torch.device("meta"):
        used = {
            key for name in model_class(plan.model)(build_config(plan.fields)).state_dict() for key in plan.keys(name)
        }
    assert used == set(shapes) - {"head.weight", "head.bias"} | (used & {"head.weight", "head.bias"})
    for name in ("heads", "sparsity", "step_size"):
        assert sum(note.startswith(f"{name} is not in the file: took ") for note in notes) == 1


def test_published_mae_is_recognized():
    plan = plan_released(files.mae(d=768, depth=12, decoder=12, side=16, patches=196), {}, lambda _: None)
    assert plan.title == MAE.title
    assert plan.fields["num_attention_heads"] == 12
    assert plan.fields["sparsity"] == 0.5
    assert "decoder_layers" not in plan.fields  # the encoder's depth


def test_nothing_is_said_of_what_is_given(tmp_path):
    notes = []
    path = write(tmp_path, small_classifier())
    load_released(path, heads=3, sparsity=0.1, step_size=0.1, report=notes.append)
    assert notes == []


def test_notes_go_to_the_log_by_default(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="codingrate"):
        load_released(write(tmp_path, small_classifier()), heads=3)
    assert "sparsity is not in the file: took 0.1; pass sparsity=… to change" in caplog.messages


# Folders


@pytest.mark.parametrize("family", ["classifier", "alpha", "mae"])
def test_converted_folder_gives_the_same_model(tmp_path, family):
    state = {"classifier": small_classifier, "alpha": lambda: files.random_values(files.alpha(**files.SMALL))}
    path, pixels = write(tmp_path, state.get(family, mae_state)()), images(12)
    folder = tmp_path / "new" / "model"
    model = convert(path, folder, heads=3)
    again = type(model).from_pretrained(folder)
    if family == "mae":
        mask = torch.rand(2, 9) < 0.6
        with torch.no_grad():
            assert torch.equal(again(pixels, mask).reconstruction, model(pixels, mask).reconstruction)
    else:
        assert torch.equal(logits(again, pixels), logits(model, pixels))
    assert again.config.skip == "residual"
    assert (folder / "preprocessor_config.json").is_file()
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]  # nothing left behind


def test_conversion_overwrites_only_a_saved_model_and_only_on_request(tmp_path):
    path, folder = write(tmp_path, small_classifier()), tmp_path / "model"
    folder.mkdir()
    convert(path, folder, heads=3)  # an empty one is fine
    with pytest.raises(CrateError, match="not empty; give another folder or overwrite=True"):
        convert(path, folder, heads=2)
    convert(path, folder, heads=2, overwrite=True)
    assert CrateForImageClassification.from_pretrained(folder).config.num_attention_heads == 2
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(CrateError, match=r"more than a saved model \(thesis.tex\)"):
        convert(path, folder, heads=3, overwrite=True)
    with pytest.raises(CrateError, match="is a file"):
        convert(path, path, heads=3, overwrite=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file.pth", "model"]


def test_failed_conversion_leaves_the_old_folder_alone(tmp_path, monkeypatch):
    path, folder = write(tmp_path, small_classifier()), tmp_path / "model"
    convert(path, folder, heads=3)

    def full(self, target, **_):
        (Path(target) / "half.safetensors").write_bytes(b"0")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CrateForImageClassification, "save_pretrained", full)
    with pytest.raises(CrateError, match=r"cannot write .*: No space left"):
        convert(path, folder, heads=2, overwrite=True)
    monkeypatch.undo()
    assert CrateForImageClassification.from_pretrained(folder).config.num_attention_heads == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file.pth", "model"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(CrateError, match="current folder"):
        convert(path, ".", heads=3)
