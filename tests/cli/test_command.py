"""The command as a user meets it: help, tables, JSON, one-line errors and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

from codingrate import create_model
from codingrate.cli import demo, main

TINY = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "num_labels": 5}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_help_names_every_verb(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(verb in out for verb in ("demo", "models", "convert", "bench"))


def test_help_imports_neither_torch_nor_transformers():
    program = (
        "import sys\nfrom codingrate.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, "codingrate 0.1.0\n")


def test_models_table_and_json_agree(capsys):
    code, out, _ = run(capsys, "models", "crate-tiny-patch16*", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == ["crate-tiny-patch16-224"]
    assert rows[0]["parameters"] == 6_090_856
    code, out, _ = run(capsys, "models", "crate-tiny-patch16*")
    assert code == 0
    assert "6,090,856" in out


def test_demo_trains_both_and_measures_every_layer(capsys, tmp_path):
    code, out, _ = run(capsys, "demo", "--epochs", "1", "--output", str(tmp_path / "demo"), "--json")
    result = json.loads(out)
    assert code == 0
    assert 0.1 < result["models"]["crate"]["accuracy"] <= 1
    assert result["models"]["crate"]["parameters"] < result["models"]["vit"]["parameters"]
    crate = result["layers"]["crate"]
    assert [row["layer"] for row in crate if row["epoch"] == 0] == list(range(1, 7))
    assert {row["epoch"] for row in crate} == {0, 1}
    assert all(0 < row["nonzero"] < 1 and row["compression"] > 0 for row in crate)
    with Image.open(result["picture"]) as picture:
        assert picture.width > 500
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["layers.png"], "nothing else is left behind"
    demo.show(result)
    text = capsys.readouterr().out
    assert f"{crate[0]['compression']:.1f}" in text, "the table shows what was measured"
    assert "Measured here: with depth, R^c" in text


def test_convert_writes_a_folder_that_loads(capsys, tmp_path):
    from tests.models import released_files

    file = tmp_path / "crate.pth"
    shapes = released_files.classifier(d=24, depth=2, side=8, patches=9, classes=5)
    torch.save({"state_dict": {f"module.{key}": torch.randn(shape) for key, shape in shapes.items()}}, file)
    code, out, _ = run(capsys, "convert", str(file), str(tmp_path / "model"), "--heads", "3", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["model"] == "CrateForImageClassification"
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(tmp_path / "model")
    assert model(torch.zeros(1, 3, 24, 24)).logits.shape == (1, 5)
    assert report["parameters"] == model.num_parameters()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("modles",), 2, "Did you mean 'models'"),
        (("models", "vti-*"), 1, "no model matches 'vti-*'"),
        (("models", "--nope"), 2, "--nope"),
        (("bench", "--batch", "0"), 2, "--batch"),
        (("bench", "--model", "crate-bsae-patch16-224"), 1, "did you mean 'crate-base-patch16-224'"),
        (("bench", "--model", "vit-tiny-patch16-224"), 1, "--model vit-tiny-patch16-224"),
        (("convert", "no-such-file.pth", "out"), 1, "no-such-file.pth"),
        (("demo", "--epochs", "-1"), 1, "schedule.epochs"),
        (("bench", "imgae"), 2, "'imgae' is not one of 'image', 'rate'"),
    ],
)
def test_bad_calls_get_one_line_and_a_code(capsys, arguments, code, words):
    got, _, err = run(capsys, *arguments)
    said = [line for line in err.strip().splitlines() if line.startswith("crate:")]
    assert got == code
    assert len(said) == 1
    assert words in said[0]


def test_debug_shows_the_traceback(capsys):
    from codingrate import CrateError

    with pytest.raises(CrateError, match="no model matches"):
        main(["models", "vti-*", "--debug"])


def test_convert_refuses_a_full_folder(capsys, tmp_path):
    model = create_model("crate-tiny-patch16-224", **TINY)
    model.save_pretrained(tmp_path / "full")
    file = tmp_path / "x.pth"
    torch.save({"a": torch.zeros(1)}, file)
    code, _, err = run(capsys, "convert", str(file), str(tmp_path / "full"))
    assert code == 1
    assert err.count("\n") == 1
