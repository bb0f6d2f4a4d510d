"""Damaged and made-up checkpoint files and saved folders: each loads a model that runs, or is refused in one line."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from codingrate.models import load_model, load_released
from tests.models import released_files as files
from tests.models import toys

from .outcomes import cases, mutated, outcome, unchanged

SMALL = {"d": 8, "depth": 2, "side": 2, "patches": 4}
STATES = {
    "classifier": files.classifier(**SMALL, classes=3),
    "alpha": files.alpha(**SMALL, classes=3),
    "mae": files.mae(**SMALL, decoder=1),
}
FEW = [pytest.param(6, id="few"), pytest.param(60, id="many", marks=pytest.mark.slow)]
SOME = [pytest.param(20, id="few"), pytest.param(250, id="many", marks=pytest.mark.slow)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-2, 20) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["vision", "text", "float32", "mssa", "crate", "CrateModel", "sdpa", 10**9, 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def load_and_run(path):
    """Load a model, and run it on one input."""
    model = load_model(path) if path.is_dir() else load_released(path, heads=2, report=lambda _: None)
    config = model.config
    if config.modality == "vision":
        assert config.num_patches * config.patch_dim < 10**6
        output = model(torch.rand(1, config.num_channels, *config.image_sides))
    else:
        output = model(torch.zeros(1, min(3, config.max_tokens), dtype=torch.long))
    assert not any(tensor.is_meta for tensor in model.state_dict().values())
    assert output[0].numel()


def write(kind, state, path):
    if kind == "safetensors":
        path.write_bytes(save({key: tensor.contiguous() for key, tensor in state.items()}))
    else:
        torch.save({"model": state}, path, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.parametrize("count", FEW)
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("family", STATES)
def test_damaged_released_files(family, kind, count, tmp_path):
    path = tmp_path / ("file.safetensors" if kind == "safetensors" else "file.pth")
    write(kind, files.random_values(STATES[family]), path)
    whole = path.read_bytes()
    assert outcome(load_and_run, path) == "ok"

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        path.write_bytes(mutated(whole, seed))
        with unchanged(tmp_path):
            outcome(load_and_run, path)

    check()


def changed(tensor, kind):
    """Return a tensor that a released file would not hold, or None to leave it out."""
    axes = tensor.ndim
    return {
        "missing": lambda: None, "nan": lambda: tensor * torch.nan, "inf": lambda: tensor / 0,
        "integers": lambda: tensor.long(), "complex": lambda: tensor + 1j, "truth": lambda: tensor > 0,
        "empty": lambda: tensor[:0], "flat": lambda: tensor.flatten()[:-1], "axis": lambda: tensor[None],
        "longer": lambda: torch.cat([tensor, tensor]), "last": lambda: tensor[..., :-1],
        "huge": lambda: tensor[:1].expand(10**9, *tensor.shape[1:]), "number": lambda: torch.tensor(3.0),
        "double": lambda: tensor.double(), "half": lambda: tensor.half(), "bfloat16": lambda: tensor.bfloat16(),
        "fp8": lambda: tensor.to(torch.float8_e4m3fn), "sparse": lambda: tensor.to_sparse(),
        "meta": lambda: tensor.to("meta"), "text": lambda: "weight", "list": lambda: tensor.tolist(),
        "parameter": lambda: torch.nn.Parameter(tensor), "strided": lambda: tensor.mT if axes > 1 else tensor.flip(0),
        "extreme": lambda: tensor * 1e38, "double extreme": lambda: torch.full_like(tensor, 1e300, dtype=torch.float64),
    }[kind]()  # fmt: skip


CHANGES = [
    "missing", "nan", "inf", "integers", "complex", "truth", "empty", "flat", "axis", "longer", "last", "huge",
    "number", "double", "half", "bfloat16", "fp8", "sparse", "meta", "text", "list", "parameter", "strided", "extreme",
    "double extreme",
]  # fmt: skip
BAD = {"missing", "nan", "inf", "integers", "complex", "truth", "empty", "sparse", "meta", "text", "double extreme"}


@pytest.mark.parametrize("count", SOME)
@pytest.mark.parametrize("family", STATES)
def test_made_up_state_dicts(family, count, tmp_path):
    whole = files.random_values(STATES[family])
    unused = {"pos_embed", "decoder_embed.weight", "decoder_embed.bias"} if family == "mae" else set()
    path = tmp_path / "file.pth"

    @cases(count)
    @given(
        key=st.sampled_from(sorted(whole)),
        kind=st.sampled_from(CHANGES),
        name=st.text(max_size=8),
        legacy=st.booleans(),
    )
    def check(key, kind, name, legacy):
        state = {**whole, key: changed(whole[key], kind)}
        if state[key] is None:
            state[key + name] = state.pop(key)
            state = {key: value for key, value in state.items() if value is not None}
        torch.save(state, path, _use_new_zipfile_serialization=not legacy)
        with unchanged(tmp_path):
            result = outcome(load_and_run, path)
        if kind in BAD and key not in unused:
            assert result == "refused"

    check()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of two saved models."""
    folders = {task: tmp_path_factory.mktemp(task) for task in ("image-classification", "causal-lm")}
    for task, folder in folders.items():
        toys.build(task).save_pretrained(folder)
    return folders


@pytest.mark.parametrize("count", SOME)
@pytest.mark.parametrize("task", ["image-classification", "causal-lm"])
def test_made_up_configs(task, count, saved, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(saved[task], folder)
    settings = json.loads((folder / "config.json").read_text())
    names = sorted({*settings, "num_labels", "auto_map", "attn_implementation", "quantization_config", "torch_dtype"})

    @cases(count)
    @given(changes=st.dictionaries(st.sampled_from(names) | st.text(max_size=6), VALUES, min_size=1, max_size=2))
    def check(changes):
        (folder / "config.json").write_text(json.dumps({**settings, **changes}))
        with unchanged(tmp_path):
            result = outcome(load_and_run, folder)
        if changes.keys() & {"auto_map", "quantization_config"}:
            assert result == "refused"

    check()


@pytest.mark.parametrize("count", SOME)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors"])
def test_damaged_folders(name, count, saved, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(saved["causal-lm"], folder)
    whole = (folder / name).read_bytes()

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        (folder / name).write_bytes(mutated(whole, seed))
        with unchanged(tmp_path):
            outcome(load_and_run, folder)

    check()


@pytest.mark.parametrize("count", SOME)
def test_made_up_weights(count, saved, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(saved["image-classification"], folder)
    whole = load_file(folder / "model.safetensors")
    kinds = [kind for kind in CHANGES if kind not in ("sparse", "meta", "text", "list", "number", "huge", "parameter")]

    @cases(count)
    @given(key=st.sampled_from(sorted(whole)), kind=st.sampled_from(kinds))
    def check(key, kind):
        tensors = {**whole, key: changed(whole[key], kind)}
        tensors = {key: tensor.contiguous() for key, tensor in tensors.items() if tensor is not None}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with unchanged(tmp_path):
            result = outcome(load_and_run, folder)
        if kind in BAD | {"axis", "longer", "last", "flat"}:
            assert result == "refused"

    check()
