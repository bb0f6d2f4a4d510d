import numpy as np
import pytest
import torch

from codingrate import objective as ob
from codingrate.objective import effective_rank
from codingrate.objective.signal import orthogonality_gap, orthonormal_columns
from tests.refusals import refused


@pytest.mark.parametrize("arrangement", ["orthonormal", "incoherent"])
def test_each_basis_is_orthonormal(arrangement, rng):
    bases = ob.random_bases(3, 17, 5, arrangement, rng, torch.float64)
    assert bases.shape == (3, 17, 5)
    torch.testing.assert_close(bases.mT @ bases, torch.eye(5, dtype=torch.float64).expand(3, 5, 5))


def test_arrangements_differ_in_coherence(rng):
    assert ob.coherence(ob.random_bases(3, 17, 5, "orthonormal", rng, torch.float64)) < 1e-12
    assert 0.1 < ob.coherence(ob.random_bases(3, 17, 5, "incoherent", rng, torch.float64)) < 1
    assert ob.coherence(ob.random_bases(1, 17, 5, generator=rng)) == 0


def test_coherence_is_the_largest_cosine_and_is_not_normalized():
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


def naive(z):
    """From the singular values themselves, one sample at a time."""
    sigma = np.linalg.svd(z.double().numpy(), compute_uv=False)
    p = sigma / sigma.sum()
    return float(np.exp(-sum(share * np.log(share) for share in p if share > 0)))


def test_equals_the_entropy_of_the_singular_values(case):
    z, _ = case
    z = z * torch.logspace(0, -3, z.shape[-1], dtype=z.dtype)  # singular values of several sizes
    found = effective_rank(z)
    assert found.shape == z.shape[:-2]
    expected = torch.tensor([naive(sample) for sample in z.reshape(-1, *z.shape[-2:])], dtype=z.dtype)
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-8, atol=0)


def test_planted_ranks(rng):
    frame = torch.linalg.qr(torch.randn(23, 17, generator=rng, dtype=torch.float64))[0]
    for rank in (1, 5, 17):
        z = frame[:, :rank] @ torch.linalg.qr(torch.randn(19, rank, generator=rng, dtype=torch.float64))[0].mT
        assert effective_rank(z).item() == pytest.approx(rank, rel=1e-6)
        assert effective_rank(z).item() <= rank * (1 + 1e-12)
    uneven = frame[:, :2] @ torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)) @ frame[:2, :2].mT
    two = effective_rank(torch.diag(torch.tensor([3.0, 1.0, 0.0])))
    assert two.item() == pytest.approx(4 / 3**0.75)  # exp(−¾ log ¾ − ¼ log ¼)
    assert 1 < effective_rank(uneven) < 2


def test_scale_zero_rows_and_precision_change_nothing(rng):
    z = torch.randn(2, 11, 7, generator=rng, dtype=torch.float64)
    expected = effective_rank(z)
    for scale in (1e-200, 1e200):
        torch.testing.assert_close(effective_rank(z * scale), expected)
    padded = torch.cat([z, torch.zeros(2, 5, 7, dtype=z.dtype)], 1)
    torch.testing.assert_close(effective_rank(padded), expected)
    single = effective_rank(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-6, atol=0)
    half = z.bfloat16()
    assert effective_rank(half).dtype == torch.float32
    torch.testing.assert_close(effective_rank(half).double(), effective_rank(half.double()), rtol=1e-6, atol=0)


def test_zero_and_bad_samples_leave_the_others_alone(rng):
    z = torch.randn(4, 7, 5, generator=rng)
    good = effective_rank(z)
    z[0] = 0
    z[2, 3, 1] = torch.nan
    z[3, 0, 0] = torch.inf
    found = effective_rank(z)
    assert found[0] == 0
    assert found[1] == good[1]
    assert found[2:].isnan().all()
    assert effective_rank(z[:0]).shape == (0,)


def test_tokens_must_be_tokens():
    refused("floating-point tensor", effective_rank, torch.ones(3, 2, dtype=torch.int64))
    refused("z must be tokens", effective_rank, torch.ones(3))


def test_orthonormal_columns_leave_orthonormal_matrices_and_signs_alone(rng):
    q = torch.linalg.qr(torch.randn(7, 3, generator=rng, dtype=torch.float64))[0]
    scaled = q * torch.tensor([2.0, 3.0, 5.0])
    torch.testing.assert_close(orthonormal_columns(q), q)
    torch.testing.assert_close(orthonormal_columns(scaled), q)
    torch.testing.assert_close(orthonormal_columns(-scaled), -q)


def test_orthogonality_gap_by_hand():
    """MᵀM − I is [[3, 2], [2, 0]] for columns (2, 0, 0) and (1, 0, 0), so that the gap is √17."""
    matrix = torch.tensor([[2.0, 1.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert float(orthogonality_gap(matrix)) == pytest.approx(17**0.5)
    assert float(orthogonality_gap(torch.eye(5, 3))) == 0
