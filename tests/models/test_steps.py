"""The derived step along attention, several proximal steps and momentum between layers, against plain loops."""

from itertools import pairwise

import pytest
import torch

from codingrate.models.layers import DecoderLayer, EncoderLayer

from . import naive, toys
from .test_bad_input import refuses

close = {"rtol": 0, "atol": 1e-10}  # float64 through a few layers
LAYERS = [(EncoderLayer, naive.encoder_layer), (DecoderLayer, naive.decoder_layer)]


def drawn(module):
    """The module in float64 with every parameter drawn at random."""
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return module


def same(module, ours, theirs, z):
    """Assert that two outputs agree, and their gradients in z and in every parameter."""
    torch.testing.assert_close(ours, theirs, **close)
    leaves, direction = [z, *module.parameters()], torch.randn_like(ours)
    for a, b in zip(*(torch.autograd.grad((out * direction).sum(), leaves) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
        assert float(a.abs().max()) > 0


@pytest.mark.parametrize("skip", ["normalized", "residual"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("layer", "reference"), LAYERS, ids=["encoder", "decoder"])
def test_the_derived_step_is_its_equation(layer, reference, learned, skip):
    config = toys.vision(step="derived", step_share=0.3, learn_step=learned, skip=skip, step_size=0.3)
    module, z = drawn(layer(config)), torch.randn(3, 7, 15, dtype=torch.float64, requires_grad=True)
    weights = dict(module.named_parameters())
    assert ("step.logit" in weights) == learned
    same(module, module(z)[0], reference(z, weights, config)[0], z)


def test_a_derived_step_of_tied_attention_keeps_tokens_between_start_and_attention():
    """Z^{l+1/2} = (1 - s)S + s MSSA(S), also for the first tokens alone."""
    module = drawn(EncoderLayer(toys.vision(attention="mssa-tied", step="derived", step_share=0.3)))
    z = torch.randn(3, 7, 15, dtype=torch.float64)
    start = module.attention_norm(z)
    torch.testing.assert_close(module(z)[1], 0.7 * start + 0.3 * module.attention(start), **close)
    torch.testing.assert_close(module(z, None, False, 2)[1], module(z)[1][:, :2], **close)


def test_a_share_starts_where_the_config_says_and_is_saved(tmp_path):
    model = toys.build("image-classification", step="derived", step_share=0.2, learn_step=True)
    shares = [float(layer.step.logit.sigmoid().detach()) for layer in model.crate.layers]
    assert shares == pytest.approx([0.2, 0.2])
    with torch.no_grad():
        model.crate.layers[1].step.logit.fill_(3)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert [float(layer.step.logit.detach()) for layer in again.crate.layers] == pytest.approx([-1.3862944, 3])


def test_the_decoder_undoes_a_derived_step_to_second_order():
    """Without LayerNorm (1 + s)Y - s MSSA(Y) of Y = (1 - s)Z + s MSSA(Z) is Z up to O(s^2)."""
    errors, z = [], torch.randn(2, 7, 15, dtype=torch.float64)
    bases = torch.randn(15, 15) * 0.2
    for share in (0.02, 0.01, 0.005):
        config = toys.vision(attention="mssa-tied", step="derived", step_share=share, skip="residual")
        encoder, decoder = EncoderLayer(config).double(), DecoderLayer(config).double()
        for layer in (encoder, decoder):
            layer.attention_norm = layer.synthesis_norm = torch.nn.Identity()
            with torch.no_grad():
                layer.attention.project.weight.copy_(bases)
        with torch.no_grad():
            decoder.synthesis.dictionary.copy_(torch.eye(15))
            errors.append(float((decoder(encoder(z)[1])[0] - z).norm()))
    for coarse, fine in pairwise(errors):
        assert coarse / fine == pytest.approx(4, rel=0.1)


def test_impossible_steps_are_refused():
    refuses("^step 'derived' needs attention 'mssa' or 'mssa-tied', not 'mhsa'$", toys.vision, step="derived",
            attention="mhsa")  # fmt: skip
    refuses("^learn_step needs step='derived'", toys.vision, learn_step=True)
    for share in (0, 1, 1.5):
        refuses("^step_share is .*; it must be above 0 and below 1$", toys.vision, step="derived", step_share=share)


@pytest.mark.parametrize("skip", ["normalized", "residual"])
def test_momentum_is_its_equation(skip):
    """Layer l reads Z^l + mu_l(Z^l - Z^(l-1)); the first has nothing to extrapolate from."""
    model = drawn(toys.build("body", num_hidden_layers=4, momentum=True, skip=skip, step_size=0.3))
    weights, z = dict(model.named_parameters()), torch.randn(3, 7, 15, dtype=torch.float64, requires_grad=True)
    expected, previous = z, None
    for index in range(4):
        own = naive.part(weights, f"layers.{index}.")
        assert ("momentum" in own) == (index > 0)
        read = expected if previous is None else expected + own["momentum"] * (expected - previous)
        previous = expected
        expected = naive.encoder_layer(read, own, model.config)[0]
    ours = model.trace(False, False).run(model.layers, z)
    same(model.layers, ours, expected, z)


def test_momentum_starts_as_no_momentum_and_learns():
    plain, model = (toys.build("image-classification", momentum=momentum) for momentum in (False, True))
    model.load_state_dict(plain.state_dict(), strict=False)
    given = toys.inputs("image-classification")
    torch.testing.assert_close(model(**given).logits, plain(**given).logits, rtol=0, atol=0)
    model(**given).loss.backward()
    assert [layer.momentum is None for layer in model.crate.layers] == [True, False]
    assert float(model.crate.layers[1].momentum.grad.abs()) > 0


@torch.no_grad()
def test_several_steps_are_in_the_layer():
    config = toys.vision(ista_steps=3, step_size=0.3)
    module, z = drawn(EncoderLayer(config)), torch.randn(3, 7, 15, dtype=torch.float64)
    out, half, _ = module(z)
    normed = naive.layer_norm(half, naive.part(dict(module.named_parameters()), "sparsifier_norm."), 1e-5)
    D, codes = module.sparsifier.dictionary, normed
    for _ in range(3):
        codes = torch.clamp(codes - 0.3 * ((codes @ D.T - normed) @ D) - 0.03, min=0)
    torch.testing.assert_close(out, codes, **close)


def derived_prox(z: torch.Tensor, n: int, dictionary: torch.Tensor, lam: float, eps: float) -> torch.Tensor:
    """The equation for a sample of n tokens."""
    alpha = z.shape[-1] / (n * eps**2)
    return torch.clamp((1 + 4 / (9 * (1 + alpha))) * (z @ dictionary) - 4 * lam / (9 * alpha), min=0)


def test_prox_derives_alpha_from_the_number_of_real_tokens():
    fields = {"sparsifier": "prox", "prox_alpha": None, "coding_precision": 0.3, "sparsity": 0.2}
    module = drawn(EncoderLayer(toys.vision(**fields)))
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    z = torch.randn(2, 7, 15, dtype=torch.float64, requires_grad=True)
    out = module(z, mask)[0]
    normed = module.sparsifier_norm(module(z, mask)[1])
    D = module.sparsifier.dictionary
    expected = torch.stack([derived_prox(normed[i], n, D, 0.2, 0.3) for i, n in enumerate((7, 4))])
    same(module, out, expected, z)
    torch.testing.assert_close(module(z[1:, :4])[0], out[1:, :4], **close)  # padding changes nothing
    torch.testing.assert_close(module(z, mask, False, 1)[0], out[:, :1], **close)  # nor how many are computed
    torch.testing.assert_close(module.sparsifier(normed[0]), expected[0], **close)  # the operator alone
    half_precision = module.bfloat16()(z.detach().bfloat16(), mask)[0]
    assert half_precision.dtype == torch.bfloat16
    assert float((half_precision - expected).detach().norm() / expected.detach().norm()) < 0.05


def test_a_constant_alpha_stays_what_it_was():
    module = drawn(EncoderLayer(toys.vision(sparsifier="prox", prox_alpha=0.7, sparsity=0.2)))
    out, half, _ = module(torch.randn(3, 7, 15, dtype=torch.float64))
    expected = derived_prox(module.sparsifier_norm(half), 1, module.sparsifier.dictionary, 0.2, (15 / 0.7) ** 0.5)
    torch.testing.assert_close(out, expected, **close)
