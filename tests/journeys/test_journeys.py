"""Journeys of users through the real command: own images, own text, own table; with signals and a terminal."""

from __future__ import annotations

import csv
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image, ImageDraw
from transformers import pipeline

import codingrate
from codingrate.data import decode_image

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "codingrate"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def crate(*arguments, code=0, cwd=None):
    """Call the command in a process of its own, expect an exit code, and return standard output and error."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, timeout=600, cwd=cwd
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def crate_json(*arguments, cwd=None):
    return json.loads(crate(*arguments, "--json", cwd=cwd)[0])


def in_terminal(arguments, cwd, until, number):
    """Call the command in a pseudo-terminal, send a signal when `until` holds, and return exit code and output."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], env={**ENVIRONMENT, "TERM": "xterm"}, cwd=cwd,
        stdin=other, stdout=other, stderr=other, start_new_session=True,
    )  # fmt: skip
    os.close(other)
    shown, sent, start = b"", False, time.monotonic()
    while True:
        if select.select([main], [], [], 0.1)[0]:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        if not sent and until():
            os.killpg(process.pid, number)  # as a terminal does: loader workers get it too
            sent = True
        assert time.monotonic() - start < 180, shown[-2000:]
    os.close(main)
    return process.wait(), shown.decode(errors="replace")


def write_images(folder, counts, seed):
    """Write color pictures of squares and discs into class folders."""
    draw = random.Random(seed)
    for shape, count in counts.items():
        (folder / shape).mkdir(parents=True)
        for number in range(count):
            image = Image.new("RGB", (48, 40), tuple(draw.randrange(60) for _ in range(3)))
            x, y, size = draw.randrange(20), draw.randrange(14), draw.randrange(16, 26)
            box, color = (x, y, x + size, y + size), tuple(draw.randrange(150, 256) for _ in range(3))
            pen = ImageDraw.Draw(image)
            (pen.rectangle if shape == "square" else pen.ellipse)(box, fill=color)
            image.save(folder / shape / f"{number}.png")
    return folder


SMALL = [
    "model.config.hidden_size=32", "model.config.num_hidden_layers=2", "model.config.num_attention_heads=2",
    "augment.image_size=32", "schedule.batch_size=16", "run.layerwise_epochs=2", "data.workers=1",
]  # fmt: skip


def test_own_images(tmp_path):
    """Own folder → train → Ctrl-C → resume → evaluate on held-out data → predict → fine-tune → inspect → export."""
    shapes = {"disc": 60, "square": 60}
    data = write_images(tmp_path / "shapes", shapes, 0)
    (data / "disc" / "broken.png").write_bytes(b"not an image")
    held_out = write_images(tmp_path / "held_out", {"disc": 10, "square": 14}, 1)
    run = tmp_path / "runs" / "images"

    _, err = crate("train", "images", "--data", data, "lr=1", cwd=tmp_path, code=1)
    assert "did you mean 'optimizer.lr'" in err
    train = ["train", "images", "--data", data, *SMALL, "schedule.epochs=60", "data.max_corrupt=0.1"]
    _, err = crate(*train, "model.config.hidden_size=33", cwd=tmp_path, code=1)
    assert len(err.strip().splitlines()) == 1, "one line, and no run is left in the way"
    metrics = run / "metrics.jsonl"
    code, shown = in_terminal(
        train, tmp_path, lambda: metrics.exists() and metrics.read_text().count("\n") > 8, signal.SIGINT
    )
    assert code == 130
    assert "1 of 121 images cannot be read and are left out; the first is disc/broken.png" in " ".join(shown.split())
    assert "continue with: crate train --resume runs/images" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown again"
    assert re.search(r"loss \d\.\d", shown), "the bar shows the loss"
    last = json.loads((next((run / "checkpoints").glob("checkpoint-*")) / "trainer_state.json").read_text())
    assert last["global_step"] > 0

    # A second signal, SIGTERM, as clusters send it; then to the end.
    steps = last["global_step"]
    code, shown = in_terminal(
        ["train", "--resume", "runs/images"], tmp_path,
        lambda: max(map(int, re.findall(r'"step": (\d+)', metrics.read_text()))) >= steps + 20, signal.SIGTERM,
    )  # fmt: skip
    assert code == 143, shown[-3000:]
    assert "crate train --resume runs/images" in shown
    crate("train", "--resume", "runs/images", cwd=tmp_path)
    history = [json.loads(line) for line in metrics.read_text().splitlines()]
    logged = [line["step"] for line in history if line["kind"] == "training"]
    assert logged == sorted(set(logged)), "no step is logged twice"

    report = crate_json("evaluate", run, "--data", held_out)
    assert report["images"] == 24, "held-out data are used in full"
    assert report["top1"] > 0.75
    assert "evaluation-" in report["folder"]
    own = crate_json("evaluate", run)
    assert own["folder"] != report["folder"]

    picture = next((held_out / "square").glob("*.png"))
    predictions = crate_json("predict", run, picture, held_out / "disc")["predictions"]
    assert len(predictions) == 11
    assert {part["label"] for part in predictions[0]["classes"]} == {"disc", "square"}

    second = write_images(tmp_path / "second", {"disc": 20, "square": 20, "ellipse": 20}, 2)
    changes = ["schedule.epochs=1", "schedule.batch_size=16", "augment.image_size=32"]
    tuned = crate_json("finetune", run, *changes, "--data", second, "--output", tmp_path / "tuned")
    assert "top1" in tuned
    out, _ = crate("inspect", run, "--data", held_out, "--limit", 16, "--output", tmp_path / "report")
    assert "\n\n" not in out, "no blank lines when piped"
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000

    exported = crate_json("export", run, "--output", tmp_path / "model.onnx")
    assert exported["difference"] < 1e-4
    session = onnxruntime.InferenceSession(exported["file"])
    (logits,) = session.run(None, {"pixel_values": np.zeros((7, 3, 32, 32), np.float32)})
    assert logits.shape == (7, 2)


ODD = {
    "gray.png": "L",
    "palette.gif": "P",
    "alpha.webp": "RGBA",
    "print.tif": "CMYK",
    "two.bmp": "1",
    "deep.png": "I;16",
}


def test_a_messy_photo_folder(tmp_path):
    """Unreadable files and odd formats → train → SIGTERM → files removed → a longer resume → save → pipeline."""
    data = write_images(tmp_path / "photos", {"disc": 40, "square": 40}, 0)
    for name, mode in ODD.items():
        image = Image.open(data / "disc" / "0.png")
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
        (image if mode == "I;16" else image.convert(mode)).save(data / "disc" / name)
    whole = (data / "square" / "1.png").read_bytes()
    broken = {"disc/empty.jpg": b"", "square/cut.png": whole[: len(whole) // 2], "square/text.jpeg": b"not an image"}
    for name, content in broken.items():
        (data / name).write_bytes(content)
    (data / "disc" / "again").symlink_to(data, target_is_directory=True)
    run, total = tmp_path / "run", 80 + len(ODD) + len(broken)

    train = ["train", "images", "--data", data, "--output", run, *SMALL, "augment.mean=[0.2,0.3,0.4]"]
    _, err = crate(*train, cwd=tmp_path, code=1)
    assert f"3 of {total} images cannot be read" in err
    assert "data.max_corrupt" in err
    metrics = run / "metrics.jsonl"
    code, shown = in_terminal(
        [*train, "schedule.epochs=40", "data.max_corrupt=0.05"], tmp_path,
        lambda: metrics.exists() and metrics.read_text().count("\n") > 8, signal.SIGTERM,
    )  # fmt: skip
    assert code == 143, shown[-3000:]
    assert f"3 of {total} images cannot be read" in " ".join(shown.split())
    for name in broken:
        (data / name).unlink()
    result = crate_json("train", "--resume", run, "schedule.epochs=50", "data.max_corrupt=0", "data.workers=0")
    assert [line["epoch"] for line in map(json.loads, metrics.read_text().splitlines())][-1] == 50
    assert result["top1"] > 0.7

    report = crate_json("evaluate", run, "--split", "train")
    assert report["images"] + crate_json("evaluate", run)["images"] == 80 + len(ODD)
    trained = codingrate.Run(run)
    trained.model().save_pretrained(tmp_path / "saved")
    answer = pipeline("image-classification", str(tmp_path / "saved"))
    images = trained.task.data.train
    guesses = [answer(decode_image(image), top_k=1)[0]["label"] for image in images["image"]]
    names = [trained.task.data.classes[label] for label in images["label"]]
    right = np.mean([guess == name for guess, name in zip(guesses, names, strict=True)])
    assert right == pytest.approx(report["top1"], abs=1e-9)


def test_own_text(tmp_path):
    """Own text file → train → generate → perplexity."""
    draw = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "slept", "all", "day"]
    text = tmp_path / "story.txt"
    text.write_text("".join(" ".join(draw.choices(words, k=8)) + ".\n" for _ in range(3000)))
    changes = ["schedule.steps=60", "model.config.num_hidden_layers=1", "model.config.hidden_size=64", "text.block=32"]
    _, err = crate("train", "pydoc-gpt", "--data", text, "--output", tmp_path / "gpt", *changes)
    assert re.search(r"nats per token \(unigram \d\.\d+, bigram \d\.\d+\)", err), err
    out, _ = crate("generate", tmp_path / "gpt", "the cat", "--tokens", 100, "--stop", ".")
    assert out.startswith("the cat")
    assert "." not in out
    other = tmp_path / "other.txt"
    other.write_text("a cat slept on the mat all day.\n" * 40)
    report = crate_json("perplexity", tmp_path / "gpt", "--data", other, "--baseline")
    assert report["tokens"] > 1000
    assert report["perplexity"] < 20
    _, err = crate("train", "pydoc-gpt", "--data", tmp_path / "stroy.txt", "--output", tmp_path / "none", code=1)
    assert "no such file or folder" in err


def test_own_table(tmp_path):
    """Own CSV of labeled sentences → classify → evaluate beside the baseline → predict."""
    draw = random.Random(1)
    good, bad = ["good", "great", "lovely", "warm"], ["bad", "awful", "dull", "cold"]
    with (tmp_path / "films.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        for number in range(400):
            words = good if number % 2 else bad
            writer.writerow([f"a {draw.choice(words)} and {draw.choice(words)} film", "pos" if number % 2 else "neg"])
    changes = [
        "text.columns=review", "data.label_column=sentiment", "schedule.epochs=6", "text.max_length=40",
        "model.config.num_hidden_layers=1", "model.config.hidden_size=64", "optimizer.lr=2e-3",
    ]  # fmt: skip
    run = tmp_path / "films"
    result = crate_json("train", "sentences", "--data", tmp_path / "films.csv", "--output", run, *changes)
    assert result["accuracy"] > 0.8
    report = crate_json("evaluate", run, "--baseline")
    assert report["baseline"]
    (entry,) = crate_json("predict", run, "a lovely and great film")["predictions"]
    assert entry["classes"][0]["label"] == "pos"


def write_textures(folder, count, draw):
    """Write textures of random period, place and colors with noise into class folders."""
    y, x = np.mgrid[:32, :32]
    for kind in ("rows", "columns", "checks", "dots"):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            period, phase = draw.uniform(5, 11), draw.uniform(0, 6.3)
            rows, columns = np.sin(2 * np.pi * y / period + phase), np.sin(2 * np.pi * x / period + phase)
            waves = {"rows": rows, "columns": columns, "checks": rows * columns, "dots": np.minimum(rows, columns)}
            ink, paper = draw.integers(128, 256, 3), draw.integers(0, 128, 3)
            pixels = paper + (waves[kind][..., None] > 0) * (ink - paper) + draw.normal(0, 20, (32, 32, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / kind / f"{number}.png")


def test_600_images(tmp_path):
    """Fine-tune the shipped model on 600 images: the paper's recipe has three steps per epoch and learns too little."""
    draw = np.random.default_rng(0)
    write_textures(tmp_path / "data" / "train", 150, draw)
    write_textures(tmp_path / "data" / "test", 50, draw)
    short = ["schedule.epochs=5", "run.evaluate_epochs=0", "run.checkpoint_epochs=5"]
    _, err = crate("finetune", "crate-cifar10", *short, "--data", tmp_path / "data", "--output", tmp_path / "tuned")
    (line,) = [line for line in err.splitlines() if line.startswith("note: 600 training samples")]
    assert "schedule.batch_size=32 instead of 256" in line
    assert "schedule.epochs" not in line, "a key that is set stays"
    report = crate_json("evaluate", tmp_path / "tuned")
    assert report["images"] == 200
    assert report["top1"] > 0.8


def test_a_table_of_600_rows(tmp_path):
    """Classify sentences whose class is told by 60 words among others: a bag of words finds all of them."""
    draw = random.Random(0)
    letters = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = ["".join(draw.choices(letters, k=3)) for _ in range(360)]
    telling = {"positive": words[:30], "negative": words[30:60]}
    for name, count in (("train", 600), ("held_out", 200)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for number in range(count):
                label = list(telling)[number % 2]
                sentence = draw.choices(words[60:], k=10) + draw.choices(telling[label], k=3)
                draw.shuffle(sentence)
                writer.writerow([" ".join(sentence), label])
    run = tmp_path / "run"
    _, err = crate("train", "sentences", "--data", tmp_path / "train.csv", "--output", run)
    (line,) = [line for line in err.splitlines() if line.startswith("note: 540 training samples")]
    assert "schedule.epochs=52 instead of 4" in line
    (held_out,) = crate_json("evaluate", run, "--data", tmp_path / "held_out.csv")["splits"].values()
    assert (held_out["rows"], held_out["accuracy"] > 0.95) == (200, True)
    assert crate_json("evaluate", run, "--baseline")["baseline"]["validation"]["accuracy"] == 1


def test_the_first_screen_of_the_readme_is_enough(tmp_path):
    """The commands for an own folder in the README run as they stand."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = next(part for part in re.findall(r"```shell skip\n(.*?)```", readme, re.S) if "crate train images" in part)
    data = write_images(tmp_path / "DIR", {"disc": 24, "square": 24}, 3)
    write_images(tmp_path / "OTHER_DIR", {"disc": 4, "square": 4}, 4)
    write_images(tmp_path / "SECOND_DIR", {"disc": 12, "ellipse": 12}, 5)
    Image.new("RGB", (40, 40), "red").save(tmp_path / "photo.jpg")
    ran = []
    for line in block.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["crate"]:
            short = {"train": [*SMALL, "schedule.epochs=1"], "finetune": ["schedule.epochs=1", "data.workers=0"]}
            crate(*words[1:], *short.get(words[1], []), cwd=data.parent)
            ran.append(words[1])
    assert ran == ["train", "predict", "inspect", "evaluate", "finetune", "export"]
