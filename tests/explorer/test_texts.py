"""What the text tab shows, against direct computations."""

import numpy as np
import pytest
import torch

from codingrate import inspection
from codingrate.explorer import TextInput, texts
from codingrate.inspection import Intervention
from tests.explorer.conftest import TEXT
from tests.refusals import refused

NONE = Intervention()
PROMPT = "ROMEO:\nBut soft, what light"


@pytest.fixture(scope="module")
def entry(library):
    return library.entry(TEXT)


@pytest.fixture(scope="module")
def prompt(entry):
    return TextInput.of(entry, PROMPT)


def test_the_next_token_is_that_of_the_model(library, entry, prompt):
    found = texts.predict(library, TEXT, prompt, len(prompt.ids) - 1, NONE, top=3)
    with torch.no_grad():
        expected = entry.model(**prompt.arguments(entry)).logits[0, -1].softmax(-1).topk(3)
    assert [one.probability for one in found] == pytest.approx(expected.values.tolist(), abs=1e-5)
    assert [one.label for one in found] == texts.token_texts(entry, tuple(expected.indices.tolist()))


def test_the_lens_is_that_of_inspection(library, entry, prompt):
    rows = texts.lens_rows(library, TEXT, prompt, 4, NONE, top=2)
    expected = inspection.candidates(entry.model, torch.tensor(prompt.ids), [4], top=2)
    assert [row.layer for row in rows] == list(range(entry.depth, 0, -1))
    for row in rows:
        np.testing.assert_allclose(row.probabilities, expected.probabilities[row.layer - 1, 0], atol=1e-5)
    assert rows[0].final == pytest.approx(rows[0].probabilities[0])


def test_attention_between_tokens_is_that_of_inspection(library, entry, prompt):
    passed = library.look(TEXT, prompt)
    expected = inspection.token_attention(entry.model, torch.tensor(prompt.ids), 1).numpy()
    np.testing.assert_allclose(texts.token_attention(passed, 1, 3), expected[3], atol=1e-5)
    np.testing.assert_allclose(texts.token_attention(passed, 1, None), expected.mean(0), atol=1e-5)
    one = passed.attention_of(1, 5)[0].numpy()
    np.testing.assert_allclose(one, expected[:, 5], atol=1e-5)
    assert (one[:, 6:] == 0).all()


def test_units_that_fire_are_the_largest_entries_of_the_code(library, entry, prompt):
    found = texts.firing_units(library, TEXT, prompt, 6, 2, NONE, count=3)
    code = texts.codes(library.look(TEXT, prompt), 2)[0, 6]
    best = code.abs().topk(3)
    assert [one.unit for one in found] == [index + 1 for index in best.indices.tolist()]
    assert [abs(one.activation) for one in found] == pytest.approx(best.values.tolist(), rel=1e-5)
    sample = "".join(texts.token_texts(entry, tuple(texts.sample_batches(entry)[0]["input_ids"].flatten().tolist())))
    assert all(len(one.texts) == 3 for one in found)
    assert any(at in sample for _, at, _ in found[0].texts)
    off = Intervention(atoms=((3, found[0].unit),))
    changed = texts.firing_units(library, TEXT, prompt, 6, 2, off, count=8)
    assert found[0].unit not in [one.unit for one in changed], "a removed unit does not fire"


def test_generation_follows_the_intervention(library, entry):
    off = Intervention(heads=tuple((1, head) for head in range(1, entry.heads + 1)))
    plain, changed = (texts.next_text(library, TEXT, PROMPT, one, tokens=12) for one in (NONE, off))
    assert plain.startswith(PROMPT)
    assert plain != changed
    expected = entry.run.intervene(**off.to_dict()).generate(PROMPT, tokens=12, do_sample=False).text
    assert changed == PROMPT + expected


def test_curves_are_those_of_layerwise(library, entry, prompt):
    ours = library.curves(TEXT, prompt, NONE)
    expected = inspection.layerwise(entry.model, [prompt.arguments(entry)])
    for column in ("compression_normalized", "reduction_normalized", "nonzero"):
        np.testing.assert_allclose(ours[column], expected[column], rtol=1e-5)


def test_text_slides_through_the_context_as_it_does_when_text_is_generated(entry, library):
    """At every length, the most probable next token is the one that greedy generation writes."""
    text, context = texts.sample_text(entry), int(entry.model.config.max_tokens)
    slid = 0
    while len(text) < 1.2 * context:
        read = TextInput.of(entry, text)
        slid += read.skipped > 0
        assert len(read.ids) + read.skipped == len(text)
        (best,) = texts.predict(library, TEXT, read, len(read.ids) - 1, NONE, top=1)
        longer = texts.next_text(library, TEXT, text, NONE, tokens=1)
        assert longer == text + best.label
        text = texts.next_text(library, TEXT, text, NONE, tokens=9)
    assert slid


def test_a_masked_model_predicts_at_its_mask():
    from codingrate.explorer import Library

    library = Library(["crate-wikitext-bert"])
    entry = library.entry("crate-wikitext-bert")
    text = "The capital of France is <mask> ."
    tokens = TextInput.of(entry, text)
    position = texts.default_position(entry, tokens)
    found = texts.predict(library, entry.name, tokens, position, NONE, top=3)
    expected = entry.run.fill(text, top=3)[0]
    assert [one.probability for one in found] == pytest.approx([one.probability for one in expected], abs=1e-5)
    refused("does not generate text", texts.next_text, library, entry.name, "a", NONE)
    refused("the model reads at most", TextInput.of, entry, "word " * 700)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("a" * 10**7, "10,000,000 characters; the limit is 4,000"),
        ("\ud800", "lone surrogate"),
    ],
    ids=["empty", "blank", "long", "surrogate"],
)
def test_bad_texts_are_refused(entry, text, words):
    refused(words, TextInput.of, entry, text)
