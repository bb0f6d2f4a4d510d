"""Labelled sentences and pairs: GLUE's tasks, files of the same kind, what can be wrong with labels, and batches."""

import datasets
import pytest
import torch
from torch.utils.data import DataLoader

from codingrate.data import GLUE, load_sentences, load_tokenizer
from codingrate.data.sentences import SentenceDataset, sentence_collator
from codingrate.errors import CrateError

from .test_text import write_table

PAIRS = {"sentence1": ["a b", "c", "d"], "sentence2": ["e", "f g", "h"]}


def refused(*args, **kwargs):
    with pytest.raises(CrateError) as caught:
        load_sentences(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def labels(rows, column="label"):
    return list(rows[column])


def test_table_of_tasks():
    """Columns and metrics as in the paper; MNLI gives two numbers to the average of nine."""
    assert list(GLUE) == ["sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "cola"]
    assert sum(len(task.validation) for task in GLUE.values() if task.in_average) == 9
    assert {name: task.metrics[0] for name, task in GLUE.items() if task.metrics[0] != "accuracy"} == {
        "mrpc": "f1", "stsb": "spearman", "qqp": "f1", "cola": "matthews",
    }  # fmt: skip
    assert [name for name, task in GLUE.items() if task.classes is None] == ["stsb"]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".tsv"])
def test_task_from_a_folder(tmp_path, suffix):
    write_table(tmp_path / f"train{suffix}", {**PAIRS, "idx": [0, 1, 2], "label": [0, 1, 1]})
    write_table(tmp_path / f"validation{suffix}", {**PAIRS, "idx": [0, 1, 2], "label": [1, 1, 0]})
    write_table(tmp_path / f"test{suffix}", {**PAIRS, "idx": [0, 1, 2], "label": [-1, -1, -1]})
    data = load_sentences("mrpc", path=tmp_path)
    assert (data.columns, data.classes) == (("sentence1", "sentence2"), ("not_equivalent", "equivalent"))
    assert data.held_out == ["validation"]
    assert (labels(data.train), labels(data.validation)) == ([0, 1, 1], [1, 1, 0])
    assert data.train.column_names == ["sentence1", "sentence2", "label"]


def test_mnli_has_two_development_sets(tmp_path):
    columns = {"premise": ["a", "b"], "hypothesis": ["c", "d"]}
    for name, values in (("train", [0, 2]), ("validation_matched", [1, 1]), ("validation_mismatched", [2, 0])):
        write_table(tmp_path / f"{name}.parquet", {**columns, "label": values})
    write_table(tmp_path / "test_matched.parquet", {**columns, "label": [-1, -1]})
    data = load_sentences("mnli", path=tmp_path)
    found = {split: labels(rows) for split, rows in data.splits.items() if split != "train"}
    assert found == {"validation_matched": [1, 1], "validation_mismatched": [2, 0]}
    assert tuple(found) == GLUE["mnli"].validation


def test_named_labels_go_by_their_names(tmp_path):
    write_table(tmp_path / "train.jsonl", {"sentence": ["a", "b"], "label": ["positive", "negative"]})
    feature = datasets.ClassLabel(names=["positive", "negative"])
    rows = datasets.Dataset.from_dict({"sentence": ["a", "b"], "label": [0, 1]}).cast_column("label", feature)
    write_table(tmp_path / "dev.jsonl", {"sentence": ["c"], "label": ["negative"]})
    data = load_sentences("sst2", path=tmp_path)
    assert (labels(data.train), labels(data.validation)) == ([1, 0], [0])
    rows.to_parquet(str(tmp_path / "turned.parquet"))
    data = load_sentences("sst2", path=tmp_path / "turned.parquet", validation_share=1)
    assert (data.classes, labels(data.validation)) == (("negative", "positive"), [1, 0])
    assert len(data.train) == 0


def test_regression(tmp_path):
    write_table(tmp_path / "train.csv", {**PAIRS, "label": [0, 5, 2]})
    write_table(tmp_path / "dev.csv", {**PAIRS, "label": ["1.5", "3", "4.75"]})
    data = load_sentences("stsb", path=tmp_path)
    assert data.classes is None
    assert labels(data.train) == [0.0, 5.0, 2.0]
    assert labels(data.validation) == [1.5, 3.0, 4.75]
    assert all(isinstance(label, float) for label in labels(data.train))


def test_any_file_with_text_and_labels(tmp_path):
    texts = [f"sentence {number}" for number in range(40)]
    file = write_table(tmp_path / "a.csv", {"review": texts, "stars": [3, 9] * 20, "label": ["good", "bad"] * 20})
    data = load_sentences(str(file))
    assert (data.columns, data.label_column, data.classes) == (("review",), "label", ("bad", "good"))
    assert (len(data.train), sorted(labels(data.validation))) == (36, [0, 0, 1, 1])
    again = load_sentences(str(file), split_seed=1)
    assert list(again.validation["review"]) != list(data.validation["review"])
    stars = load_sentences(str(file), label_column="stars")
    assert (stars.classes, set(labels(stars.train, "stars"))) == (("3", "9"), {0, 1})
    numbers = load_sentences(str(file), label_column="stars", regression=True)
    assert (numbers.classes, set(labels(numbers.train, "stars"))) == (None, {3.0, 9.0})
    assert len(numbers.validation) == 4


def test_guessed_columns(tmp_path):
    file = write_table(
        tmp_path / "a.jsonl", {"text2": ["x"] * 4, "text1": ["y"] * 4, "id": ["i"] * 4, "score": [0.5] * 4}
    )
    data = load_sentences(str(file))
    assert (data.columns, data.label_column, data.classes) == (("text1", "text2"), "score", None)
    chosen = load_sentences(str(file), columns=["id", "text2"])
    assert chosen.columns == ("id", "text2")


def test_splits_of_other_sets(tmp_path):
    for split in ("train", "test"):
        write_table(tmp_path / "set" / f"{split}.jsonl", {"text": ["a", "b"], "label": [0, 1]})
    data = load_sentences(str(tmp_path / "set"))
    assert data.held_out == ["test"]
    rows = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": ["x", "y", "x"]})
    datasets.DatasetDict(train=rows, validation=rows).save_to_disk(str(tmp_path / "saved"))
    assert load_sentences(str(tmp_path / "saved")).classes == ("x", "y")


def test_tasks_are_asked_of_the_hub(monkeypatch):
    asked = []

    def hub(*args, streaming, revision):
        assert revision is None
        asked.append((*args, streaming))
        rows = datasets.Dataset.from_dict({**PAIRS, "label": [0, 1, 1]})
        return datasets.DatasetDict(train=rows, validation=rows, test=rows)

    monkeypatch.setattr(datasets, "load_dataset", hub)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)
    assert len(load_sentences("rte").validation) == 3
    assert asked == [("nyu-mll/glue", "rte", False)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1.0", "high", "2"], "label 'high', which is not a number, in row 1 of column 'label'"),
        ([1.0, None, 2.0], "no label in row 1 of column 'label'"),
        ([1.0, float("nan"), 2.0], "label nan, which is not a number, in row 1"),
        ([1.0, 2.0, float("inf")], "label inf, which is not a number, in row 2"),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_numbers_that_are_none(tmp_path, values, message, split):
    for name in ("train", "validation"):
        write_table(tmp_path / f"{name}.parquet", {**PAIRS, "label": values if name == split else [1.0, 2.0, 3.0]})
    found = refused("stsb", path=tmp_path)
    assert message in found
    assert f"the {split} split of stsb" in found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, -1], "has label -1 in column 'label', which means unlabeled (as in GLUE's test files)"),
        ([0, 1, 2], "has label 2 in column 'label', which is outside its 2 classes"),
        ([0, 1, None], "has rows without a label in column 'label'"),
        ([0.0, 1.0, 0.5], "of type float; use integers or strings"),
        (["equivalent", "same", "equivalent"], "has label 'same' in column 'label'"),
    ],
)
def test_classes_that_are_none(tmp_path, values, message):
    write_table(tmp_path / "train.parquet", {**PAIRS, "label": [0, 1, 1]})
    write_table(tmp_path / "validation.parquet", {**PAIRS, "label": values})
    found = refused("mrpc", path=tmp_path)
    assert message in found
    assert "the validation split of mrpc" in found


def test_missing_columns_and_texts(tmp_path):
    file = str(write_table(tmp_path / "a.jsonl", {"left": ["a"], "right": ["b"], "label": [1]}))
    assert "have the text; set text.columns to one or two of: left, right" in refused(file)
    assert "has no column 'lft'; set text.columns to one of: left, right" in refused(file, columns=["lft"])
    assert "does not hold text; set text.columns to one of: left, right" in refused(file, columns=["label"])
    assert "text.columns takes one or two names (got 3: left, right, label)" in refused(
        file, columns=["left", "right", "label"]
    )
    assert "one class only ('1')" in refused(file, columns=["left"])
    unlabelled = str(write_table(tmp_path / "b.jsonl", {"text": ["a"], "kind": [1]}))
    assert "no label column; set data.label_column to one of: kind" in refused(unlabelled)
    assert "no label column 'lab'" in refused(unlabelled, label_column="lab")
    assert "no column 'sentence1'" in refused("mrpc", path=unlabelled)
    write_table(tmp_path / "set" / "train.jsonl", {"text": ["a", "b"], "label": [0, 1]})
    write_table(tmp_path / "set" / "dev.jsonl", {"text": ["a", None], "label": [0, 1]})
    assert "the validation split" in (message := refused(str(tmp_path / "set")))
    assert "has no text in row 1 of column 'text'" in message
    write_table(tmp_path / "set" / "dev.jsonl", {"words": ["a"], "label": [0]})
    assert "has no column 'text'; set text.columns to one that every split has, of: words" in refused(
        str(tmp_path / "set")
    )
    numbers = str(write_table(tmp_path / "c.jsonl", {"size": [1], "label": [0]}))
    assert "has no column with text; its columns are size, label" in refused(numbers)


def test_paths_and_options(tmp_path):
    assert refused("sst-2") == "unknown dataset 'sst-2'; did you mean 'sst2'?"
    assert "use the path of a local copy" in refused("sst2")
    assert "no such file or folder" in refused("sst2", path=tmp_path / "missing")
    assert "use the path itself" in refused("some/thing", path=tmp_path)
    assert "`regression` cannot be True for sst2" in refused("sst2", regression=True)
    assert "validation_share" in refused("sst2", validation_share=0)
    (tmp_path / "a.txt").write_text("text")
    assert "cannot read" in refused(str(tmp_path / "a.txt"))
    assert "no sentences below" in refused("sst2", path=tmp_path)
    for name in ("train", "more"):
        write_table(tmp_path / "set" / f"{name}.jsonl", {"sentence": ["a"], "label": [0]})
    assert "cannot tell the split of" in refused("sst2", path=tmp_path / "set")
    write_table(tmp_path / "held" / "dev.jsonl", {"sentence": ["a"], "label": [0]})
    write_table(tmp_path / "held" / "test.jsonl", {"sentence": ["a"], "label": [0]})
    assert "has no training split, only validation, test" in refused("sst2", path=tmp_path / "held")
    few = write_table(tmp_path / "few.jsonl", {"sentence": ["a", "b"], "label": [0, 1]})
    assert "too few rows to hold one out" in refused(str(few))


@pytest.fixture
def rows():
    return datasets.Dataset.from_dict(
        {"a": ["one", "a longer one", "x"], "b": ["p", "q" * 30, "r"], "label": [1, 0, 1]}
    )


def test_rows_are_tokenized_with_special_tokens(rows):
    tokenizer = load_tokenizer("bytes", kind="masked")
    single = SentenceDataset(rows, ["a"], tokenizer)
    assert single[0] == {"input_ids": tokenizer("one")["input_ids"], "label": 1}
    pair = SentenceDataset(rows, ["a", "b"], tokenizer)
    assert pair[-1]["input_ids"] == tokenizer("x", "r")["input_ids"] == [0, 4 + ord("x"), 2, 2, 4 + ord("r"), 2]
    assert len(pair) == 3


def test_long_pairs_lose_tokens_where_they_have_most(rows):
    tokenizer = load_tokenizer("bytes", kind="masked")
    found = SentenceDataset(rows, ["a", "b"], tokenizer, max_length=28)[1]["input_ids"]
    assert tokenizer.decode(found) == f"<s>a longer one</s></s>{'q' * 12}</s>"
    assert len(SentenceDataset(rows, ["a"], tokenizer, max_length=5)[1]["input_ids"]) == 5
    with pytest.raises(CrateError, match="is 5; special tokens and one token of each sentence need 6"):
        SentenceDataset(rows, ["a", "b"], tokenizer, max_length=5)


def test_batches_are_padded_to_the_longest(rows):
    tokenizer = load_tokenizer("bytes", kind="masked")
    collate = sentence_collator(tokenizer)
    loader = DataLoader(SentenceDataset(rows, ["a"], tokenizer), batch_size=3, collate_fn=collate)
    (batch,) = loader
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 14)
    assert batch["attention_mask"].sum(1).tolist() == [5, 14, 3]
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 1).all()
    assert batch["input_ids"][2, :3].tolist() == [0, 4 + ord("x"), 2]
    assert (batch["labels"].dtype, batch["labels"].tolist()) == (torch.long, [1, 0, 1])
    numbers = rows.cast_column("label", datasets.Value("float64"))
    (batch,) = DataLoader(SentenceDataset(numbers, ["a"], tokenizer), batch_size=3, collate_fn=collate)
    assert (batch["labels"].dtype, batch["labels"].tolist()) == (torch.float, [1.0, 0.0, 1.0])


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_padding_leaves_the_tokenizer_alone_and_needs_no_padding_token(rows, kind):
    tokenizer = load_tokenizer("bytes", kind=kind)
    tokenizer.padding_side = "left"
    before = tokenizer.pad_token_id
    batch = sentence_collator(tokenizer)(SentenceDataset(rows, ["a"], tokenizer).__getitems__([0, 1]))
    assert (batch["input_ids"][0, -1], batch["attention_mask"][0, -1]) == (before or 0, 0)
    assert (tokenizer.padding_side, tokenizer.pad_token_id) == ("left", before)
