"""Masking: the shares of Devlin et al., special tokens untouched, the same draws from the same generator."""

import inspect

import pytest
import torch

from codingrate.data import Masking, load_tokenizer, mask_own_tokens, mask_tokens
from codingrate.errors import CrateError

SPECIAL = (0, 1, 2, 3, 60)
MASKING = Masking(mask_id=60, vocab_size=61, special_ids=SPECIAL)


def draw(seed=7):
    return torch.Generator().manual_seed(seed)


def sentences(batch=101, n=509):
    ids = torch.randint(4, 60, (batch, n), generator=draw(0))
    ids[:, 0], ids[:, -1] = 0, 2
    ids[::3, -20:] = 1
    return ids


def chi_squared(counts, shares):
    expected = sum(counts) * torch.tensor(shares)
    return float(((torch.tensor(counts) - expected) ** 2 / expected).sum())


def test_shares_of_chosen_hidden_random_and_kept():
    ids = sentences()
    hidden, labels = mask_tokens(ids, MASKING, 0.15, draw())
    chosen = labels != -100
    plain = ~torch.isin(ids, torch.tensor(SPECIAL))
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(hidden[~chosen], ids[~chosen])
    assert not chosen[~plain].any()
    total = int(plain.sum())
    assert chi_squared([int(chosen.sum()), total - int(chosen.sum())], [0.15, 0.85]) < 10.8  # 0.1 %, as below
    masked, same = hidden[chosen] == 60, hidden[chosen] == ids[chosen]
    counts = [int(masked.sum()), int(same.sum()), int((~masked & ~same).sum())]
    by_chance = 0.1 / 61  # a random id is the mask, or the token itself, so often
    assert chi_squared(counts, [0.8 + by_chance, 0.1 + by_chance, 0.1 - 2 * by_chance]) < 13.8


def test_fifteen_percent_are_chosen_by_default():
    """Devlin et al. (2019), section 3.1, and the paper's BERT (4.1.4)."""
    for function in (mask_tokens, mask_own_tokens):
        assert inspect.signature(function).parameters["probability"].default == 0.15


def test_random_words_are_even_over_the_whole_vocabulary():
    ids = torch.full((400, 499), 30)
    hidden, labels = mask_tokens(ids, MASKING, 0.5, draw())
    words = hidden[(labels != -100) & (hidden != 30) & (hidden != 60)]
    counts = torch.bincount(words, minlength=61)[[word for word in range(61) if word not in (30, 60)]]
    assert len(words) > 9000
    assert chi_squared(counts.tolist(), [1 / 59] * 59) < 99  # 58 degrees of freedom, 0.1 %


def test_tokens_are_chosen_independently():
    """Neither the place nor the neighbor says anything: columns are even, pairs are the square."""
    _, labels = mask_tokens(torch.full((4000, 40), 9), MASKING, 0.15, draw())
    chosen = labels != -100
    assert (
        chi_squared(chosen.sum(0).tolist(), [1 / 40] * 40) < 73
    )  # 39 degrees of freedom; bound for counts with p(1-p)
    pairs = (chosen[:, 1:] & chosen[:, :-1]).float().mean()
    assert abs(float(pairs) - 0.15**2) < 0.0015  # five deviations


def test_the_same_generator_gives_the_same_batches():
    ids = sentences(7, 31)
    generator = draw()
    first = mask_tokens(ids, MASKING, generator=generator)
    state = generator.get_state()
    second = mask_tokens(ids, MASKING, generator=generator)
    assert not torch.equal(first[0], second[0])
    resumed = torch.Generator()
    resumed.set_state(state)
    assert all(map(torch.equal, second, mask_tokens(ids, MASKING, generator=resumed)))
    other = draw()
    mask_tokens(ids.flip(0), MASKING, generator=other)
    assert torch.equal(other.get_state(), state)  # other ids of the same shape draw as much
    torch.manual_seed(5)
    free = mask_tokens(ids, MASKING)
    torch.manual_seed(5)
    assert all(map(torch.equal, free, mask_tokens(ids, MASKING)))


def test_ids_are_not_changed_in_place_and_may_have_any_shape():
    ids = torch.arange(4, 59)
    copy = ids.clone()
    hidden, labels = mask_tokens(ids, MASKING, 0.9, draw())
    assert torch.equal(ids, copy)
    assert hidden.shape == labels.shape == ids.shape
    assert hidden.dtype == labels.dtype == torch.long


def test_a_tokenizer_says_what_is_special():
    tokenizer = load_tokenizer("bytes", kind="masked")
    assert Masking.of(tokenizer) == Masking(260, 261, (0, 1, 2, 3, 260))
    ids = torch.tensor([tokenizer("white box", padding="max_length", max_length=40)["input_ids"]])
    hidden, labels = mask_tokens(ids, tokenizer, 0.999, draw())
    assert (labels[0] != -100).nonzero().flatten().tolist() == list(range(1, 10))
    assert torch.equal(hidden[0, 10:], ids[0, 10:])
    with pytest.raises(CrateError, match="no mask token"):
        mask_tokens(ids, load_tokenizer("bytes"), 0.15)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, 15])
def test_impossible_probabilities(probability):
    with pytest.raises(CrateError, match="probability"):
        mask_tokens(torch.ones(2, 3, dtype=torch.long), MASKING, probability)


def test_own_masks_belong_to_the_block_alone():
    ids = sentences()
    hidden, labels = mask_own_tokens(ids, MASKING)
    order = torch.randperm(len(ids))
    for shuffled, plain in zip(mask_own_tokens(ids[order], MASKING), (hidden, labels), strict=True):
        assert torch.equal(shuffled, plain[order])
    assert torch.equal(mask_own_tokens(ids[5:6], MASKING)[0], hidden[5:6])
    assert not torch.equal(mask_own_tokens(ids, MASKING, seed=1)[0], hidden)
    assert mask_own_tokens(ids[:0], MASKING)[1].shape == (0, 509)
    chosen, plain = labels != -100, ~torch.isin(ids, torch.tensor(SPECIAL))
    assert not chosen[~plain].any()
    counts = [int(chosen.sum()), int(plain.sum() - chosen.sum())]
    assert chi_squared(counts, [0.15, 0.85]) < 10.8
