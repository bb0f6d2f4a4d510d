"""Token files: the ids are the tokenizer's, whatever the pieces; used again only when nothing changed; small memory."""

import json
import pickle
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from codingrate.data import Blocks, RandomBlocks, TextDocuments, load_text, load_tokenizer, pack_text
from codingrate.data import tokens as tokens_module
from codingrate.data.documents import PIECE
from codingrate.data.tokens import Encoder, read_tokens, token_cache
from codingrate.errors import CrateError

TEXTS = [
    "Whéreas the  rate,\n\n  don't 12,5 漢字🙂 <s><mask></s>\n<|endoftext|>\n",
    "",
    "x",
    "".join(f"Line {n}: it's  a — longer one\n" + "\n" * (n % 3) + " " * (n % 5) for n in range(5000)),
]
LETTERS = TextDocuments(["abcdefghij" * 10, "klm"])


def make(spec, kind="causal"):
    return load_tokenizer(spec, TEXTS, kind=kind, vocab_size=400)


def expected(tokenizer, texts, special_tokens):
    """Document by document, by the tokenizer itself."""
    ids = []
    for text in texts:
        ids += tokenizer(text, add_special_tokens=special_tokens == "bos_eos", split_special_tokens=True)["input_ids"]
        ids += [tokenizer.eos_token_id] * (special_tokens == "eos")
    return ids


@pytest.mark.parametrize("special_tokens", ["eos", "bos_eos", "none"])
@pytest.mark.parametrize("spec", ["bytes", "bpe"])
@pytest.mark.parametrize("batch", [2**20, 100])
def test_ids_are_those_of_the_tokenizer(tmp_path, monkeypatch, spec, special_tokens, batch):
    monkeypatch.setattr(tokens_module, "_BATCH", batch)
    assert len(TEXTS[3]) > 2 * PIECE
    tokenizer = make(spec, "masked")
    tokens = pack_text(TextDocuments(TEXTS), tokenizer, folder=tmp_path, special_tokens=special_tokens)
    assert tokens.array().tolist() == expected(tokenizer, TEXTS, special_tokens)
    assert (tokens.documents, tokens.bytes) == (4, sum(len(text.encode()) for text in TEXTS))
    assert (tokens.dtype, tokens.path.stat().st_size) == ("uint16", 2 * len(tokens))


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_byte_ids_are_looked_up(kind):
    """The fast way is taken, and gives what the tokenizer would."""
    tokenizer = make("bytes", kind)
    encoder = Encoder(tokenizer, "eos")
    assert encoder._table is not None
    pieces = [("".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x12000)])), False), ("\r\n a", True), ("", True)]
    fast, size = encoder(pieces)
    encoder._table = None
    slow, slow_size = encoder(pieces)
    assert size == slow_size
    assert (fast == slow).all()
    assert Encoder(make("bpe", kind), "eos")._table is None


def test_the_tokenizer_is_left_as_it_was(tmp_path):
    tokenizer = make("bpe", "masked")
    tokenizer("a b", truncation=True, max_length=5)
    state = tokenizer.backend_tokenizer.to_str()
    assert "max_length" in state
    tokens = pack_text(TextDocuments(TEXTS[:1]), tokenizer, folder=tmp_path, special_tokens="bos_eos")
    assert len(tokens) > 20
    assert tokenizer.backend_tokenizer.to_str() == state
    assert tokenizer("<mask>")["input_ids"] == [0, tokenizer.mask_token_id, 2]


def test_many_ids_take_four_bytes(tmp_path):
    tokenizer = make("bytes")
    tokenizer.add_tokens([f"<extra{number}>" for number in range(2**16)])
    text = "a<extra65535>"
    tokens = pack_text(TextDocuments([text]), tokenizer, folder=tmp_path)
    assert tokens.array().tolist() == [97, 257 + 65535, 256]
    assert (tokens.dtype, tokens.path.stat().st_size) == ("uint32", 12)


def forbid_writing(monkeypatch):
    monkeypatch.setattr(Encoder, "__call__", lambda *args: pytest.fail("tokenized again"))


def test_a_second_run_does_not_tokenize_again(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("some text\n" * 100)
    tokens = pack_text(load_text(str(file)).train, make("bytes"), folder=tmp_path / "cache", name="a/b c.txt")
    assert tokens.path.name.startswith("b-c-txt-")
    about = json.loads(tokens.path.with_suffix(".json").read_text())
    assert (about["count"], about["documents"], about["dtype"]) == (len(tokens), 1, "uint16")
    assert sorted(path.suffix for path in tokens.path.parent.iterdir()) == [".bin", ".json"]
    forbid_writing(monkeypatch)
    again = pack_text(load_text(str(file)).train, make("bytes"), folder=tmp_path / "cache", name="a/b c.txt")
    assert again == tokens == read_tokens(tokens.path)


def test_a_stale_or_damaged_file_is_never_used(tmp_path, caplog):
    caplog.set_level("INFO", "codingrate")

    def pack(tokenizer="bytes", special_tokens="eos", kind="causal"):
        return pack_text(
            load_text(str(file)).train, make(tokenizer, kind), folder=tmp_path / "cache", special_tokens=special_tokens
        )

    file = tmp_path / "a.txt"
    file.write_text("some text\n" * 100)
    first = pack()
    keys = {first.key, pack(special_tokens="none").key, pack(tokenizer="bpe").key, pack(kind="masked").key}
    file.write_text("same size\n" * 100)
    changed = pack()
    assert len(keys | {changed.key}) == 5
    assert changed.array()[:5].tolist() == list(b"same ")
    whole = changed.path.read_bytes()
    about = changed.path.with_suffix(".json")
    facts = about.read_text()
    damages = [(changed.path, damage) for damage in (whole[:-2], whole + b"\0\0", whole[:9] + b"x" + whole[10:], b"")]
    damages += [
        (about, damage.encode()) for damage in ("", "[]", facts[:-20], facts.replace('"bytes": 9', '"bytes": 8'))
    ]
    for path, damage in damages:
        path.write_bytes(damage)
        caplog.clear()
        assert read_tokens(changed.path) is None
        assert "is damaged or of another version; its text is tokenized again" in caplog.text
        assert pack() == changed
        assert (changed.path.read_bytes(), about.read_text()) == (whole, facts)
    about.unlink()
    caplog.clear()
    assert pack() == changed
    assert not caplog.text


def test_what_cannot_be_known_again_is_always_read(tmp_path):
    class Unknown(TextDocuments):
        def key(self):
            return None

    for text in ("one", "two"):
        tokens = pack_text(Unknown([text]), make("bytes"), folder=tmp_path)
        assert tokens.array().tolist() == [*text.encode(), 256]
    assert len(list(tmp_path.glob("*.bin"))) == 1


def test_failures_leave_no_trace(tmp_path):
    class Breaks(TextDocuments):
        def pieces(self):
            yield from super().pieces()
            raise CrateError("unreadable")

    class Lost(TextDocuments):
        def pieces(self):
            raise ConnectionError("connection lost\nsomewhere")
            yield

    class Changes(TextDocuments):
        def key(self):
            self.texts = [*self.texts, "more"]
            return super().key()

    for documents, message in (
        (Breaks(["a"]), "unreadable"),
        (Lost([]), "cannot read text: connection lost$"),
        (Changes(["a"]), "changed while it was read"),
        (TextDocuments(["", ""]), "has no text"),
        (TextDocuments([]), "has no text"),
    ):
        with pytest.raises(CrateError, match=message):
            pack_text(documents, make("bytes"), folder=tmp_path)
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CrateError, match=r"cannot write .*; free space or give another folder"):
        pack_text(LETTERS, make("bytes"), folder=tmp_path / "file")


def test_separators_need_their_tokens(tmp_path):
    tokenizer = make("bytes")
    with pytest.raises(CrateError, match="adds no special tokens to a text"):
        pack_text(LETTERS, tokenizer, folder=tmp_path, special_tokens="bos_eos")
    with pytest.raises(CrateError, match="unknown special_tokens 'eso'; did you mean 'eos'"):
        pack_text(LETTERS, tokenizer, folder=tmp_path, special_tokens="eso")
    tokenizer.eos_token = None
    with pytest.raises(CrateError, match="no end-of-text token"):
        pack_text(LETTERS, tokenizer, folder=tmp_path)


def test_default_folder_and_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen = []
    tokens = pack_text(LETTERS, make("bytes"), progress=seen.append)
    assert tokens.path.parent == token_cache() == tmp_path / "codingrate" / "tokens"
    assert seen == [103]


@pytest.fixture
def letters(tmp_path):
    return pack_text(LETTERS, make("bytes"), folder=tmp_path)  # 105 ids, two of them ends


def test_blocks_in_order(letters):
    blocks = Blocks(letters, 13)
    assert len(blocks) == 8
    found = torch.cat([blocks[place]["input_ids"] for place in range(8)])
    assert found.dtype == torch.long
    assert found.tolist() == letters.array()[:104].tolist()
    assert torch.equal(blocks[-1]["input_ids"], blocks[7]["input_ids"])
    with pytest.raises(IndexError):
        blocks[8]


def test_random_blocks_depend_on_seed_epoch_and_number_alone(letters):
    def starts(seed, epoch, workers=0):
        blocks = RandomBlocks(letters, 7, seed=seed, length=60)
        blocks.set_epoch(epoch)
        batches = list(DataLoader(blocks, batch_size=8, num_workers=workers))
        assert len(blocks[59]["input_ids"]) == 7
        return torch.cat([batch["input_ids"] for batch in batches])

    first = starts(3, 0)
    assert first.shape == (60, 7)
    assert torch.equal(starts(3, 0, workers=2), first)
    assert not torch.equal(starts(3, 1), first)
    assert not torch.equal(starts(4, 0), first)
    assert torch.equal(pickle.loads(pickle.dumps(RandomBlocks(letters, 7, seed=3)))[5]["input_ids"], first[5])


def test_random_blocks_start_evenly_everywhere(tmp_path):
    tokens = pack_text(
        TextDocuments(["".join(map(chr, range(33, 83)))]), make("bytes"), folder=tmp_path, special_tokens="none"
    )
    blocks = RandomBlocks(tokens, 10, length=4000)
    starts = np.array([int(blocks[place]["input_ids"][0]) - 33 for place in range(4000)])
    counts = np.bincount(starts)
    assert len(counts) == 40  # 0 … 39 of 50 − 10
    assert ((counts - 100) ** 2 / 100).sum() < 72  # χ² with 39 degrees of freedom, 0.1 %


def test_blocks_that_do_not_fit(letters):
    assert len(Blocks(letters, 105)) == 1
    assert len(RandomBlocks(letters, 104)) == 1
    for make_blocks in (lambda: Blocks(letters, 106), lambda: RandomBlocks(letters, 105)):
        with pytest.raises(CrateError, match="has 105 tokens, too few for a block of 10"):
            make_blocks()
    with pytest.raises(CrateError, match="`block` must be at least 2"):
        Blocks(letters, 1)
    with pytest.raises(CrateError, match="seed"):
        RandomBlocks(letters, 5, seed=-1)
    with pytest.raises(CrateError, match="length"):
        RandomBlocks(letters, 5, length=0)


PACK = """
import sys
from codingrate.data.tokens import pack_text
from codingrate.data.text import load_text
from codingrate.data.tokens import load_tokenizer

data = load_text(sys.argv[1])
tokens = pack_text(data.train, load_tokenizer("bytes"), folder=sys.argv[2])
assert "torch" not in sys.modules
try:
    with open("/proc/self/status") as file:  # of this program alone; getrusage counts the one that started it
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
print(len(tokens), peak)
"""


def run_pack(file, folder):
    started = time.monotonic()
    command = [sys.executable, "-c", PACK, str(file), str(folder)]
    count, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    return count, peak / 1024, time.monotonic() - started


def test_packing_needs_no_torch(tmp_path):
    (tmp_path / "a.txt").write_text("text\n" * 1000)
    count, megabytes, _ = run_pack(tmp_path / "a.txt", tmp_path / "cache")
    assert count == 4751  # 95 % and the end
    assert megabytes < 300


@pytest.mark.slow
def test_a_gigabyte_takes_little_memory(tmp_path):
    """1 GB of prose, its own copy of the language reference with a number per copy."""
    chapters = "\n\n".join(load_text("pydoc").train).encode()
    file = tmp_path / "large.txt"
    with file.open("wb") as out:
        copy = 0
        while out.tell() < 10**9:
            out.write(f"Volume {copy} — née\n".encode() + chapters)
            copy += 1
    try:
        count, megabytes, seconds = run_pack(file, tmp_path / "cache")
    finally:  # pytest keeps the folders of the last runs
        file.unlink()
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    print(f"{count} tokens, peak {megabytes:.0f} MB, {seconds:.0f} s")
    assert 0.94 * 10**9 < count < 0.96 * 10**9
    assert megabytes < 500
    assert seconds < 240
