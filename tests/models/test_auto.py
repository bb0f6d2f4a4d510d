"""transformers' Auto classes know the models in a fresh process, whichever is imported first."""

import subprocess
import sys
import textwrap

import pytest

from . import toys

AUTO = {
    "body": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
    "masked-autoencoding": "AutoModelForPreTraining",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "causal-lm": "AutoModelForCausalLM",
}
SCRIPT = """
    {first}
    {second}
    from transformers import AutoConfig, AutoImageProcessor, {classes}
    for auto, path, name in {rows}:
        assert type(AutoConfig.from_pretrained(path)).__name__ == "CrateConfig"
        model = auto.from_pretrained(path)
        assert type(model).__name__ == name, (type(model), name)
        assert type(auto.from_config(model.config)) is type(model)
    processor = AutoImageProcessor.from_pretrained({image!r})
    assert processor.crop_size["height"] == 21 and processor.crop_size["width"] == 14, processor
    print("resolved", len({rows}))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    for task in AUTO:
        toys.build(task).save_pretrained(root / task)
    return root


@pytest.mark.parametrize(
    ("first", "second"),
    [("import codingrate", "import transformers"), ("import transformers", "import codingrate")],
    ids=["codingrate-first", "transformers-first"],
)
def test_auto_classes_resolve_in_a_fresh_process(saved, first, second):
    rows = ", ".join(
        f"({auto}, {str(saved / task)!r}, {toys.TASKS[task][0].__name__!r})" for task, auto in AUTO.items()
    )
    script = SCRIPT.format(
        first=first,
        second=second,
        classes=", ".join(AUTO.values()),
        rows=f"[{rows}]",
        image=str(saved / "image-classification"),
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["resolved", "6"]
