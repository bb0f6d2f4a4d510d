"""Every way to name a text, what is a document in it, and which documents are held out."""

import gc
import itertools
import json
import math

import datasets
import pytest

from codingrate.data import load_text, open_splits, text_names
from codingrate.data.documents import PIECE, held_indices
from codingrate.errors import CrateError

PROSE = "The rate of a set of tokens is small when they lie in few directions. "


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def refused(*args, **kwargs):
    def read():
        data = load_text(*args, **kwargs)
        return list(data.train), list(data.validation)

    with pytest.raises(CrateError) as caught:
        read()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_built_in_text_is_there_without_a_network():
    data = load_text("pydoc")
    train, validation = list(data.train), list(data.validation)
    total, held = (sum(map(len, texts)) for texts in (train + validation, validation))
    assert total > 300_000
    assert len(validation) >= 5
    assert 0.05 < held / total <= 0.1
    assert any('The "if" statement is used for conditional execution' in text for text in train)
    assert list(load_text("pydoc", split_seed=3, validation_share=0.3).validation) == validation
    whole = load_text("pydoc", validation_share=1)
    assert (list(whole.train), sorted(whole.validation)) == ([], sorted(train + validation))


def test_built_in_split_shares_no_paragraph():
    def paragraphs(texts):
        found = {" ".join(part.split()) for text in texts for part in text.split("\n\n")}
        return {part for part in found if len(part) > 80}

    data = load_text("pydoc")
    assert paragraphs(data.validation)
    assert not paragraphs(data.train) & paragraphs(data.validation)


def test_built_in_text_may_be_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    assert "comes without pydoc_data" in refused("pydoc")


def test_a_file_is_one_document_and_its_end_is_held_out(tmp_path):
    text = "".join(f"line {number} é\n" for number in range(1000))
    data = load_text(str(write(tmp_path / "book.txt", text)))
    (train,), (validation,) = data.train, data.validation
    assert train + validation == text
    assert train.endswith("\n")
    assert 0.05 <= len(validation) / len(text) < 0.055
    assert data.column == ""


@pytest.mark.parametrize("text", ["x" * 999 + "y", "é" * 1000, "漢字" * 500])
def test_a_tail_without_lines_starts_between_characters(tmp_path, text):
    data = load_text(str(write(tmp_path / "a.txt", text)), validation_share=0.33)
    assert "".join(data.train) + "".join(data.validation) == text


def test_lines_and_paragraphs(tmp_path):
    file = write(tmp_path / "a.md", "\ufeffone\r\ntwo\r\n\r\n \t\r\nthree\r\n\r\nfour")
    found = {
        separate: list(load_text(str(file), separate=separate, validation_share=1).validation)
        for separate in ("document", "line", "paragraph")
    }
    assert found == {
        "document": ["one\ntwo\n\n \t\nthree\n\nfour"],
        "line": ["one", "two", "", " \t", "three", "", "four"],
        "paragraph": ["one\ntwo", "three", "four"],
    }


@pytest.mark.parametrize("separate", ["document", "line", "paragraph"])
def test_long_documents_come_in_pieces_that_join_again(tmp_path, separate):
    long = PROSE * 3000 + PROSE.strip()
    file = write(tmp_path / "a.txt", f"{long}\n\nshort\n\n{'z' * (3 * PIECE)}")
    documents = load_text(str(file), separate=separate, validation_share=1).validation
    pieces = list(documents.pieces())
    assert max(len(text) for text, _ in pieces) <= 2 * PIECE
    assert len(pieces) > 5
    assert "".join(text for text, _ in pieces).replace("\n", "") == file.read_text().replace("\n", "")
    assert sum(end for _, end in pieces) == {"document": 1, "line": 5, "paragraph": 3}[separate]
    whole = {"document": [file.read_text()], "line": file.read_text().split("\n")}
    assert list(documents) == whole.get(separate, [long, "short", "z" * (3 * PIECE)])


def test_held_out_documents_are_one_in_so_many_in_a_row(tmp_path):
    file = write(tmp_path / "a.txt", "".join(f"{number}\n" for number in range(400)))
    data = load_text(str(file), separate="line", validation_share=0.1)
    held = [int(text) for text in data.validation]
    assert [number // 10 for number in held] == list(range(40))
    assert len({number % 10 for number in held}) == 10
    assert sorted([*held, *map(int, data.train)]) == list(range(400))
    again = load_text(str(file), separate="line", validation_share=0.1)
    assert [int(text) for text in again.validation] == held
    other = load_text(str(file), separate="line", validation_share=0.1, split_seed=1)
    assert [int(text) for text in other.validation] != held


@pytest.mark.parametrize("share", [1.0, 0.7, 0.37, 0.01])
def test_held_share_is_kept(share):
    places = list(itertools.takewhile(lambda place: place < 10_000, held_indices(share, 5)))
    assert places == sorted(set(places))
    assert math.isclose(len(places), 10_000 * share, abs_tol=1)
    assert all(next(held_indices(1 / count, 5)) < count for count in range(1, 300))


def test_few_lines_still_give_one_for_validation(tmp_path):
    file = write(tmp_path / "a.txt", "one\ntwo\nthree\n")
    data = load_text(str(file), separate="line")
    assert (len(list(data.train)), len(list(data.validation))) == (2, 1)


def test_folders_of_documents(tmp_path):
    for number in range(40):
        write(tmp_path / "set" / f"part{number % 3}" / f"{number:02}-test.txt", f"document {number} " * 9)
    write(tmp_path / "set" / ".hidden.txt", "no")
    write(tmp_path / "set" / "README.md", "about")
    data = load_text(str(tmp_path / "set"))
    assert (len(list(data.train)), len(list(data.validation))) == (38, 2)
    few = tmp_path / "few"
    for number in range(3):
        write(few / f"{number}.txt", f"{number} words\n" * 100)
    data = load_text(str(few), validation_share=0.2)
    assert [len(text.split("\n")) for text in data.train] == [81, 81, 81]
    assert [text[0] for text in data.validation] == ["0", "1", "2"]


@pytest.mark.parametrize("names", ["train valid test", "wiki.train wiki.valid wiki.test", "train/a dev/b test/c"])
def test_names_of_files_tell_splits(tmp_path, names):
    train, validation, test = names.split()
    for name in names.split():
        write(tmp_path / "set" / f"{name}.txt", f"{name} text")
    data = load_text(str(tmp_path / "set"))
    assert (list(data.train), list(data.validation)) == ([f"{train} text"], [f"{validation} text"])
    assert list(data.test) == [f"{test} text"]
    (tmp_path / "set" / f"{validation}.txt").unlink()
    data = load_text(str(tmp_path / "set"))
    assert (list(data.validation), data.test) == ([f"{test} text"], None)


def write_table(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = datasets.Dataset.from_dict(columns)
    if path.suffix == ".parquet":
        rows.to_parquet(str(path))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows.to_list()))
    elif path.suffix == ".jsonl":
        rows.to_json(str(path))
    else:
        rows.to_csv(str(path), sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # datasets leaves a streamed CSV open
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("suffix", [".parquet", ".json", ".jsonl", ".csv", ".tsv"])
def test_tables(tmp_path, suffix, streaming):
    texts = [f"null and NA, {number}" for number in range(40)]
    file = write_table(tmp_path / f"rows{suffix}", {"id": list(range(40)), "title": ["t"] * 40, "text": texts})
    data = load_text(str(file), streaming=streaming)
    assert (data.column, data.streaming) == ("text", streaming)
    assert sorted([*data.train, *data.validation]) == sorted(texts)
    assert len(list(data.validation)) == 2
    titles = load_text(str(file), text_column="title", streaming=streaming, validation_share=1)
    assert list(titles.validation) == ["t"] * 40
    del data, titles
    gc.collect()  # here, where the warning is ignored, and not in a later test


def test_tables_with_splits_and_a_single_text_column(tmp_path):
    write_table(tmp_path / "set" / "train-00000-of-00001.jsonl", {"story": ["a", "b"], "year": [1, 2]})
    write_table(tmp_path / "set" / "validation.jsonl", {"story": ["c", None], "year": [3, 4]})
    write(tmp_path / "set" / "README.md", "about")
    data = load_text(str(tmp_path / "set"))
    assert (data.column, list(data.train), list(data.validation)) == ("story", ["a", "b"], ["c"])


def test_saved_datasets(tmp_path):
    rows = datasets.Dataset.from_dict({"content": ["a", "b"]})
    datasets.DatasetDict(train=rows, validation=rows.select([0])).save_to_disk(str(tmp_path / "saved"))
    data = load_text(str(tmp_path / "saved"))
    assert (list(data.train), list(data.validation), data.column) == (["a", "b"], ["a"], "content")
    assert data.train.key() == load_text(str(tmp_path / "saved")).train.key() is not None


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_names(monkeypatch, tmp_path, streaming):
    asked = []

    def hub(*args, streaming, revision):
        assert revision is None
        asked.append(args)
        rows = datasets.Dataset.from_dict({"text": ["a", "", "b"]})
        return {"train": rows.to_iterable_dataset() if streaming else rows, "validation": rows, "test": rows}

    monkeypatch.setattr(datasets, "load_dataset", hub)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)
    data = load_text("wikitext", streaming=streaming)
    assert list(data.train) == ["a", "", "b"]
    assert list(load_text("someone/words", streaming=streaming).test) == ["a", "", "b"]
    assert asked == [("Salesforce/wikitext", "wikitext-2-raw-v1"), ("someone/words",)]
    assert (data.train.key() is None) is streaming  # the hub is out of reach: a stream cannot be known again
    local = load_text("wikitext", path=write(tmp_path / "wiki" / "train.txt", "x\ny\n"), separate="line")
    assert sorted([*local.train, *local.validation]) == ["x", "y"]
    assert text_names() == ["lambada", "openwebtext", "ptb", "pydoc", "wikitext", "wikitext-103", "wikitext-2"]


def test_keys_change_with_the_text(tmp_path):
    file = write(tmp_path / "a.txt", "one\ntwo\n" * 50)
    keys = {load_text(str(file), separate=separate).train.key() for separate in ("document", "line")}
    lines = load_text(str(file), separate="line")
    keys |= {lines.validation.key(), load_text(str(file), separate="line", split_seed=1).train.key()}
    assert len(keys) == 4
    assert load_text(str(file), separate="line").train.key() == lines.train.key()
    write(file, "one\nsix\n" * 50)
    assert load_text(str(file)).train.key() not in keys
    table = write_table(tmp_path / "a.jsonl", {"text": ["a", "b"]})
    before = load_text(str(table)).train.key()
    write_table(table, {"text": ["a", "c"]})
    assert load_text(str(table)).train.key() != before


def test_binary_and_foreign_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"text\0more")
    assert "zero bytes" in refused(str(tmp_path / "a.txt"))
    (tmp_path / "b.txt").write_bytes("déjà vu ".encode("latin1") * 20_000)
    assert "is not UTF-8 near byte 1; convert it" in refused(str(tmp_path / "b.txt"))
    (tmp_path / "c.txt").write_bytes(b"a" * 70_000 + "é".encode()[:1])
    assert "is not UTF-8 near byte 7000" in refused(str(tmp_path / "c.txt"))
    (tmp_path / "d.parquet").write_bytes(b"nothing of the kind")
    assert "cannot read" in refused(str(tmp_path / "d.parquet"))


def test_empty_and_short_texts(tmp_path):
    assert "has no text" in refused(str(write(tmp_path / "a.txt", " \n\n")))
    assert "too short to hold a part out" in refused(str(write(tmp_path / "b.txt", "x")))
    write(tmp_path / "set" / "train.txt", "text")
    write(tmp_path / "set" / "test.txt", "")
    assert "has no text in its test split" in refused(str(tmp_path / "set"))
    assert "only one document" in refused(str(write_table(tmp_path / "c.jsonl", {"text": ["a"]})))
    (tmp_path / "void").mkdir()
    assert "no text below" in refused(str(tmp_path / "void"))


def test_columns(tmp_path):
    file = str(write_table(tmp_path / "a.jsonl", {"left": ["a"], "right": ["b"], "size": [1]}))
    assert "several columns with text; set text.text_column to one of: left, right" in refused(file)
    assert "has no column 'txt'; set text.text_column to one of: left, right" in refused(file, text_column="txt")
    assert "column 'size'" in (message := refused(file, text_column="size"))
    assert message.endswith("does not hold text; set text.text_column to one of: left, right")
    numbers = str(write_table(tmp_path / "b.jsonl", {"size": [1]}))
    assert "no column with text" in refused(numbers)
    plain = str(write(tmp_path / "c.txt", "text"))
    assert "text.text_column is for tables" in refused(plain, text_column="text")


def test_names_and_options(tmp_path):
    assert refused("pydocs") == "unknown dataset 'pydocs'; did you mean 'pydoc'?"
    assert "no such file or folder" in refused("texts/missing.txt")
    assert "no such file or folder" in refused("wikitext", path=tmp_path / "missing")
    assert "use the path of a local copy" in refused("wikitext-103")
    assert "cannot be loaded from the hub" in refused("nobody/nothing")
    assert "use the path itself" in refused("pydoc", path=tmp_path)
    assert "did you mean 'paragraph'?" in refused("pydoc", separate="paragraphs")
    assert "validation_share" in refused("pydoc", validation_share=0.0)
    write(tmp_path / "set" / "train.txt", "text")
    write(tmp_path / "set" / "extra.txt", "text")
    assert "cannot tell the split of" in refused(str(tmp_path / "set"))
    write_table(tmp_path / "both" / "train.jsonl", {"text": ["a"]})
    write(tmp_path / "both" / "more.txt", "text")
    assert "has a table, train.jsonl, and plain text, more.txt" in refused(str(tmp_path / "both"))


@pytest.mark.parametrize(
    ("kind", "names", "splits"),
    [
        ("images", ["train-0.parquet", "train-1.parquet", "t10k.parquet"], {"train": 2, "test": 1}),
        ("text", ["a.jsonl", "b.jsonl"], {"train": 2}),
        ("text", ["wiki.train.tokens", "wiki.valid.tokens"], {"train": 1, "validation": 1}),
        ("text", ["test-driven.md", "training.md", "other.md"], {"train": 3}),
        ("sentences", ["train.tsv", "dev_matched.tsv", "dev_mismatched.tsv", "test_matched.tsv"],
         {"train": 1, "validation_matched": 1, "validation_mismatched": 1}),
    ],
)  # fmt: skip
def test_every_kind_of_data_is_split_by_file_names(tmp_path, kind, names, splits):
    for name in names:
        if name.endswith(("md", "tokens")):
            write(tmp_path / name, "text")
        else:
            write_table(tmp_path / name, {"text": ["a"]})
    opened = open_splits(str(tmp_path), kind=kind)
    assert {split: len(part) for split, part in opened.items()} == splits
    assert all(opened.version(split) for split in opened)
