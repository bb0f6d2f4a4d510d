"""Damaged and made-up tables, texts and token files: each is read as it is meant or refused in one line."""

import json
import shutil

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codingrate.data import (
    Blocks,
    TextDocuments,
    load_images,
    load_sentences,
    load_text,
    load_tokenizer,
    pack_text,
    read_tokens,
)

from .outcomes import cases, mutated, outcome, unchanged

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # pandas after a parse error
COUNTS = [pytest.param(5, id="few"), pytest.param(60, id="many", marks=pytest.mark.slow)]
MORE = [pytest.param(15, id="few"), pytest.param(150, id="many", marks=pytest.mark.slow)]
ROWS = {
    "text": ["a film, seen twice", 'so "good"', "nö\ttab", "bad end", "x" * 70, "plain", "no", "yes\nbreak"],
    "label": ["pos", "neg"] * 4,
}


def write(path, rows=ROWS):
    if path.suffix == ".tsv":  # has no quotes
        rows = {**rows, "text": [text.translate(str.maketrans('"\t\n', "   ")) for text in rows["text"]]}
    table = datasets.Dataset.from_dict(rows)
    if path.suffix == ".parquet":
        table.to_parquet(str(path))
    elif path.suffix == ".jsonl":
        table.to_json(str(path))
    elif path.suffix == ".json":
        path.write_text(json.dumps([dict(row) for row in table]))
    elif path.suffix == ".arrow":
        table.save_to_disk(str(path.parent / "saved"))
        shutil.copy(next((path.parent / "saved").glob("*.arrow")), path)
        shutil.rmtree(path.parent / "saved")
    else:
        table.to_csv(str(path), sep="\t" if path.suffix == ".tsv" else ",", index=False)


def read_everything(path):
    """Open a table in every way, and read what it holds."""
    tokenizer = load_tokenizer("bytes")
    data = load_sentences(str(path), validation_share=1)
    assert all(0 <= label < len(data.classes) for label in data.validation["validation"]["label"])
    for part in (load_text(str(path), validation_share=1), load_text(str(path), validation_share=1, streaming=True)):
        text = "".join(part.validation)
        assert len(text.encode()) >= len(tokenizer(text)["input_ids"]) - 1


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow"])
def test_damaged_tables(suffix, count, tmp_path):
    path = tmp_path / f"train{suffix}"
    write(path)
    whole = path.read_bytes()
    assert outcome(read_everything, path) == "ok"

    seen = set()

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        path.write_bytes(mutated(whole, seed))
        with unchanged(tmp_path):
            for read in (load_sentences, load_text):
                assert outcome(read, str(path)) in ("ok", "refused")
            seen.add(outcome(read_everything, path))

    check()
    assert seen == {"ok", "refused"} or count < 20


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_saved_datasets(count, tmp_path):
    datasets.Dataset.from_dict(ROWS).save_to_disk(str(tmp_path / "saved"))
    files = {path: path.read_bytes() for path in sorted((tmp_path / "saved").iterdir())}

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1), target=st.sampled_from([*files]))
    def check(seed, target):
        for path, content in files.items():
            path.write_bytes(mutated(content, seed) if path == target else content)
        with unchanged(tmp_path):
            assert outcome(lambda: read_everything(tmp_path / "saved")) in ("ok", "refused")

    check()


CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2**70), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["bytes", "path", "a"]), st.text(max_size=3), max_size=2),
)  # fmt: skip
NAMES = st.sampled_from(["text", "label", "image", "sentence1", "sentence2", "", "label ", "ü", "\ud800"])


@pytest.mark.parametrize("count", MORE)
def test_lines_of_any_kind(count, tmp_path):
    path = tmp_path / "train.jsonl"

    @cases(count)
    @given(rows=st.lists(st.dictionaries(NAMES, CELLS, max_size=3), max_size=6))
    def check(rows):
        path.write_text("\n".join(map(json.dumps, rows)))
        with unchanged(tmp_path):
            for read in (load_sentences, load_text, load_images):
                assert outcome(read, str(path)) in ("ok", "refused")
            assert outcome(read_everything, path) in ("ok", "refused")

    check()


@pytest.mark.parametrize("count", MORE)
@pytest.mark.parametrize("separate", ["document", "line", "paragraph"])
def test_damaged_text_files(separate, count, tmp_path):
    path = tmp_path / "a.txt"
    whole = "\ufeffEin Anfang.\r\n\r\nZwei Zeilen\nhier, 漢字 und 🦊.\n\n\nEnde".encode() * 3

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        content = mutated(whole, seed)
        path.write_bytes(content)
        with unchanged(tmp_path):
            result = outcome(lambda: load_text(str(path), separate=separate, validation_share=1).fingerprint)
        try:
            valid = bool(content.decode().strip("\ufeff \r\n\t\x0b\x0c")) and b"\0" not in content
        except UnicodeDecodeError:
            valid = False
        assert result == ("ok" if valid else "refused")

    check()


@pytest.mark.parametrize("count", MORE)
def test_texts_of_any_kind(count, tmp_path):
    tokenizer = load_tokenizer("bytes")
    letters = st.characters(codec=None, exclude_categories=()) | st.sampled_from("\ud800\udfff\0\n ")
    folder = tmp_path / "tokens"

    @cases(count)
    @given(texts=st.lists(st.text(letters, max_size=30) | CELLS, max_size=4))
    def check(texts):
        result = outcome(lambda: pack_text(TextDocuments(texts), tokenizer, folder=folder))
        valid = all(isinstance(text, str) and not any("\ud800" <= one <= "\udfff" for one in text) for text in texts)
        assert result == ("ok" if valid and any(texts) else "refused")
        if result == "ok":
            ids = pack_text(TextDocuments(texts), tokenizer, folder=folder).array()
            assert bytes(ids[ids < 256].astype(np.uint8)).decode() == "".join(texts)

    check()


@pytest.mark.parametrize("count", MORE)
def test_damaged_token_files(count, tmp_path):
    documents, tokenizer = TextDocuments(["some text"] * 9), load_tokenizer("bytes")
    tokens = pack_text(documents, tokenizer, folder=tmp_path)
    wanted = tokens.array().tobytes()
    files = {path: path.read_bytes() for path in (tokens.path, tokens.path.with_suffix(".json"))}

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1), target=st.sampled_from([*files]))
    def check(seed, target):
        damaged = mutated(files[target], seed)
        target.write_bytes(damaged)
        assert (read_tokens(tokens.path) is None) is (damaged != files[target])
        again = pack_text(documents, tokenizer, folder=tmp_path)
        assert again == tokens
        assert again.array().tobytes() == wanted
        assert len(Blocks(again, 5)) == len(tokens) // 5

    check()


@pytest.mark.parametrize("count", MORE)
def test_damaged_tokenizers(count, tmp_path):
    load_tokenizer("bpe", ["some text and some more text"] * 3, kind="masked", vocab_size=280).save_pretrained(tmp_path)
    files = {path: path.read_bytes() for path in sorted(tmp_path.iterdir())}

    @cases(count)
    @given(seed=st.integers(0, 2**32 - 1), target=st.sampled_from([*files]))
    def check(seed, target):
        for path, content in files.items():
            path.write_bytes(mutated(content, seed) if path == target else content)
        with unchanged(tmp_path):
            assert outcome(lambda: load_tokenizer(str(tmp_path))("some text")) in ("ok", "refused")

    check()
