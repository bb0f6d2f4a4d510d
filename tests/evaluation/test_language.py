"""Language models: every token predicted once and as a loop would, the paper's sampling, LAMBADA, filled masks."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from codingrate.data import TextDocuments, load_tokenizer, pack_text
from codingrate.evaluation import fill_masks, lambada_accuracy, language, perplexity, sampled_loss
from tests.models import toys
from tests.refusals import refused

BLOCK = 13


def causal(**fields):
    return toys.build("causal-lm", **fields).double()


def stream(length, words=29):
    return np.random.default_rng(length).integers(words, size=length).astype(np.uint16)


def packed(folder, texts):
    return pack_text(TextDocuments(texts), load_tokenizer("bytes"), folder=folder, special_tokens="eos")


@torch.no_grad()
def naive(model, ids, block, stride):
    """−log P of each token but the first, one at a time, and how many tokens each saw."""
    model.eval()
    losses, seen = [], []
    for place in range(1, len(ids)):
        # the first window whose predictions reach this far starts where?
        window = max(0, math.ceil((place - block) / stride)) * stride
        context = torch.from_numpy(ids[window:place].astype(np.int64))[None]
        losses.append(-float(model(input_ids=context).logits[0, -1].log_softmax(-1)[int(ids[place])]))
        seen.append(place - window)
    return losses, seen


@st.composite
def windows(draw):
    """A block within the context length, a stride within the block, and a text of any length."""
    block = draw(st.integers(2, BLOCK))
    return draw(st.integers(2, 60)), block, draw(st.integers(1, block))


@settings(max_examples=20, deadline=None, derandomize=True)
@example((2, 13, 1), "mssa")
@example((14, 13, 13), "tssa")  # the text is one window
@example((15, 13, 5), "mssa")  # the last window predicts a single token
@given(windows(), st.sampled_from(["mssa", "tssa"]))
def test_every_token_is_predicted_once_from_what_stands_before_it(sizes, attention):
    length, block, stride = sizes
    model, ids, heard = causal(attention=attention), stream(length), []
    report = perplexity(model, ids, block=block, stride=stride, batch_size=3, progress=heard.append)
    losses, seen = naive(model, ids, block, stride)
    assert report.cross_entropy == pytest.approx(np.mean(losses), rel=1e-10)
    assert report.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-10)
    assert report.tokens == sum(heard) == length - 1
    late = seen[block:]
    assert max(seen) <= block
    assert not late or min(late) > block - stride, "enough context, once there is some"
    assert (report.block, report.stride, report.bits_per_byte, report.error) == (block, stride, None, None)


def test_defaults_limit_and_mode():
    model, ids = causal().train(), stream(50)
    report = perplexity(model, ids, limit=31)
    assert model.training, "given back as it was"
    assert (report.block, report.stride, report.tokens) == (BLOCK, BLOCK // 2, 30)
    one_by_one = perplexity(model, ids[:31], batch_size=1).cross_entropy
    assert report.cross_entropy == pytest.approx(one_by_one, rel=1e-12)  # sums of another batch are rounded otherwise


@pytest.mark.parametrize("stride", [1, 5])
def test_ends_of_documents_are_context_but_need_not_count(tmp_path, stride):
    tokens = packed(tmp_path, ["", "a document", "", "b", "the last one of them all"])
    model = causal(vocab_size=257, eos_token_id=256)
    ids = tokens.array()
    losses, _ = naive(model, ids, BLOCK, stride)
    words = ids[1:] != 256
    every = perplexity(model, tokens, stride=stride, batch_size=1)
    assert (every.tokens, every.ends) == (len(ids) - 1, 4), "the first token, an end, is not predicted"
    assert every.cross_entropy == pytest.approx(np.mean(losses), rel=1e-10)
    report = perplexity(model, tokens, stride=stride, batch_size=1, end_of_document=False)
    assert (report.tokens, report.ends) == (words.sum(), 0)
    assert report.cross_entropy == pytest.approx(np.array(losses)[words].mean(), rel=1e-10)
    size = tokens.bytes
    assert report.bits_per_byte == pytest.approx(report.cross_entropy / math.log(2), rel=1e-12), "a token is a byte"
    assert every.bits_per_byte == pytest.approx(every.cross_entropy * (size + 5) / size / math.log(2), rel=1e-12)
    refused("has no eos_token_id", perplexity, causal(eos_token_id=None), ids % 29, end_of_document=False)
    refused("no tokens to predict but ends", perplexity, model, np.full(9, 256), end_of_document=False)


def test_bits_per_byte_compare_tokenizers(tmp_path):
    """A model that gives every id the same probability: log V nats a token, whatever the text."""
    text = "Grüße, " * 30
    tokens = packed(tmp_path, [text, text])
    model = toys.build("causal-lm", vocab_size=257, tie_word_embeddings=False)
    nn.init.zeros_(model.head.weight)
    report = perplexity(model, tokens)
    size = 2 * len(text.encode())
    assert report.cross_entropy == pytest.approx(math.log(257), rel=1e-6)
    assert report.bits_per_byte == pytest.approx(math.log2(257) * (size + 2) / size, rel=1e-6), "two ends of text"
    report.save(tmp_path / "report")
    assert json.loads((tmp_path / "report" / "metrics.json").read_text())["tokens"] == size + 1
    sampled = sampled_loss(model, tokens, block=5, iterations=3)
    assert sampled.bits_per_byte == pytest.approx(report.bits_per_byte, rel=1e-5)


def test_sampling_is_nanogpts():
    model, ids, heard = causal(), stream(40), []
    report = sampled_loss(model, ids, block=7, batch_size=4, iterations=5, seed=3, progress=heard.append)
    starts = np.random.default_rng(3).integers(len(ids) - 7, size=(5, 4))
    means = []
    model.eval()
    for some in starts:
        x = torch.stack([torch.from_numpy(ids[s : s + 7].astype(np.int64)) for s in some])
        y = torch.stack([torch.from_numpy(ids[s + 1 : s + 8].astype(np.int64)) for s in some])
        with torch.no_grad():
            means.append(float(F.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())))
    assert report.cross_entropy == pytest.approx(np.mean(means), rel=1e-10)
    assert report.error == pytest.approx(np.std(means, ddof=1) / math.sqrt(5))
    assert (report.tokens, report.stride, heard) == (5 * 4 * 7, None, [28] * 5)
    again = sampled_loss(model, ids, block=7, batch_size=4, iterations=5, seed=4)
    assert again.cross_entropy != report.cross_entropy
    assert sampled_loss(model, stream(8), block=7, iterations=1).error is None, "the shortest text there is"


def test_texts_and_models_that_do_not_fit():
    model, ids, broken = causal(), stream(40), causal()
    nn.init.constant_(broken.head.weight, math.nan)
    classifier, masked = toys.build("image-classification"), toys.build("masked-lm")
    for words, call, one, tokens, options in (
        ("stride is 0", perplexity, model, ids, {"stride": 0}),
        ("stride is 14", perplexity, model, ids, {"stride": 14}),
        ("block is 14", perplexity, model, ids, {"block": 14}),
        ("block is 1;", perplexity, model, ids, {"block": 1}),
        ("limit is 0", perplexity, model, ids, {"limit": 0}),
        ("batch_size is 0", perplexity, model, ids, {"batch_size": 0}),
        ("1 tokens", perplexity, model, ids[:1], {}),
        ("float64", perplexity, model, np.zeros(5), {}),
        ("token id 29", perplexity, model, np.array([3, 29, 4]), {}),
        ("not numbers", perplexity, broken, ids, {}),
        ("CrateForMaskedLM", perplexity, masked, ids, {}),
        ("CrateForImageClassification", sampled_loss, classifier, ids, {}),
        ("13 tokens", sampled_loss, model, ids[:13], {"block": 13}),
        ("iterations is 0", sampled_loss, model, ids, {"block": 5, "iterations": 0}),
        ("seed is -1", sampled_loss, model, ids, {"block": 5, "seed": -1}),
    ):
        refused(words, call, one, tokens, **options)


# LAMBADA


class Knows(nn.Module):
    """Says the letters of one text, whatever it is asked: the highest logit is that of the byte that follows there."""

    def __init__(self, text):
        super().__init__()
        self.bytes, self.config = text.encode(), SimpleNamespace(max_position_embeddings=64, vocab_size=257)

    def forward(self, input_ids, logits_to_keep=0, use_cache=None, **_):
        logits = torch.zeros(*input_ids.shape, 257)
        for row, ids in enumerate(input_ids.tolist()):
            for place in range(len(ids)):
                ahead = self.bytes.find(bytes(i for i in ids[: place + 1] if i < 256))
                following = self.bytes[ahead + place + 1 :][: ahead >= 0]
                logits[row, place, list(following)] = 9.0
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])


def test_the_last_word_must_be_the_likeliest_in_every_token():
    tokenizer = load_tokenizer("bytes")
    model = Knows("the cat sat on the mat and more")
    # the last passage is found as well: whatever white space stands before the word counts as a space
    right, wrong, longer = "the cat sat on the mat", "the cat sat on the map", "the cat sat on the mats"
    for texts, share in (([right], 1), ([wrong], 0), ([longer], 0), ([right, wrong, longer, "the cat\n\nsat"], 0.5)):
        report = lambada_accuracy(model, tokenizer, texts, batch_size=3)
        assert (report.accuracy, report.texts, report.protocol, report.cut) == (share, len(texts), "argmax", 0)


def test_a_passage_that_is_too_long_loses_its_beginning_for_its_own_word():
    text, tokenizer = " ".join(map(str, range(60))) + " mat", load_tokenizer("bytes")  # 173 bytes, of which 64 fit
    report = lambada_accuracy(Knows(text), tokenizer, [text])
    assert (report.accuracy, report.cut) == (1, 1)
    texts = ["x" * 55 + " a", "one " + "b" * 30]  # 55 + 2 bytes, and 3 + 31
    assert [lambada_accuracy(Knows(""), tokenizer, texts, batch_size=size).cut for size in (1, 2)] == [0, 0]


def test_a_generated_word_counts_in_any_case_and_as_part_of_another(monkeypatch):
    monkeypatch.setattr(language, "_continuations", lambda *_: [" the CATS sat", " a Dog", " a fox"])
    passages = ["I saw the cat", "I saw the dOG", "I saw the owl"]
    report = lambada_accuracy(Knows(""), load_tokenizer("bytes"), passages, generate=True)
    assert report.accuracy == pytest.approx(2 / 3)


@pytest.fixture
def writer():
    """A tokenizer, a language model of 41 positions, and greedy decoding of both, one prompt at a time."""
    tokenizer = load_tokenizer("bytes")
    model = toys.build("causal-lm", vocab_size=257, max_position_embeddings=41, eos_token_id=256).eval()

    def decode(ids, new):
        given = torch.tensor([ids])
        out = model.generate(given, max_new_tokens=new, do_sample=False, pad_token_id=256)
        return tokenizer.decode(out[0, given.shape[1] :])

    return tokenizer, model, decode


@pytest.mark.parametrize("generate", [False, True])
def test_lambada_is_decoding_word_by_word(generate, writer):
    tokenizer, model, decode = writer
    texts = ["a rose is a rose", "“no” said the “owl”", "one two", "x" * 60 + " and a long one"]
    own = decode(tokenizer("\none two")["input_ids"], 9).split()
    texts += [f"one two {own[0].upper()}"] if own else []  # what the model says by itself, when it is asked to write
    expected, cut = [], 0
    for text in texts:
        context, word = text.rsplit(maxsplit=1)
        if generate:
            context, word = (part.replace("“", '"').replace("”", '"') for part in (f"\n{context}", word))
        new = 10 if generate else len(f" {word}".encode())
        ids = tokenizer(context)["input_ids"]
        cut += len(ids) > 41 - new
        said = decode(ids[-(41 - new) :], new)
        expected.append(word.lower() in said.lower() if generate else said == f" {word}")
    assert cut == 1
    for size in (1, 4):
        report = lambada_accuracy(model, tokenizer, texts, generate=generate, batch_size=size)
        assert (report.accuracy, report.cut) == (sum(expected) / len(texts), 1)


def test_contexts_of_unequal_length_continue_in_a_batch_as_they_do_alone(writer):
    tokenizer, model, _ = writer
    contexts = [list(text.encode()) for text in ("\na rose", "\n" + "no said the owl" * 2, "\nx")]
    together = language._continuations(model, tokenizer, contexts, torch.device("cpu"))
    alone = [language._continuations(model, tokenizer, [context], torch.device("cpu"))[0] for context in contexts]
    assert together == alone
    assert len(set(alone)) == 3, "the context decides"


def test_passages_that_have_no_last_word_and_masks_that_cannot_be_filled():
    model, tokenizer = toys.build("causal-lm", vocab_size=257), load_tokenizer("bytes")
    masked, masking = toys.build("masked-lm", vocab_size=261), load_tokenizer("bytes", kind="masked")
    for words, call, *arguments in (
        ("text 2", lambada_accuracy, model, tokenizer, ["a b", "alone"]),
        ("text 1", lambada_accuracy, model, tokenizer, [""]),
        ("texts", lambada_accuracy, model, tokenizer, []),
        ("21 tokens", lambada_accuracy, model, tokenizer, ["a " + "b" * 20]),
        ("257 ids", lambada_accuracy, causal(), tokenizer, ["a b"]),
        ("CrateForMaskedLM", lambada_accuracy, masked, tokenizer, ["a b"]),
        ("mask", fill_masks, masked, masking, "nothing here"),
        ("mask", fill_masks, masked, masking, ""),
        ("23 tokens", fill_masks, masked, masking, "a" * 20 + "<mask>"),
        ("top is 0", fill_masks, masked, masking, "<mask>", 0),
        ("mask token", fill_masks, masked, tokenizer, "<mask>"),
        ("CrateForMaskedLM", fill_masks, causal(), masking, "<mask>"),
    ):
        refused(words, call, *arguments)


# masks


@pytest.mark.parametrize("words", ["a<mask>c <mask>", "a[MASK]c [MASK]", "a<mask>c [MASK]"])
def test_masks_are_filled(words):
    tokenizer = load_tokenizer("bytes", kind="masked")
    if "[MASK]" in words:
        tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    model = toys.build("masked-lm", vocab_size=263).eval()
    found = fill_masks(model, tokenizer, words, top=7)
    ids = torch.tensor(tokenizer(words.replace("<mask>", tokenizer.mask_token))["input_ids"])[None]
    with torch.no_grad():
        p = model(input_ids=ids).logits[0].softmax(-1)[ids[0] == tokenizer.mask_token_id]
    values, best = p.topk(7)
    assert [[candidate.id for candidate in candidates] for candidates in found] == best.tolist()
    assert len(found) == 2
    for candidates, expected in zip(found, values.tolist(), strict=True):
        assert [candidate.probability for candidate in candidates] == pytest.approx(expected, rel=1e-5)
        assert all("\ufffd" not in candidate.token for candidate in candidates)
