"""`crate evaluate`, `imagenet-real`, `detect` and `probe`."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from codingrate import create_model
from codingrate.data import Augment, load_images, load_voc
from codingrate.evaluation import extract_features, knn_probe, pixel_features, voc_overlap
from codingrate.inspection import find_objects, square_input, trace
from codingrate.models import CrateConfig, CrateForCausalLM, CrateForImageClassification
from codingrate.recipes import load_recipe, save_recipe
from codingrate.runs import Run
from tests.data.conftest import picture, write_classes, write_voc

from .conftest import check_refusal, crate, crate_json, disc_image, last_evaluation, toy, train_toy

# evaluate: images


def test_evaluate_agrees_with_training(capsys, digits_run, tmp_path):
    report = crate_json(capsys, "evaluate", digits_run, "--output", tmp_path / "report")
    last = last_evaluation(digits_run)
    assert report["top1"] == pytest.approx(last["eval_top1"], abs=1e-9)
    assert report["top5"] == pytest.approx(last["eval_top5"], abs=1e-9)
    assert report["loss"] == pytest.approx(last["eval_loss"], rel=1e-5)
    about = {"run": str(digits_run), "checkpoint": "last", "data": "digits", "split": "test", "images": 359}
    assert {name: report[name] for name in about} == about
    assert report["folder"] == str(tmp_path / "report")
    assert (tmp_path / "report" / "confusion.png").stat().st_size > 1000


def test_evaluate_names_the_split_and_the_checkpoint(capsys, digits_run):
    _, out, _ = crate(capsys, "evaluate", digits_run, "--split", "train", "--checkpoint", "best", "--batch-size", 100)
    assert "checkpoint best, train split" in " ".join(out.split())
    assert (digits_run / "evaluation-train-best" / "confusion.png").is_file(), "other results are not overwritten"


@pytest.mark.usefixtures("unpictured")
def test_evaluate_reads_the_checkpoint_of_a_step(capsys, tmp_path):
    run = train_toy(tmp_path / "run", {"schedule.steps": 3, "run.checkpoint_steps": 1, "run.save_total_limit": 3})
    losses = {step: crate_json(capsys, "evaluate", run, "--checkpoint", step)["loss"] for step in ("1", "3", "last")}
    assert losses["3"] == losses["last"] != losses["1"]
    assert losses["1"] == Run(run).evaluate(checkpoint=1).loss
    check_refusal(capsys, ["evaluate", run, "--checkpoint", 7], 1, "no saved model for checkpoint 7")


@pytest.mark.usefixtures("unpictured")
@pytest.mark.parametrize(
    ("parts", "options", "measured"),
    [
        ([""], [], [""]),
        (["test"], [], ["test"]),
        (["train", "test"], ["--split", "all"], ["train", "test"]),
        (["train", "test"], [], ["test"]),
        (["train", "validation", "test"], ["--split", "validation"], ["validation"]),
    ],
    ids=str,
)
def test_held_out_images_are_measured_in_full_and_by_the_names_of_their_classes(
    capsys, digits_run, tmp_path, parts, options, measured
):
    """Two of the model's ten classes, with and without folders of splits."""
    data = tmp_path / "data"
    for number, name in enumerate(parts):
        write_classes(data / name, {"2": 3, "7": 4}, start=10 * number)
    call = ["evaluate", digits_run, "--data", data, *options, "--output", tmp_path / "report"]
    report = crate_json(capsys, *call)
    files = [file for name in measured for file in sorted((data / name).rglob("*.png"))]
    guesses = [answer[0]["label"] for answer in Run(digits_run).predict(files)]
    correct = [guess == file.parent.name for guess, file in zip(guesses, files, strict=True)]
    count, total = 7 * len(measured), 7 * len(parts)
    assert (report["data"], report["images"], report["total"]) == (str(data), count, total)
    assert report["top1"] == pytest.approx(np.mean(correct))
    counts = {row["class"]: row["images"] for row in report["per_class"] if row["images"]}
    assert counts == {"2": 3 * len(measured), "7": 4 * len(measured)}
    code, out, _ = crate(capsys, *call)
    assert code == 0
    part = "all of" if measured == parts else f"{measured[0]} split of"
    assert f"checkpoint last, {part} {data}" in out
    assert f"{count} of {total} images" in out


@pytest.mark.usefixtures("unpictured")
def test_classes_with_other_names_are_refused_or_mapped(capsys, digits_run, tmp_path):
    counts = {"two": 3, "seven": 4}
    own = write_classes(tmp_path / "own", {"2": 3, "7": 4})
    data = write_classes(tmp_path / "data", counts)
    expected = crate_json(capsys, "evaluate", digits_run, "--data", own)
    call = ["evaluate", digits_run, "--data", data]
    check_refusal(capsys, call, 1, "does not know: seven, two; the model's are 0, 1, 2, … (10); map them with --labels")
    (tmp_path / "map.json").write_text(json.dumps({"two": "2", "seven": 7}))
    for labels in ("two=2,seven=7", tmp_path / "map.json"):
        report = crate_json(capsys, *call, "--labels", labels)
        assert (report["confusion"], report["loss"]) == (expected["confusion"], pytest.approx(expected["loss"]))
    check_refusal(capsys, [*call, "--labels", "two=2"], 1, "does not know: seven;")
    check_refusal(capsys, [*call, "--labels", "tow=2"], 1, "in --labels 'tow'; did you mean 'two'")
    check_refusal(capsys, [*call, "--labels", "two"], 1, "--labels two: give a JSON file, or pairs")


def test_evaluate_gives_the_loss_of_an_autoencoder(capsys, mae_run, tmp_path):
    report = crate_json(capsys, "evaluate", mae_run, "--output", tmp_path / "found")
    assert report["loss"] == pytest.approx(last_evaluation(mae_run)["eval_loss"], rel=1e-5)
    assert (report["images"], report["split"]) == (359, "test")
    assert json.loads((tmp_path / "found" / "metrics.json").read_text())["loss"] == report["loss"]


WRONG_EVALUATION = [
    (["RUN", "--checkpoint", "lats"], 2, "'lats' must be last, best or a training step"),
    (["RUN", "--split", "tset"], 1, "did you mean 'test'"),
    (["RUN", "--batch-size", "0"], 2, "--batch-size"),
    (["RUN", "--data", "no-such-folder/"], 1, "no-such-folder"),
    (["RUN", "--data", "TWO"], 1, "map them with --labels ape=0,… or a JSON file"),
    (["MAE", "--labels", "ape=0"], 1, "--labels maps classes, and task autoencoding has none"),
    (["RUN", "--baseline"], 1, "use crate probe --baseline"),
    (["GPT", "--split", "tset"], 1, "did you mean 'test'"),
    (["BERT", "--data", "BINARY"], 1, "binary.txt is not plain text"),
    (["RUN/model"], 1, "there is no saved model for checkpoint 'last'"),
    (["UNTRAINED"], 1, "there is no saved model for checkpoint 'last'"),
    ([], 2, "'run'"),
]


def test_evaluate_refuses(capsys, digits_run, mae_run, gpt, bert, tmp_path):
    (tmp_path / "untrained").mkdir()
    shutil.copy(digits_run / "recipe.yaml", tmp_path / "untrained")
    write_classes(tmp_path / "two", {"ape": 4, "bee": 4})
    (tmp_path / "binary.txt").write_bytes(b"\x00\x01\x02" * 50)
    paths = {
        "RUN": digits_run, "MAE": mae_run, "GPT": gpt, "BERT": bert,
        "RUN/model": digits_run / "model", "UNTRAINED": tmp_path / "untrained", "TWO": tmp_path / "two",
        "BINARY": tmp_path / "binary.txt",
    }  # fmt: skip
    for arguments, code, message in WRONG_EVALUATION:
        check_refusal(capsys, ["evaluate", *(paths.get(argument, argument) for argument in arguments)], code, message)


def test_evaluate_of_self_distilled_features_counts_neighbors(capsys, dino_run, tmp_path):
    report = crate_json(capsys, "evaluate", dino_run, "--output", tmp_path / "report")
    code, out, _ = crate(capsys, "evaluate", dino_run, "--output", tmp_path / "report")
    assert code == 0
    assert f"{report['neighbor_top1']:.2%} by nearest neighbors" in out


# evaluate: text (labeled sentences: see the tests of `crate glue`)


def test_evaluate_of_a_causal_model_is_its_perplexity(capsys, gpt, tmp_path):
    report = crate_json(capsys, "evaluate", gpt, "--output", tmp_path / "report")
    assert report["cross_entropy"] == crate_json(capsys, "perplexity", gpt)["cross_entropy"]
    assert json.loads((tmp_path / "report" / "metrics.json").read_text())["tokens"] == report["tokens"]


def test_evaluate_of_a_masked_model_agrees_with_training(capsys, bert, tmp_path):
    call = ["evaluate", bert, "--baseline", "--output", tmp_path / "report"]
    report, last = crate_json(capsys, *call), last_evaluation(bert)
    assert report["cross_entropy"] == pytest.approx(last["eval_loss"], rel=1e-5)
    assert report["accuracy"] == pytest.approx(last["eval_accuracy"], rel=1e-5)
    unigram = report["baseline"]["unigram"]["cross_entropy"]
    assert 2 < unigram < 3, "a few letters"
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert f"baseline unigram: cross_entropy {unigram:.4f}" in out


def test_evaluate_says_which_text_was_measured(capsys, gpt, bert, tmp_path):
    (tmp_path / "other.txt").write_bytes((gpt.parent / "text" / "test.txt").read_bytes())
    for run in (gpt, bert):
        own = crate_json(capsys, "evaluate", run, "--split", "test", "--output", tmp_path / "report")
        other = crate_json(capsys, "evaluate", run, "--data", tmp_path / "other.txt", "--output", tmp_path / "report")
        assert own["cross_entropy"] == other["cross_entropy"], "the whole file is measured"
        assert (own["data"], own["split"]) == (str(run.parent / "text"), "test")
        assert (other["data"], other["split"]) == (str(tmp_path / "other.txt"), "all")
        code, out, _ = crate(capsys, "evaluate", run, "--data", tmp_path / "other.txt", "--output", tmp_path / "report")
        assert code == 0
        assert f"all of {tmp_path / 'other.txt'}" in out


def test_a_baseline_and_other_data_do_not_mix(capsys, gpt, tmp_path):
    (tmp_path / "other.txt").write_text("another text, " * 30)
    call = ["evaluate", gpt, "--baseline", "--data", tmp_path / "other.txt", "--output", tmp_path / "report"]
    check_refusal(capsys, call, 1, "--baseline")


# imagenet-real


@pytest.fixture
def imagenet(tmp_path):
    """A run on two classes whose images have the file names of ImageNet's validation set, and their ReaL labels."""
    root, labels = tmp_path / "images", []
    for number in range(8):
        folder = root / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        picture(number).save(folder / f"ILSVRC2012_val_{number + 1:08}.png")
        labels.append([] if number == 3 else [0, 1] if number == 4 else [1 - number // 4])
    (tmp_path / "real.json").write_text(json.dumps(labels))
    recipe = toy({"data.name": str(root), "augment.channels": 3, "data.test_share": 1.0})
    save_recipe(recipe, tmp_path / "run" / "recipe.yaml")
    fields = {**recipe.model.config, "image_size": 8, "num_labels": 2, "id2label": {0: "class 0", 1: "class 1"}}
    create_model("crate-tiny-patch16-224", **fields).save_pretrained(tmp_path / "run" / "model" / "last")
    return tmp_path / "run", labels


def test_real_labels_are_found_by_the_number_of_the_file(capsys, imagenet, tmp_path):
    run, labels = imagenet
    call = ["imagenet-real", run, tmp_path / "real.json", "--batch-size", 3]
    report = crate_json(capsys, *call, "--output", tmp_path / "report")
    files = [tmp_path / "images" / f"class {n % 2}" / f"ILSVRC2012_val_{n + 1:08}.png" for n in range(8)]
    guesses = [int(answer[0]["label"][-1]) for answer in Run(run).predict(files)]
    correct = [guess in accepted for guess, accepted in zip(guesses, labels, strict=True) if accepted]
    assert report["real_top1"] == pytest.approx(sum(correct) / 7)
    assert report["top1"] == pytest.approx(sum(guess == n % 2 for n, guess in enumerate(guesses)) / 8)
    assert report["real_top1"] != report["top1"]
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert f"ReaL {report['real_top1']:.2%}, top-1 {report['top1']:.2%}" in out
    assert "8 of 8 images" in out
    assert json.loads((run / "evaluation-real" / "metrics.json").read_text())["real_top1"] == report["real_top1"]


def test_imagenet_real_refuses(capsys, digits_run, gpt, imagenet, tmp_path):
    labels = tmp_path / "real.json"
    check_refusal(capsys, ["imagenet-real", digits_run, labels], 1, "has labels for 8 images, but the dataset has 359")
    check_refusal(capsys, ["imagenet-real", gpt, labels], 1, "its task is causal-lm")
    check_refusal(capsys, ["imagenet-real", imagenet[0], tmp_path / "none.json"], 1, "none.json")


# detect

QUICK = ("--threshold", 0.5, "--size", 96)


@pytest.fixture
def coco(tmp_path):
    """Two images, each with the disc drawn as a polygon."""
    root = tmp_path / "coco"
    (root / "images").mkdir(parents=True)
    image, disc = disc_image()
    angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    polygon = np.stack([40.5 + 20 * np.cos(angles), 30.5 + 20 * np.sin(angles)], axis=1).ravel().tolist()
    content = {"images": [], "annotations": []}
    for number in range(2):
        image.save(root / "images" / f"{number}.png")
        content["images"].append({"id": number, "file_name": f"{number}.png", "width": 90, "height": 60})
        thing = {"id": number + 1, "image_id": number, "bbox": [20.5, 10.5, 40, 40], "area": int(disc.sum())}
        content["annotations"].append({**thing, "category_id": number, "segmentation": [polygon], "iscrowd": 0})
    (root / "annotations.json").write_text(json.dumps(content))
    return root


def test_detect_finds_planted_objects(capsys, by_color, coco, tmp_path):
    options = ("--data", coco, *QUICK, "--output", tmp_path / "out")
    (report,) = crate_json(capsys, "detect", by_color, *options)["layers"]
    assert (report["benchmark"], report["images"], report["objects"]) == ("coco", 2, 2)
    assert (report["layer"], report["size"]) == (2, 96)
    assert report["mask"]["ap50"] == pytest.approx(1)
    assert report["box"]["ap75"] == pytest.approx(1)
    assert report["mask"]["ap"] > 0.8
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["box"] == report["box"]
    assert len(json.loads((tmp_path / "out" / "detections.json").read_text())) == report["detections"]
    code, out, _ = crate(capsys, "detect", by_color, *options, "--limit", 1, "--no-refine")
    assert code == 0
    assert "1 images, one class" in " ".join(out.split())


def test_detect_takes_a_threshold_of_zero(capsys, by_color, coco, tmp_path):
    """Zero is a threshold of its own, not the default of 0.15."""
    (report,) = crate_json(
        capsys, "detect", by_color, "--data", coco, "--threshold", 0, "--size", 96, "--limit", 1,
        "--no-refine", "--output", tmp_path / "out",
    )["layers"]  # fmt: skip
    model = CrateForImageClassification.from_pretrained(by_color).eval()
    zero, default = (
        [part.cut_quality for part in find_objects(model, disc_image()[0], Augment(), side=96, refine=False, **options)]
        for options in ({"threshold": 0.0}, {})
    )
    detections = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert [found["score"] for found in detections] == pytest.approx(zero)
    assert zero != pytest.approx(default)
    assert report["detections"] == len(zero)


def naive_maps(model, pixel_values, layer=-2):
    """Return the class token's row of the attention inside the forward pass."""
    side = pixel_values.shape[-1] // model.config.patch_size
    weights = trace(model, pixel_values).attention(layer % 3)
    return weights[:, :, 0, 1:].unflatten(-1, (side, side))


def test_detect_measures_attention_maps_on_voc(capsys, by_color, tmp_path):
    root = write_voc(tmp_path / "VOC2012", size=(40, 24))
    options = ("--benchmark", "voc", "--data", root, "--size", 32, "--output", tmp_path / "out")
    (report,) = crate_json(capsys, "detect", by_color, *options)["layers"]
    model, pairs = CrateForImageClassification.from_pretrained(by_color).eval(), []
    for entry in load_voc(root):
        image, labels = entry.read()
        pixels = square_input(model, image, Augment(), 32)[1]
        pairs.append((naive_maps(model, pixels)[0].detach().numpy(), labels))
    assert report["miou"] == pytest.approx(voc_overlap("voc", pairs, mass=0.6).miou)
    assert sorted(report["per_class"]) == ["2", "7"]
    code, out, _ = crate(capsys, "detect", by_color, *options, "--threshold", 0.9, "--layer", 1)
    assert code == 0
    assert "masks of 90% of the attention of layer 1" in out
    both = crate_json(capsys, "detect", by_color, *options, "--layer", 1, "--layer", -2)["layers"]
    assert [entry["layer"] for entry in both] == [1, 2]
    assert both[1]["miou"] == report["miou"]
    assert [entry["folder"] for entry in both] == [str(tmp_path / "out" / f"layer{number}") for number in (1, 2)]


def test_detect_refuses(capsys, by_color, coco, digits_run, gpt):
    for model, options, code, message in (
        (by_color, ["--benchmark", "cocoa", "--data", "."], 2, "'cocoa' is not one of"),
        (by_color, [], 2, "--data"),
        (by_color, ["--data", "nowhere"], 1, "nowhere: no such file or folder"),
        (by_color, ["--benchmark", "voc", "--data", "nowhere"], 1, "nowhere: has no ImageSets/Segmentation"),
        (digits_run, ["--data", coco], 1, "the model reads 1 channel; coco is in color"),
        (gpt, ["--data", coco], 1, "reads text"),
        (by_color, ["--data", coco, "--layer", "0"], 1, "--layer 0: layers are numbered from 1"),
    ):
        check_refusal(capsys, ["detect", model, *options], code, message)
    Image.new("RGB", (9, 9)).save(coco / "images" / "1.png")
    check_refusal(capsys, ["detect", by_color, "--data", coco, *QUICK], 1,
                  "1.png: has 9 × 9 pixels, but its annotations are for 90 × 60")  # fmt: skip


# probe

BOTH = ["--baseline", "untrained", "--baseline", "pixels"]


@pytest.fixture
def probed(digits_run, tmp_path):
    """A copy of the run on digits, to which features are written."""
    return shutil.copytree(digits_run, tmp_path / "run")


def test_probe_measures_trained_and_untrained_features_and_pixels(capsys, probed):
    report = crate_json(capsys, "probe", probed, "--method", "knn", *BOTH)
    about = {"run": str(probed), "checkpoint": "last", "data": "digits"}
    assert {key: report[key] for key in about} == about
    assert list(report["probes"]) == ["trained", "untrained", "pixels"]
    digits, augment = load_images("digits"), load_recipe(str(probed / "recipe.yaml")).augment
    model = CrateForImageClassification.from_pretrained(probed / "model" / "last")
    for name, source in (
        ("trained", lambda split: extract_features(model, digits, augment, split=split)),
        ("pixels", lambda split: pixel_features(digits, augment, split=split)),
    ):
        expected, found = knn_probe(source("train"), source("test")), report["probes"][name]
        assert (found["metrics"], found["chosen"]) == (expected.metrics, expected.chosen)
        assert found["about"] == {**about, "features": name}
        assert json.loads((probed / "probe" / f"knn-{name}.json").read_text()) == found
    widths = {name: probe["width"] for name, probe in report["probes"].items()}
    assert widths == {"trained": 24, "untrained": 24, "pixels": 64}
    assert report["probes"]["untrained"]["metrics"] != report["probes"]["trained"]["metrics"]
    assert len(list((probed / "features").iterdir())) == 6, "three kinds of features, two splits"


def test_probe_always_draws_the_same_untrained_model(capsys, probed):
    call = ["probe", probed, "--method", "knn", *BOTH, "--limit", 100]
    first, second = (crate_json(capsys, *call)["probes"]["untrained"]["metrics"] for _ in range(2))
    assert first == second
    assert len(list((probed / "features").iterdir())) == 6


def test_probe_prints_a_table(capsys, probed, tmp_path):
    call = ["probe", probed, "--limit", 200, "--output", tmp_path / "out", "--cache", tmp_path / "kept"]
    for method, letter, names in (
        ("logistic", "C", ["trained"]),
        ("knn", "k", ["trained", "untrained", "pixels"]),
    ):
        code, out, _ = crate(capsys, *call, "--method", method, *(BOTH if len(names) > 1 else []))
        assert code == 0
        assert f"checkpoint last, {method}" in " ".join(out.split())
        for name in names:
            report = json.loads((tmp_path / "out" / f"{method}-{name}.json").read_text())
            (line,) = (line for line in out.splitlines() if line.startswith(f"│ {name} "))
            assert f"{report['metrics']['top1']:.2%}" in line
            assert f"{letter} = {report['chosen'][letter]:g} " in line
    assert len(list((tmp_path / "kept").iterdir())) == 6
    assert not (probed / "probe").exists()
    assert not (probed / "features").exists()


def test_probe_in_the_metric_of_the_coding_rate(capsys, probed):
    report = crate_json(capsys, "probe", probed, "--method", "knn", "--metric", "coding-rate", "--limit", 200)
    (trained,) = report["probes"].values()
    assert trained["about"]["metric"] == "coding-rate"
    assert json.loads((probed / "probe" / "knn-coding-rate-trained.json").read_text()) == trained


def test_probe_splits_other_data_and_chooses_among_ks(capsys, probed, tmp_path):
    data = write_classes(tmp_path / "data", {"ant": 20, "bee": 20})
    call = ["probe", probed, "--data", data, "--method", "knn", "--k", 3, "--k", 5]
    report = crate_json(capsys, *call)["probes"]["trained"]
    assert [row["k"] for row in report["table"]] == [3, 5]
    assert report["images"] == {"train": 36, "test": 4}
    assert "top5" not in report["metrics"], "two classes"
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert "36 of 36 train images, 4 of 4 test images" in out
    assert "top-5" not in out


WRONG_PROBE = [
    (["RUN", "--method", "knm"], 2, "'knm' is not one of"),
    (["RUN", "--baseline", "pixel"], 2, "'pixel' is not one of"),
    (["RUN", "--checkpoint", "lats"], 2, "'lats' must be last, best or a training step"),
    (["nowhere"], 1, "unknown run folder, checkpoint file or model 'nowhere'"),
    (["RUN", "--k", "3"], 2, "--k is only for --method knn"),
    (["RUN", "--metric", "coding-rate"], 2, "--metric is only for --method knn"),
    (["RUN", "--method", "knn", "--k", "0"], 2, "--k"),
    (["RUN", "--method", "knn", "--k", "2000"], 1, "1438 training images are too few for k=2000"),
    (["RUN", "--data", "RARE", "--method", "knn", "--limit", "5"], 1, "5 training images are too few for k=10"),
    (["RUN", "--path", "x"], 1, "--path is the folder of the dataset that --data names; give both"),
    (["RUN", "--data", "no-such-folder/"], 1, "no-such-folder"),
    (["RUN", "--data", "ONE"], 1, "one class only"),
    (["RUN", "--data", "RARE", "--limit", "3"], 1, "has a single training image"),
    (["GPT"], 1, "CrateForCausalLM has no image features"),
    (["LANGUAGE"], 1, "CrateForCausalLM has no image features"),
    ([], 2, "'run'"),
]


def test_probe_refuses(capsys, digits_run, gpt, tmp_path):
    paths = {
        "RUN": digits_run, "GPT": gpt, "ONE": tmp_path / "one", "RARE": tmp_path / "rare",
        "LANGUAGE": tmp_path / "language",
    }  # fmt: skip
    write_classes(tmp_path / "one", {"ape": 4})
    write_classes(tmp_path / "rare", {"ape": 9, "bee": 5})
    fields = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 17}
    config = CrateConfig(modality="text", causal=True, **fields)  # a folder whose recipe is not that of its model
    CrateForCausalLM(config).save_pretrained(tmp_path / "language" / "model" / "last")
    save_recipe(toy(), tmp_path / "language" / "recipe.yaml")
    for arguments, code, message in WRONG_PROBE:
        check_refusal(capsys, ["probe", *(paths.get(argument, argument) for argument in arguments)], code, message)
