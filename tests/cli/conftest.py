"""The command as a user calls it, runs that train in a blink, and the models and pictures that verbs look at."""

from __future__ import annotations

import copy
import functools
import json

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from codingrate import create_model
from codingrate.cli import main
from codingrate.inspection import read_metrics
from codingrate.recipes import build_recipe
from codingrate.runs import train
from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)

SMALL = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "patch_size": 8}
"""Fields of a model that reads color images of 4 × 4 patches."""
BLOCK = 32
"""Context length of the language models."""

_IMAGES = {
    "model": {
        "config": {
            "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4,
            "class_token": False, "pooling": "mean",
        }
    },
    "data": {"name": "digits", "workers": 0},
    "augment": {"image_size": 8, "channels": 1, "crop": "resize", "flip": 0.5, "affine_degrees": 10},
    "schedule": {"batch_size": 360, "steps": 2},  # 1438 images: four steps per epoch
    "run": {"log_steps": 1},
}  # fmt: skip
_MAE = {
    "task": "autoencoding",
    "model": {
        "name": "crate-mae-base",
        "config": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 2},
    },
}
_DINO = {
    "task": "distillation",
    "model": {
        "name": "crate-dino-small-patch16",
        "config": {
            "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 2,
            "projection_hidden": 32, "projection_bottleneck": 16, "prototypes": 37,
        },
    },
    "views": {"local_count": 2, "local_size": 4, "blur": [0.0, 0.0, 0.0], "solarize": [0.0, 0.0, 0.0]},
}  # fmt: skip


def crate(capsys, *arguments):
    """Call the command; return the exit code, standard output, and the one line of an error or standard error."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("crate:")]
    code = int(stop.value.code or 0)
    assert len(errors) == (code != 0)
    return code, out, errors[0] if errors else err


def crate_json(capsys, *arguments):
    """Call the command with --json, expect success, and return what it prints."""
    code, out, err = crate(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def check_refusal(capsys, arguments, code, words):
    """Expect an exit code, nothing on standard output, and one line that contains `words` in any case."""
    got, out, line = crate(capsys, *arguments)
    assert (got, out) == (code, ""), line
    assert words.lower() in line.lower()


def toy(changes=None, base=None):
    """Return a recipe on 8 × 8 digits with other values at dotted keys."""
    values = copy.deepcopy({**_IMAGES, **(base or {})})
    for key, value in (changes or {}).items():
        *sections, last = key.split(".")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return build_recipe(values)


def train_toy(folder, changes=None, base=None):
    """Train a toy recipe and return the run folder."""
    return train(toy(changes, base), folder, quiet=True).folder


def last_evaluation(run):
    """Return the last evaluation of a run during training."""
    return [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "evaluation"][-1]


def words(seed, count):
    """Return a text of a few words, drawn at random."""
    draw = np.random.default_rng(seed)
    return " ".join(draw.choice(["the", "cat", "sat", "on", "a", "mat,", "and", "slept.\n"], count))


def disc_image(width=90, height=60):
    """Return a picture of a disc, and the mask of the disc."""
    y, x = np.mgrid[:height, :width]
    disc = (y - 30) ** 2 + (x - 40) ** 2 < 20**2
    draw = np.random.default_rng(0)
    colors = np.where(disc[..., None], (200, 60, 40), (60, 110, 190)) + draw.normal(0, 4, (height, width, 3))
    return Image.fromarray(colors.clip(0, 255).astype(np.uint8)), disc


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Token files of saved models go to the user's cache folder; give each test its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="package", autouse=True)
def _one_command():
    """Build the command with its verbs once, as a process does that runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A classifier of gray digits without a class token, whose layers were measured before and after training."""
    changes = {"schedule.steps": 4, "run.layerwise_epochs": 1, "run.layerwise_images": 3}
    return train_toy(tmp_path_factory.mktemp("runs") / "digits", changes)


@pytest.fixture(scope="session")
def twin_run(tmp_path_factory):
    """The black-box twin of the classifier."""
    twin = {"model.config.attention": "mhsa", "model.config.sparsifier": "mlp", "model.config.skip": "residual"}
    return train_toy(tmp_path_factory.mktemp("runs") / "vit", {"schedule.steps": 1, **twin})


@pytest.fixture(scope="session")
def mae_run(tmp_path_factory):
    """An autoencoder of digits."""
    return train_toy(tmp_path_factory.mktemp("runs") / "mae", base=_MAE)


@pytest.fixture(scope="session")
def dino_run(tmp_path_factory):
    """A self-distilled model of digits."""
    return train_toy(tmp_path_factory.mktemp("runs") / "dino", {"schedule.steps": 1}, base=_DINO)


def _language_run(folder, task, name):
    (folder / "text").mkdir()
    for seed, (split, count) in enumerate({"train": 900, "valid": 300, "test": 200}.items()):
        (folder / "text" / f"{split}.txt").write_text(words(seed, count))
    config = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.0}
    recipe = {
        "task": task,
        "model": {"name": name, "config": config},
        "data": {"name": str(folder / "text"), "workers": 0},
        "text": {"block": BLOCK},
        "schedule": {"steps": 2, "batch_size": 4},
        "run": {"evaluate_epochs": 0},
    }
    return train(build_recipe(recipe), folder / "run", quiet=True).folder


@pytest.fixture(scope="session")
def gpt(tmp_path_factory):
    """A causal language model of a few words; the text lies beside it."""
    return _language_run(tmp_path_factory.mktemp("gpt"), "causal-lm", "crate-gpt-base")


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A masked language model of the same text."""
    return _language_run(tmp_path_factory.mktemp("bert"), "masked-lm", "crate-bert-base")


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """An untrained model with a class token that reads color images, in a folder of its own."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "model"
    create_model("crate-tiny-patch16-224", **SMALL, num_labels=7).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def by_color(tmp_path_factory):
    """An untrained model without positions, which tells patches apart by their color alone."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "model"
    create_model("crate-tiny-patch16-224", **SMALL, positions="none", num_labels=7).save_pretrained(folder)
    return folder


@pytest.fixture
def photo(tmp_path):
    """A file with a disc on 90 × 60 pixels."""
    disc_image()[0].save(tmp_path / "disc.png")
    return tmp_path / "disc.png"


@pytest.fixture
def unpictured(monkeypatch):
    """Leave out the picture of the confusion matrix, which takes longer than to evaluate a toy model."""
    monkeypatch.setattr("codingrate.tasks.reports.confusion_picture", lambda confusion, classes, path, unit: path)


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out figures, which take most of the time of a small report."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from codingrate._page import Picture

    def blank(draw, name):
        assert callable(draw)
        figure = Figure(figsize=(0.1, 0.1))
        FigureCanvasAgg(figure)
        return Picture(figure, "<svg/>")

    monkeypatch.setattr("codingrate.inspection.report.inspecting.render_figure", blank)
