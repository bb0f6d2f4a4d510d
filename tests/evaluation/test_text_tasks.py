"""`task.evaluate` of text: masked tokens and labeled sentences against plain forward passes, and refusals."""

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.metrics import confusion_matrix

from codingrate.data import Masking, load_tokenizer, mask_own_tokens
from codingrate.evaluation import unigram_cross_entropy
from codingrate.recipes import build_recipe
from codingrate.tasks import TaskPaths, open_task
from tests.models import toys
from tests.refusals import refused

BLOCK = 13
TEXT = {"train": "some words to count. " * 5, "validation": "masked words, " * 9, "test": "another text. " * 7}


def text_task(folder, task="masked-lm", texts=TEXT, **section):
    (folder / "text").mkdir()
    for split, text in texts.items():
        (folder / "text" / f"{split}.txt").write_text(text)
    recipe = {"task": task, "model": {"name": "crate-bert-base"}, "data": {"name": str(folder / "text")}}
    recipe["text"] = {"block": BLOCK, **section}
    return open_task(build_recipe(recipe), TaskPaths(tokens=folder / "tokens"))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_masked_tokens_are_measured_as_in_one_forward_pass(tmp_path, split):
    task, tokenizer = text_task(tmp_path), load_tokenizer("bytes", kind="masked")
    model, heard = toys.build("masked-lm", vocab_size=261).double().train(), []
    reports = [task.evaluate(model, split=split, batch_size=size, progress=heard.append) for size in (1, 4, 99)]
    assert model.training, "the model is given back as it was"
    ids = torch.tensor([tokenizer.bos_token_id, *TEXT[split].encode(), tokenizer.eos_token_id])
    ids[1:-1] += tokenizer("a", add_special_tokens=False)["input_ids"][0] - ord("a")
    ids = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)
    masked, labels = mask_own_tokens(ids, Masking.of(tokenizer))
    with torch.no_grad():
        logits = model.eval()(input_ids=masked).logits
    loss = float(F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    counted = labels >= 0
    correct = float((logits.argmax(-1) == labels).sum() / counted.sum())
    for report in reports:
        expected = {"cross_entropy": loss, "perplexity": np.exp(loss), "accuracy": correct}
        assert report.metrics == pytest.approx(expected, rel=1e-9)
        assert (report.tokens, report.block) == (int(counted.sum()), BLOCK)
    assert sum(heard) == 3 * len(ids)


def test_the_baseline_of_masked_tokens_is_the_unigram_model(tmp_path):
    task = text_task(tmp_path)
    ids = {split: task.tokens(split).array() for split in TEXT}
    masking = Masking.of(task.tokenizer)
    for split in ("validation", "test"):
        expected = unigram_cross_entropy(
            ids["train"], ids[split], vocab_size=masking.vocab_size, special_ids=masking.special_ids
        )
        assert task.baseline(split) == {"unigram": {"cross_entropy": expected}}


def test_masked_models_and_texts_that_do_not_fit_are_refused(tmp_path):
    load_tokenizer("bytes").save_pretrained(tmp_path / "tokenizer")
    for name in ("short", "causal"):
        (tmp_path / name).mkdir()
    model, small, other = toys.build("masked-lm", vocab_size=261), toys.build("masked-lm"), toys.build("causal-lm")
    task = text_task(tmp_path)
    short = text_task(tmp_path / "short", texts={**TEXT, "validation": "ten bytes."})
    causal = text_task(tmp_path / "causal", tokenizer=str(tmp_path / "tokenizer"))
    for words, one, given, options in (
        ("CrateForCausalLM", task, other, {}), ("tset", task, model, {"split": "tset"}), ("261 ids", task, small, {}),
        ("12 tokens", short, model, {}), ("mask_token", causal, model, {}),
    ):  # fmt: skip
        refused(words, one.evaluate, given, **options)


# labeled sentences


def sentence_task(folder, labels, columns=("sentence",), name="sentences"):
    (folder / name).mkdir()
    text = {column: [f"{column} {'ab' * number}" for number in range(len(labels))] for column in columns}
    for split in ("train", "validation"):
        datasets.Dataset.from_dict({**text, "label": labels}).to_parquet(folder / name / f"{split}.parquet")
    recipe = {"task": "sequence-classification", "model": {"name": "crate-bert-base"}, "text": {"max_length": 64}}
    return open_task(build_recipe({**recipe, "data": {"name": str(folder / name)}}))


def classifier(labels, **fields):
    return toys.build(
        "sequence-classification", **{"vocab_size": 261, "max_position_embeddings": 64, "num_labels": labels, **fields}
    )


def naive_logits(model, task):
    """Return the logits of single sentences, (n, outputs)."""
    model.eval()
    dataset = task.dataset("validation")
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row["input_ids"]])).logits for row in dataset])


@pytest.mark.parametrize("columns", [("sentence",), ("sentence1", "sentence2")])
def test_classes_are_measured_as_in_single_sentences(tmp_path, columns):
    labels = torch.tensor([2, 0, 1, 1, 2, 0, 1])
    model, task, heard = classifier(3).train(), sentence_task(tmp_path, labels.tolist(), columns), []
    report = task.evaluate(model, batch_size=3, progress=heard.append)
    assert (model.training, heard) == (True, [3, 3, 1])
    logits = naive_logits(model, task)
    accuracy = float((logits.argmax(-1) == labels).float().mean())
    metrics = {"loss": float(F.cross_entropy(logits, labels)), "accuracy": accuracy}
    assert report.metrics == pytest.approx(metrics, rel=1e-5)
    assert report.splits == {"validation": {**report.metrics, "rows": 7}}
    assert task.evaluate(model, split="train").splits["train"]["accuracy"] == report.metrics["accuracy"]
    confusion = confusion_matrix(labels, logits.argmax(-1), labels=range(3))
    assert np.array_equal(report.confusion["validation"], confusion)
    rows = report.per_class["validation"]
    assert [row["sentences"] for row in rows] == confusion.sum(1).tolist() == [2, 3, 2]
    assert [row["accuracy"] for row in rows] == pytest.approx(confusion.diagonal() / confusion.sum(1))
    both = task.evaluate(model, split="all")
    assert np.array_equal(both.confusion["all"], 2 * confusion)
    assert (both.splits["all"]["rows"], both.total, report.total) == (14, 14, 14)


def test_the_classes_of_sentences_are_matched_with_the_models_by_name(tmp_path):
    """Two of the model's three classes in the order of the alphabet, which is not the model's."""
    labels, names = ["yes", "no", "no", "yes", "no"], {0: "yes", 1: "maybe", 2: "no"}
    model, task = classifier(3, id2label=names), sentence_task(tmp_path, labels)
    report = task.evaluate(model)
    guesses = [names[int(index)] for index in naive_logits(model, task).argmax(-1)]
    assert task.data.sentences.classes == ("no", "yes")
    assert report.classes == ("yes", "maybe", "no")
    assert np.array_equal(report.confusion["validation"], confusion_matrix(labels, guesses, labels=report.classes))
    assert report.splits["validation"]["accuracy"] == pytest.approx(np.mean(np.array(guesses) == labels))
    other = sentence_task(tmp_path, ["ja" if label == "yes" else "no" for label in labels], name="other")
    refused("does not know: ja; the model's are yes, maybe, no; map them with `labels='ja=", other.evaluate, model)
    mapped = other.evaluate(model, class_map={"ja": "yes"})
    assert np.array_equal(mapped.confusion["validation"], report.confusion["validation"])


def test_numbers_are_measured_as_in_single_sentences(tmp_path):
    labels = np.array([0.5, 3.0, 2.0, 5.0, 1.5])
    model, task = classifier(1), sentence_task(tmp_path, labels.tolist())
    scores = task.evaluate(model, batch_size=2).splits["validation"]
    predicted = naive_logits(model, task)[:, 0].double().numpy()
    assert scores["loss"] == pytest.approx(float(((predicted - labels) ** 2).mean()), rel=1e-5)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(predicted, labels)[0], rel=1e-4)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(predicted, labels)[0])


def test_sentence_models_that_do_not_fit_are_refused(tmp_path):
    classes = sentence_task(tmp_path, [0, 2, 1], name="classes")
    numbers = sentence_task(tmp_path, [0.5, 1.0, 2.5], name="numbers")
    for words, task, model, options in (
        ("3 outputs", numbers, classifier(3), {}), ("1 outputs", classes, classifier(1), {}),
        ("0, 1, 2", classes, classifier(2), {}), ("CrateForMaskedLM", classes, toys.build("masked-lm"), {}),
        ("tset", classes, classifier(3), {"split": "tset"}), ("261 ids", classes, classifier(3, vocab_size=29), {}),
    ):  # fmt: skip
        refused(words, task.evaluate, model, **options)
