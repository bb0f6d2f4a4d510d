"""Tokenizers made here and ready ones: their special tokens, that they are saved whole, that training repeats."""

import hashlib
import json
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from codingrate import CrateConfig
from codingrate.data import TextDocuments, load_text, load_tokenizer
from codingrate.data.tokens import check_tokenizer, id_count
from codingrate.errors import CrateError

TEXTS = [
    "Whéreas recognition of the inherent dignity, 漢字 and\n\n\tof the equal rights 123 " * 30,
    "",
    "🙂 <mask> <s>",
]


@pytest.fixture(params=["bytes", "bpe"])
def spec(request):
    return request.param


def make(spec, kind, **kwargs):
    return load_tokenizer(spec, TEXTS, kind=kind, vocab_size=300, **kwargs)


def test_masked_layout_is_that_of_roberta(spec):
    tokenizer = make(spec, "masked")
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, len(tokenizer) - 1]) == [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
    ]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id) == (0, 2, 3)
    assert tokenizer.mask_token_id == len(tokenizer) - 1 == id_count(tokenizer) - 1
    (a,), (b,) = (tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in "ab")
    assert tokenizer("a")["input_ids"] == [0, a, 2]
    assert tokenizer("a", "b")["input_ids"] == [0, a, 2, 2, b, 2]
    assert tokenizer("a <mask>")["input_ids"] == [0, a, tokenizer.mask_token_id, 2]  # it takes the space before it


def test_causal_layout_is_that_of_gpt2(spec):
    tokenizer = make(spec, "causal")
    assert tokenizer.all_special_ids == [len(tokenizer) - 1]
    assert tokenizer.eos_token == tokenizer.bos_token == "<|endoftext|>"
    assert tokenizer("a<|endoftext|>")["input_ids"][-1] == tokenizer.eos_token_id
    assert len(tokenizer("a")["input_ids"]) == 1


def test_sizes_and_byte_ids():
    assert [len(make("bytes", kind)) for kind in ("masked", "causal")] == [261, 257]
    assert [len(make("bpe", kind)) for kind in ("masked", "causal")] == [300, 300]
    assert make("bytes", "causal")("aé")["input_ids"] == list("aé".encode())
    assert make("bytes", "masked")("é", add_special_tokens=False)["input_ids"] == [4 + byte for byte in "é".encode()]


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_every_text_comes_back(spec, kind):
    tokenizer = make(spec, kind)
    text = "".join(map(chr, [*range(1, 0x250), 0x1F642, 0x10FFFF])) + TEXTS[0]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_saved_and_loaded_again(spec, kind, tmp_path):
    tokenizer = make(spec, kind)
    tokenizer.save_pretrained(tmp_path)
    CrateConfig(modality="text", vocab_size=300).save_pretrained(tmp_path)
    for loaded in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
        assert loaded.special_tokens_map == tokenizer.special_tokens_map
        for texts in ((TEXTS[0],), (TEXTS[0], "b <mask>")):
            assert loaded(*texts)["input_ids"] == tokenizer(*texts)["input_ids"]


def test_training_repeats_in_another_process():
    """Ties between pairs must not be broken by the order of a hash table."""
    code = (
        "import hashlib\n"
        "from codingrate.data import load_text, load_tokenizer\n"
        "tokenizer = load_tokenizer('bpe', load_text('pydoc').train, vocab_size=1500)\n"
        "print(hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest())"
    )
    here = load_tokenizer("bpe", load_text("pydoc").train, vocab_size=1500).backend_tokenizer.to_str()
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert hashlib.sha256(here.encode()).hexdigest() == there
    assert len(json.loads(here)["model"]["vocab"]) == 1499


def test_learns_from_lists_and_documents_alike():
    texts = [text for text in TEXTS if text]
    states = {make("bpe", "causal").backend_tokenizer.to_str()}
    states.add(load_tokenizer("bpe", iter(texts), vocab_size=300).backend_tokenizer.to_str())
    states.add(load_tokenizer("bpe", TextDocuments(texts), vocab_size=300).backend_tokenizer.to_str())
    assert len(states) == 1
    rare = load_tokenizer("bpe", ["abc"], vocab_size=300, min_frequency=5)
    assert len(rare) == 257


def test_words_are_read_alike_wherever_they_stand_if_asked_for(tmp_path):
    texts = ["The Cat saw THE cat and the É", "the cat"] * 3
    tokenizer = load_tokenizer("bpe", texts, kind="masked", vocab_size=300, uncased=True)
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, load_tokenizer(str(tmp_path))):
        assert one("THE Cat, É")["input_ids"] == one(" the cat, é")["input_ids"]
    plain = load_tokenizer("bpe", texts, kind="masked", vocab_size=300)
    assert plain("THE Cat")["input_ids"] != plain("the cat")["input_ids"] != plain(" the cat")["input_ids"]


def test_check_against_the_model():
    tokenizer = make("bytes", "masked")
    check_tokenizer(tokenizer, CrateConfig(modality="text", vocab_size=261))
    check_tokenizer(tokenizer, CrateConfig(modality="text", vocab_size=320))
    with pytest.raises(CrateError, match="has 261 ids, the model only 260; set vocab_size to 261 or more"):
        check_tokenizer(tokenizer, CrateConfig(modality="text", vocab_size=260))


@pytest.mark.parametrize(
    ("spec", "kwargs", "message"),
    [
        ("bpe", {}, "trained on text"),
        ("bpe", {"texts": ["", ""]}, "the text is empty"),
        ("bpe", {"texts": "one string"}, "pass a list of documents"),
        (
            "bpe",
            {"texts": ["a"], "vocab_size": 256},
            "text.vocab_size is 256; bytes and special tokens need at least 257",
        ),
        ("bpe", {"texts": ["a"], "vocab_size": 260, "kind": "masked"}, "need at least 261"),
        ("bpe", {"texts": ["a"], "min_frequency": 0}, "min_frequency"),
        ("bytes", {"kind": "mask"}, "unknown kind of tokenizer 'mask'; did you mean 'masked'?"),
        *(
            (path, {}, "no such tokenizer folder")
            for path in ("./missing", "runs/missing", "a/b/c", "x/tokenizer.json")
        ),
        ("Byte", {}, "unknown tokenizer 'byte'; did you mean 'bytes'?"),
        ("nobody-has-this", {}, "cannot load the tokenizer 'nobody-has-this'"),
    ],
)
def test_mistakes(spec, kwargs, message):
    with pytest.raises(CrateError) as caught:
        load_tokenizer(spec, **kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CrateError, match="cannot load the tokenizer"):
        load_tokenizer(str(tmp_path))


def test_a_folder_with_wrong_values(tmp_path):
    """Loading does not notice them; the first text does."""
    load_tokenizer("bytes").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": {}}))
    with pytest.raises(CrateError, match="cannot load the tokenizer"):
        load_tokenizer(str(tmp_path))
