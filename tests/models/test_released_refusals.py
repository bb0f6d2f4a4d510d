"""Files that are no released checkpoints, or damaged ones: each refused in one line, none ever run."""

import _codecs
import os
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from codingrate import CrateError
from codingrate.models.released import detect, load_released

from .released_files import small_classifier, write


def refused(path, **known):
    """The message a bad file is refused with: one line, the file's name in front."""
    with pytest.raises(CrateError) as caught:
        load_released(path, **{"heads": 3, **known})
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


class Evil:
    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize(
    ("save", "named"),
    [
        (torch.save, "mkdir"),
        (lambda contents, path: torch.save(contents, path, _use_new_zipfile_serialization=False), "mkdir"),
        (lambda contents, path: path.write_bytes(pickle.dumps(contents)), "a bare pickle"),
    ],
    ids=["zip", "legacy", "bare"],
)
def test_code_in_a_file_is_never_run(tmp_path, save, named):
    witness, path = tmp_path / "ran", tmp_path / "evil.pth"
    save({"model": small_classifier(), "extra": Evil(witness)}, path)
    message = refused(path)
    assert not witness.exists()
    assert "holds more than tensors" in message
    assert named in message
    assert "re-save it as a plain state dict" in message
    pickle.loads(pickle.dumps(Evil(witness)))
    assert witness.exists()  # the witness does tell


def test_a_whole_module_is_refused(tmp_path):
    assert "torch.nn.modules.linear.Linear" in refused(write(tmp_path, torch.nn.Linear(2, 2)))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 0.999])
@pytest.mark.parametrize("name", ["file.pth", "legacy.pth", "file.safetensors"])
def test_cut_files_are_refused(tmp_path, name, share):
    path = tmp_path / name
    if name == "file.safetensors":
        save_file(small_classifier(), path)
    else:
        torch.save(small_classifier(), path, _use_new_zipfile_serialization=name == "file.pth")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "is truncated" in refused(path)


@pytest.mark.parametrize("name", ["notes.pth", "notes.txt", "notes.safetensors"])
def test_files_of_another_kind_are_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text("Dear diary,\nthis is not a checkpoint.\n" * 20)
    assert "is truncated or not" in refused(path)


def test_file_that_holds_itself_is_refused(tmp_path):
    contents = {"epoch": 3}
    contents["model"] = contents
    assert "holds no tensors" in refused(write(tmp_path, contents))


def test_missing_file_and_folder_are_refused(tmp_path):
    assert refused(tmp_path / "none.pth") == "no such file"
    assert "is a folder" in refused(tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "holds no tensors"),
        ({"weights": {"a": torch.ones(1)}, "epoch": 3}, "holds no tensors.*it holds weights, epoch"),
        ([torch.ones(1)], "holds a list"),
        (torch.ones(3), "holds a Tensor"),
        ({"cls_token": torch.ones(1), "epoch": 3}, "mixes tensors with other values: epoch"),
        (
            {"student": {"a": torch.ones(1)}, "teacher": {"a": torch.ones(1)}},
            "looks like a DINO training file",
        ),
        ({"some.weight": torch.ones(1)}, "is not a released CRATE.*its keys begin with some.weight"),
    ],
)
def test_contents_that_are_no_state_dict_are_refused(tmp_path, contents, message):
    path = write(tmp_path, contents)
    with pytest.raises(CrateError, match=message):
        load_released(path)
    refused(path)


@pytest.mark.parametrize(
    ("key", "looks"),
    [
        ("blocks.0.attn.temp", "ToST vision"),
        ("transformer.h.0.attn.temp", "ToST language"),
        ("backbone.blocks.0.attn.qkv.weight", "black-box vision transformer"),
        ("decoder_blocks.0.attn.qkv.weight", "masked autoencoder with a black-box"),
        ("transformer.h.0.attn.c_attn.weight", "GPT-2"),
        ("roberta.encoder.layer.0.output.dense.weight", "RoBERTa"),
        ("visual.transformer.resblocks.0.ln_1.weight", "CLIP"),
        ("Transformer/encoderblock_0/LayerNorm_0/scale", "JAX"),
        ("transformer.layers.0.0.fn.to_qkv.weight", "vit-pytorch"),
        ("crate.layers.0.attention.project.weight", "from_pretrained"),
    ],
)
def test_other_families_are_named(key, looks):
    with pytest.raises(CrateError, match=f"^looks like .*{looks}"):
        detect(["cls_token", key])


@pytest.mark.parametrize(
    "key",
    [
        "cls_token",
        "pos_embedding",
        "to_patch_embedding.2.weight",
        "to_patch_embedding.3.bias",
        "transformer.layers.0.0.fn.qkv.weight",
        "transformer.layers.1.0.fn.to_out.0.bias",
        "transformer.layers.2.1.fn.weight",
        "mlp_head.1.weight",
    ],
)
def test_every_missing_or_misshapen_tensor_is_named(tmp_path, key):
    state = small_classifier()
    tensor = state.pop(key)
    message = refused(write(tmp_path, state))
    assert f"CRATE classifier without {key}" in message
    if tensor.ndim > 1:
        assert key in refused(write(tmp_path, {**state, key: tensor[..., :-1, :-1]}))
    assert f"{key} has shape" in refused(write(tmp_path, {**state, key: tensor[None]}))
    assert f"{key} has shape" in refused(write(tmp_path, {**state, key: tensor[:0]}))


def test_missing_layer_is_named(tmp_path):
    state = {key: value for key, value in small_classifier().items() if ".layers.1." not in key}
    assert "without transformer.layers.1.*" in refused(write(tmp_path, state))


def test_unexpected_tensors_are_named(tmp_path):
    state = {**small_classifier(), "surplus.weight": torch.ones(2)}
    assert refused(write(tmp_path, state)).endswith("with unexpected tensors: surplus.weight")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(tmp_path, value):
    state = small_classifier()
    state["transformer.layers.1.1.fn.weight"][3, 5] = value
    assert "transformer.layers.1.1.fn.weight holds NaN or infinity" in refused(write(tmp_path, state))


def test_whole_numbers_are_refused(tmp_path):
    state = {**small_classifier(), "cls_token": torch.ones(1, 1, 24, dtype=torch.int64)}
    assert "cls_token is torch.int64" in refused(write(tmp_path, state))


def test_projection_of_odd_patches_is_refused(tmp_path):
    state = small_classifier()
    state["to_patch_embedding.2.weight"] = torch.ones(24, 50)
    assert "no projection of square patches" in refused(write(tmp_path, state))


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"heads": 5}, "heads 5 does not divide the width 24; use one of 1, 2, 3, 4, 6"),
        ({"heads": 0}, "heads is 0"),
        ({"heads": 2.0}, "heads is 2.0"),
        ({"heads": None}, "heads is not in the file, and 24 is no published width"),
        ({"sparsity": -1}, "sparsity is -1"),
        ({"sparsity": "big"}, "'sparsity'"),
        ({"step_size": float("nan")}, "step_size is nan"),
        ({"image_size": "big"}, "image_size is 'big'"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, known, message):
    assert message in refused(write(tmp_path, small_classifier()), **known)


@pytest.fixture
def _limited_memory():
    """Let the process grow by at most 1 GB, so that a memory bomb fails the test and not the machine."""
    resource = pytest.importorskip("resource")
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("the size of the process is read from /proc")
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Call:
    """A call that the pickle of a file makes."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.usefixtures("_limited_memory")
class TestFilesThatWouldFillTheMemory:
    @pytest.mark.parametrize("zipped", [True, False])
    def test_strides_of_zero(self, tmp_path, zipped):
        state = small_classifier()
        state["mlp_head.1.weight"] = torch.ones(1, 24).expand(10**9, 24)
        state["mlp_head.1.bias"] = torch.ones(1).expand(10**9)
        path = tmp_path / "file.pth"
        torch.save(state, path, _use_new_zipfile_serialization=zipped)
        assert path.stat().st_size < 100_000
        assert "mlp_head.1.weight has shape (1000000000, 24), but the whole file has only" in refused(path)

    def test_many_names_of_one_tensor(self, tmp_path):
        state = {**small_classifier(), **{f"surplus.{i}": torch.ones(10_000) for i in range(3)}}
        shared = torch.ones(1000, 1000)
        state |= {f"transformer.layers.{i}.1.fn.weight": shared for i in range(500)}
        assert "has shape (1000, 1000), but the whole file has only" in refused(write(tmp_path, state))

    def test_compressed_entries(self, tmp_path):
        path = write(tmp_path, {**small_classifier(), "big": torch.zeros(10**7)})
        packed = tmp_path / "packed.pth"
        with zipfile.ZipFile(path) as plain, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in plain.namelist():
                archive.writestr(name, plain.read(name))
        assert packed.stat().st_size < path.stat().st_size / 100
        assert "is a compressed archive, which torch.save never writes, and was not opened" in refused(packed)

    @pytest.mark.parametrize("zipped", [True, False])
    def test_calls_that_pytorch_allows(self, tmp_path, zipped):
        text = "00" * 100
        for _ in range(3):
            text = Call(_codecs.encode, text, "hex")
        for bomb, name in ((Call(bytearray, 10**11), "bytearray"), (text, "encode")):
            path = tmp_path / "file.pth"
            torch.save({"model": small_classifier(), "extra": bomb}, path, _use_new_zipfile_serialization=zipped)
            message = refused(path)
            assert "holds more than tensors" in message
            assert name in message


def test_torchscript_is_refused(tmp_path):
    path = tmp_path / "script.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("script/constants.pkl", b"\x80\x02.")
        archive.writestr("script/data.pkl", b"\x80\x02.")
    assert "holds more than tensors (TorchScript)" in refused(path)


def test_tied_and_transposed_tensors_are_no_bombs(tmp_path):
    state = small_classifier()
    state["transformer.layers.1.1.fn.weight"] = state["transformer.layers.0.1.fn.weight"]
    state["mlp_head.1.bias"] = torch.ones(1).expand(7)
    state["transformer.layers.2.1.fn.weight"] = state["transformer.layers.2.1.fn.weight"].T.contiguous().T
    model = load_released(write(tmp_path, state), heads=3, report=lambda _: None)
    assert torch.equal(model.head.bias, torch.ones(7))
