"""What a model hands out along its way, and that asking for it changes nothing."""

import pytest
import torch

from codingrate.models import CrateForSequenceClassification
from codingrate.operators import ATTENTION

from . import toys

every = pytest.mark.parametrize("task", toys.TASKS)
DEPTH = {"masked-autoencoding": 4}  # encoder and decoder


def layers_of(model):
    body = getattr(model, "crate", model)
    return [*body.layers, *getattr(model, "decoder_layers", [])]


@every
def test_hidden_states_are_the_tokens_between_the_layers(task):
    model, given = toys.build(task).eval(), toys.inputs(task)
    quiet = model(**given)
    output = model(**given, output_hidden_states=True)
    depth = DEPTH.get(task, 2)
    assert quiet.hidden_states is None
    assert quiet.compressed_states is None
    assert len(output.hidden_states) == depth + 1
    assert len(output.compressed_states) == depth
    torch.testing.assert_close(toys.main_output(output), toys.main_output(quiet))
    states = list(output.hidden_states)
    if "unnormalized_state" in output:  # the last state of a text model is what its head reads
        torch.testing.assert_close(states[-1], model.crate.norm(output.unnormalized_state))
        states[-1] = output.unnormalized_state
    for i, layer in enumerate(layers_of(model)):
        z, half, _ = layer(states[i])
        torch.testing.assert_close(states[i + 1], z)
        torch.testing.assert_close(output.compressed_states[i], half)
        assert not torch.allclose(half, z)


def test_the_first_state_is_the_embedding_and_the_last_comes_before_the_norm():
    model = toys.build("body", final_norm=True).eval()
    images = toys.pixels()
    output = model(images, output_hidden_states=True)
    torch.testing.assert_close(output.hidden_states[0], model.embedding(images))
    torch.testing.assert_close(output.last_hidden_state, model.norm(output.hidden_states[-1]))
    assert not torch.allclose(output.last_hidden_state, output.hidden_states[-1])


@every
def test_attentions_are_those_of_the_layers(task):
    model, given = toys.build(task).eval(), toys.inputs(task)
    output = model(**given, output_hidden_states=True, output_attentions=True)
    assert model(**given).attentions is None
    assert len(output.attentions) == DEPTH.get(task, 2)
    for i, layer in enumerate(layers_of(model)):
        expected = layer(output.hidden_states[i], None, True)[2]
        torch.testing.assert_close(output.attentions[i], expected)
        torch.testing.assert_close(expected.sum(-1), torch.ones_like(expected[..., 0]))


@every
def test_the_config_can_ask_as_well(task):
    model, given = toys.build(task, output_hidden_states=True, output_attentions=True), toys.inputs(task)
    output = model(**given)
    assert output.hidden_states is not None
    assert output.attentions is not None
    silent = model(**given, output_hidden_states=False, output_attentions=False)
    assert silent.hidden_states is None
    assert silent.attentions is None


@every
def test_tuples_hold_the_same(task):
    model, given = toys.build(task).eval(), toys.inputs(task)
    named = model(**given)
    plain = model(**given, return_dict=False)
    assert isinstance(plain, tuple)
    assert len(plain) == len(named.to_tuple())
    for a, b in zip(plain, named.to_tuple(), strict=True):
        assert torch.equal(a, b)
    if task != "body":
        assert plain[0].ndim == 0  # the loss comes first


@pytest.mark.parametrize("task", ["image-classification", "masked-lm", "sequence-classification", "causal-lm"])
def test_without_labels_there_is_no_loss(task):
    model, given = toys.build(task), toys.inputs(task)
    given.pop("labels")
    assert model(**given).loss is None


@pytest.mark.parametrize("task", [task for task in toys.TASKS if task != "body"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_lowers_the_loss(task, dropout):
    model, given = toys.build(task, dropout=dropout).train(), toys.inputs(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(**given).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert missing == []
    if dropout:
        assert float(model(**given).loss.detach()) != float(model(**given).loss.detach())


@pytest.mark.parametrize("attention", ATTENTION.names())
@pytest.mark.parametrize("task", ["image-classification", "causal-lm"])
def test_every_pair_of_operators_makes_a_model(task, attention):
    for sparsifier in ("ista", "ista-soft", "prox", "odl", "mlp", "none"):
        model = toys.build(task, attention=attention, sparsifier=sparsifier, skip="residual")
        output = model(**toys.inputs(task))
        output.loss.backward()
        assert output.logits.isfinite().all(), sparsifier
        missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert missing == [], sparsifier


@pytest.mark.parametrize("attention", ATTENTION.names())
def test_a_causal_model_cannot_see_the_future(attention):
    model = toys.build("causal-lm", attention=attention).double().eval()
    ids = torch.randint(29, (3, 11))
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 29
    whole, other, shorter = model(ids).logits, model(changed).logits, model(ids[:, :6]).logits
    torch.testing.assert_close(other[:, :6], whole[:, :6], rtol=0, atol=1e-12)
    torch.testing.assert_close(shorter, whole[:, :6], rtol=0, atol=1e-12)
    assert not torch.allclose(other[:, 6:], whole[:, 6:])


@pytest.mark.parametrize("config", [toys.text, toys.causal])
def test_the_mean_of_a_text_leaves_out_padding(config):
    torch.manual_seed(0)
    model = CrateForSequenceClassification(config(pooling="mean")).eval()
    ids, mask = torch.randint(3, 29, (2, 9)), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    body = model.crate(input_ids=ids[1:, :6]).last_hidden_state
    expected = model.head(torch.tanh(model.dense(body.mean(dim=1))))
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits[1:], expected)
    torch.testing.assert_close(model(input_ids=ids[1:, :6]).logits, expected)
    assert not torch.allclose(CrateForSequenceClassification(config()).pool(body, None), body.mean(dim=1))


def test_logits_at_some_positions_are_those_of_all():
    model, given = toys.build("masked-lm").eval(), toys.inputs("masked-lm")
    ids = given["input_ids"]
    wanted = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    labels = torch.where(wanted, ids, -100)
    whole, part = model(input_ids=ids, labels=labels), model(input_ids=ids, labels=labels, logits_at=wanted)
    assert part.logits.shape == (int(wanted.sum()), 29)
    torch.testing.assert_close(part.logits, whole.logits[wanted])
    torch.testing.assert_close(part.loss, whole.loss)
