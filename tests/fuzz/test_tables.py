"""Made-up tables, texts and token files: each is read as it is meant or refused in one line."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import strategies as st

from codingrate.data import Blocks, TextDocuments, load_images, load_sentences, load_text, load_tokenizer, pack_text
from codingrate.data.tokens import read_tokens

from .outcomes import SEEDS, counts, fuzz, mutated, outcome, unchanged
from .test_damaged_files import read_rows

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # pandas after a parse error
CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2**70), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["bytes", "path", "a"]), st.text(max_size=3), max_size=2),
)  # fmt: skip
NAMES = st.sampled_from(["text", "label", "image", "sentence1", "sentence2", "", "label ", "ü", "\ud800"])


@counts(15, 150)
def test_lines_of_any_kind(count, tmp_path):
    @fuzz(count, rows=st.lists(st.dictionaries(NAMES, CELLS, max_size=3), max_size=6))
    def check(rows):
        (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with unchanged(tmp_path):
            for read in (load_sentences, load_text, load_images):
                outcome(read, str(tmp_path / "train.jsonl"))
            outcome(read_rows, tmp_path)


@counts(15, 150)
@pytest.mark.parametrize("separate", ["document", "line", "paragraph"])
def test_damaged_text_files(separate, count, tmp_path):
    path = tmp_path / "a.txt"
    whole = "\ufeffEin Anfang.\r\n\r\nZwei Zeilen\nhier, 漢字 und 🦊.\n\n\nEnde".encode() * 3

    @fuzz(count, seed=SEEDS)
    def check(seed):
        content, valid = mutated(whole, seed), False
        path.write_bytes(content)
        with unchanged(tmp_path):
            result = outcome(lambda: load_text(str(path), separate=separate, validation_share=1).fingerprint)
        with suppress(UnicodeDecodeError):
            valid = bool(content.decode().strip("\ufeff \r\n\t\x0b\x0c")) and b"\0" not in content
        assert result == ("ok" if valid else "refused")


@counts(15, 150)
def test_texts_of_any_kind(count, tmp_path):
    tokenizer, folder = load_tokenizer("bytes"), tmp_path / "tokens"
    letters = st.characters(codec=None, exclude_categories=()) | st.sampled_from("\ud800\udfff\0\n ")

    @fuzz(count, texts=st.lists(st.text(letters, max_size=30) | CELLS, max_size=4))
    def check(texts):
        result = outcome(lambda: pack_text(TextDocuments(texts), tokenizer, folder=folder))
        valid = all(isinstance(text, str) and not any("\ud800" <= one <= "\udfff" for one in text) for text in texts)
        assert result == ("ok" if valid and any(texts) else "refused")
        if result == "ok":
            ids = pack_text(TextDocuments(texts), tokenizer, folder=folder).array()
            assert bytes(ids[ids < 256].astype(np.uint8)).decode() == "".join(texts)


@counts(15, 150)
def test_damaged_token_files(count, tmp_path):
    documents, tokenizer = TextDocuments(["some text"] * 9), load_tokenizer("bytes")
    tokens = pack_text(documents, tokenizer, folder=tmp_path)
    wanted = tokens.array().tobytes()
    files = {path: path.read_bytes() for path in (tokens.path, tokens.path.with_suffix(".json"))}

    @fuzz(count, seed=SEEDS, target=st.sampled_from([*files]))
    def check(seed, target):
        damaged = mutated(files[target], seed)
        target.write_bytes(damaged)
        assert (read_tokens(tokens.path) is None) is (damaged != files[target])
        again = pack_text(documents, tokenizer, folder=tmp_path)
        assert (again, again.array().tobytes(), len(Blocks(again, 5))) == (tokens, wanted, len(tokens) // 5)
