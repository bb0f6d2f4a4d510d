import pytest
import torch

from codingrate import objective as ob


@pytest.mark.parametrize("arrangement", ["orthonormal", "incoherent"])
def test_each_basis_is_orthonormal(arrangement, rng):
    bases = ob.random_bases(3, 17, 5, arrangement, rng, torch.float64)
    assert bases.shape == (3, 17, 5)
    torch.testing.assert_close(bases.mT @ bases, torch.eye(5, dtype=torch.float64).expand(3, 5, 5))


def test_arrangements_differ_in_coherence(rng):
    assert ob.coherence(ob.random_bases(3, 17, 5, "orthonormal", rng, torch.float64)) < 1e-12
    assert 0.1 < ob.coherence(ob.random_bases(3, 17, 5, "incoherent", rng, torch.float64)) < 1
    assert ob.coherence(ob.random_bases(1, 17, 5, generator=rng)) == 0


def test_coherence_is_the_largest_cosine_and_is_not_normalised():
    angle = torch.tensor(0.3, dtype=torch.float64)
    u = torch.zeros(2, 3, 1, dtype=torch.float64)
    u[0, 0, 0] = 1
    u[1, 0, 0], u[1, 1, 0] = angle.cos(), angle.sin()
    torch.testing.assert_close(ob.coherence(u), angle.cos())
    torch.testing.assert_close(ob.coherence(2 * u), 4 * angle.cos())
    assert ob.coherence(u.bfloat16()).dtype == torch.float32
    u.requires_grad_()
    ob.coherence(u).backward()
    assert u.grad.isfinite().all()


def test_the_same_seed_gives_the_same_draw_in_every_dtype():
    draws = [
        ob.random_bases(2, 7, 3, generator=torch.Generator().manual_seed(1), dtype=t)
        for t in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(draws[0].double(), draws[1], rtol=0, atol=1e-7)
    samples = [ob.sample_tokens(draws[0], 11, 0.1, torch.Generator().manual_seed(2)) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*samples, strict=True))


def test_tokens_lie_on_the_subspace_of_their_label(lead, rng):
    bases = ob.random_bases(3, 17, 2, "incoherent", rng, torch.float64)
    sample = ob.sample_tokens(bases, 13, generator=rng, batch=lead)
    assert sample.tokens.shape == (*lead, 13, 17)
    assert sample.labels.shape == (*lead, 13)
    assert sample.codes.shape == (*lead, 13, 2)
    own = bases[sample.labels]
    torch.testing.assert_close((own @ sample.codes[..., None])[..., 0], sample.tokens)
    torch.testing.assert_close((own @ (own.mT @ sample.tokens[..., None]))[..., 0], sample.tokens)
    assert torch.equal(sample.clean, sample.tokens)


def test_noise_has_the_stated_size_and_labels_are_uniform(rng):
    bases = ob.random_bases(3, 17, 2, generator=rng, dtype=torch.float64)
    sample = ob.sample_tokens(bases, 20000, sigma=0.3, generator=rng)
    # 340 000 normal draws: the standard deviation is known to 0.12 %; shares and codes to about 1 %.
    assert (sample.tokens - sample.clean).std().item() == pytest.approx(0.3, rel=0.01)
    assert sample.codes.std().item() == pytest.approx(1, rel=0.03)
    shares = sample.labels.bincount(minlength=3) / 20000
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), rtol=0, atol=0.015)


def test_sparsity_measures_by_hand():
    z = torch.tensor([[0.0, -2.0, 0.5], [0.0, 0.0, 1.0]]).expand(2, 5, 2, 3)
    assert torch.equal(ob.l0_norm(z), torch.full((2, 5), 3.0))
    assert torch.equal(ob.l0_fraction(z), torch.full((2, 5), 0.5))
    assert torch.equal(ob.l1_norm(z), torch.full((2, 5), 3.5))
    assert torch.equal(ob.l0_norm(z, dim=-1)[0, 0], torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(ob.l0_fraction(z, dim=-1)[0, 0], torch.tensor([2 / 3, 1 / 3]))
    assert torch.equal(ob.l1_norm(z, dim=(-1,))[0, 0], torch.tensor([2.5, 1.0]))
    below = ob.fraction_below(z, [0.0, 0.5, 0.6, 3.0])
    assert below.shape == (2, 5, 4)
    torch.testing.assert_close(below[1, 2], torch.tensor([0, 3 / 6, 4 / 6, 1]))
    assert ob.fraction_below(z, []).shape == (2, 5, 0)


def test_sparsity_of_half_precision_is_counted_in_float32():
    z = torch.ones(300, 7, dtype=torch.bfloat16)  # bfloat16 could not count past 256
    assert ob.l0_norm(z) == ob.l1_norm(z) == 2100
    assert ob.fraction_below(z, [2.0]).dtype == torch.float32
