"""Made-up checkpoint files and saved folders: each loads a model that runs, or is refused in one line."""

import json

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.models import released_files as files
from tests.models import toys

from .outcomes import counts, fuzz, outcome, unchanged
from .test_damaged_files import STATES, load_and_run

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-2, 20) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["vision", "text", "float32", "mssa", "crate", "CrateModel", "sdpa", 10**9, 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
CHANGES = {
    "missing": lambda x: None, "nan": lambda x: x * torch.nan, "inf": lambda x: x / 0, "integers": lambda x: x.long(),
    "complex": lambda x: x + 1j, "truth": lambda x: x > 0, "empty": lambda x: x[:0], "flat": lambda x: x.flatten()[:-1],
    "axis": lambda x: x[None], "longer": lambda x: torch.cat([x, x]), "last": lambda x: x[..., :-1],
    "huge": lambda x: x[:1].expand(10**9, *x.shape[1:]), "number": lambda x: torch.tensor(3.0),
    "double": lambda x: x.double(), "half": lambda x: x.half(), "bfloat16": lambda x: x.bfloat16(),
    "fp8": lambda x: x.to(torch.float8_e4m3fn), "sparse": lambda x: x.to_sparse(), "meta": lambda x: x.to("meta"),
    "text": lambda x: "weight", "list": lambda x: x.tolist(), "parameter": lambda x: torch.nn.Parameter(x),
    "strided": lambda x: x.mT if x.ndim > 1 else x.flip(0), "extreme": lambda x: x * 1e38,
    "double extreme": lambda x: torch.full_like(x, 1e300, dtype=torch.float64),
}  # fmt: skip
"""What a released file would not hold in place of a tensor; None leaves it out."""
BAD = {"missing", "nan", "inf", "integers", "complex", "truth", "empty", "sparse", "meta", "text", "double extreme"}


@counts(20, 250)
@pytest.mark.parametrize("family", STATES)
def test_made_up_state_dicts(family, count, tmp_path):
    whole = files.random_values(STATES[family])
    unused = {"pos_embed", "decoder_embed.weight", "decoder_embed.bias"} if family == "mae" else set()

    @fuzz(count, st.sampled_from(sorted(whole)), st.sampled_from([*CHANGES]), st.text(max_size=8), st.booleans())
    def check(key, kind, name, legacy):
        new = CHANGES[kind](whole[key])
        state = {other: value for other, value in whole.items() if other != key}
        state |= {key: new} if new is not None else {key + name: whole[key]} if name else {}
        torch.save(state, tmp_path / "file.pth", _use_new_zipfile_serialization=not legacy)
        with unchanged(tmp_path):
            result = outcome(load_and_run, tmp_path / "file.pth")
        assert result == "refused" or kind not in BAD or key in unused


@counts(20, 250)
@pytest.mark.parametrize("task", ["image-classification", "causal-lm"])
def test_made_up_configs(task, count, tmp_path):
    toys.build(task).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    names = sorted({*settings, "num_labels", "auto_map", "attn_implementation", "quantization_config", "torch_dtype"})

    @fuzz(count, st.dictionaries(st.sampled_from(names) | st.text(max_size=6), VALUES, min_size=1, max_size=2))
    def check(changes):
        file.write_text(json.dumps({**settings, **changes}))
        with unchanged(tmp_path):
            result = outcome(load_and_run, tmp_path)
        assert result == "refused" or not changes.keys() & {"auto_map", "quantization_config"}


@counts(20, 250)
def test_made_up_weights(count, tmp_path):
    toys.build("image-classification").save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    kinds = sorted({*CHANGES} - {"sparse", "meta", "text", "list", "number", "huge", "parameter"})

    @fuzz(count, key=st.sampled_from(sorted(whole)), kind=st.sampled_from(kinds))
    def check(key, kind):
        tensors = {**whole, key: CHANGES[kind](whole[key])}
        tensors = {key: tensor.contiguous() for key, tensor in tensors.items() if tensor is not None}
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        with unchanged(tmp_path):
            result = outcome(load_and_run, tmp_path)
        assert result == "refused" or kind not in BAD | {"axis", "longer", "last", "flat"}
