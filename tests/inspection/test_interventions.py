"""Interventions against models whose weights or configs are edited directly."""

import copy
import json

import pytest
import torch

import codingrate as cr
from codingrate.inspection import Intervention, intervene, rank_heads, retrace, trace
from codingrate.operators import ATTENTION
from tests.models import toys
from tests.refusals import refused

IMAGES = torch.randn(3, 3, 21, 14, generator=torch.Generator().manual_seed(0))


def classifier(**fields):
    torch.manual_seed(0)
    return cr.models.CrateForImageClassification(toys.vision(**fields)).eval()


def same(model, other, **inputs):
    given = inputs or {"pixel_values": IMAGES}
    with torch.no_grad():
        torch.testing.assert_close(model(**given).logits, other(**given).logits)


def off(head, size=5):
    """Columns of a head, numbered from 1, in the output map."""
    return slice((head - 1) * size, head * size)


@pytest.mark.parametrize("attention", ["mssa", "mhsa", "tssa"])
def test_a_head_that_is_off_has_no_part_in_the_output_map(attention):
    model = classifier(attention=attention)
    edited = copy.deepcopy(model)
    with torch.no_grad():
        edited.crate.layers[1].attention.output.weight[:, off(3)] = 0
        edited.crate.layers[1].attention.output.weight[:, off(1)] = 0
    same(intervene(model, Intervention(heads=[(2, 3), (2, 1)])), edited)


@pytest.mark.parametrize("attention", ATTENTION.names())
def test_all_heads_off_is_no_attention(attention):
    model = classifier(attention=attention)
    changed = intervene(model, Intervention(heads=[(layer, head) for layer in (1, 2) for head in (1, 2, 3)]))
    edited = copy.deepcopy(model)
    for layer in edited.crate.layers:
        bias = getattr(getattr(layer.attention, "output", None), "bias", None)

        def nothing(z, *_, bias=bias):
            return torch.zeros_like(z) if bias is None else bias.expand_as(z)

        layer.attention.forward = nothing
    with torch.no_grad():
        hidden = [m.crate(IMAGES).last_hidden_state for m in (changed, edited)]
    torch.testing.assert_close(*hidden)


@pytest.mark.parametrize("factor", [0.5, 0.0, 0.3, 3.0])
@pytest.mark.parametrize("sparsifier", ["ista", "ista-soft", "prox"])
def test_scaled_settings_are_those_of_an_edited_config(sparsifier, factor):
    model = classifier(sparsifier=sparsifier, sparsity=0.4, step_size=0.2)
    edited = classifier(sparsifier=sparsifier, sparsity=1.2)
    edited.load_state_dict(model.state_dict())
    for layer in edited.crate.layers:  # a config takes no step of zero
        layer.sparsifier.step_size = 0.2 * factor
    with torch.no_grad():
        model(IMAGES)  # fills the cache of the product
    assert sparsifier == "prox" or model.crate.layers[0].sparsifier._cached is not None
    changed = intervene(model, Intervention(sparsity=3.0, step_size=factor))
    same(changed, edited)
    assert changed.config.sparsity == pytest.approx(1.2)
    assert (model.config.sparsity, model.config.step_size) == (0.4, 0.2)


def test_an_early_exit_is_a_model_with_fewer_layers():
    model = classifier()
    edited = classifier(num_hidden_layers=1)
    edited.load_state_dict(model.state_dict(), strict=False)
    same(intervene(model, Intervention(layers=1)), edited)


def test_a_removed_atom_is_a_zero_in_the_code():
    model = classifier()
    changed = intervene(model, Intervention(atoms=[(1, 2), (2, 15)]))
    with torch.no_grad():
        codes = changed(IMAGES, output_hidden_states=True).hidden_states
        own = model(IMAGES, output_hidden_states=True).hidden_states
        expected = own[1].clone()
        expected[..., 1] = 0
        torch.testing.assert_close(codes[1], expected)
        second = model.crate.layers[1](expected)[0]
        second[..., 14] = 0
        torch.testing.assert_close(codes[2], second)
    assert own[1][..., 1].any()


def test_text_models_generate_with_heads_off():
    torch.manual_seed(0)
    model = cr.models.CrateForCausalLM(toys.causal()).eval()
    edited = copy.deepcopy(model)
    with torch.no_grad():
        edited.crate.layers[0].attention.output.weight[:, off(2, 7)] = 0
    ids = torch.randint(0, 29, (2, 5))
    changed = intervene(model, Intervention(heads=[(1, 2)]))
    same(changed, edited, input_ids=ids)
    texts = [m.generate(input_ids=ids, max_new_tokens=6, do_sample=False) for m in (changed, edited)]
    assert torch.equal(*texts)


def test_weights_are_shared_and_the_model_is_unchanged():
    model = classifier()
    with torch.no_grad():
        before = model(IMAGES).logits
        changed = intervene(model, Intervention(heads=[(1, 1)], atoms=[(2, 3)], sparsity=2.0, layers=2))
        assert not torch.allclose(changed(IMAGES).logits, before)
        torch.testing.assert_close(model(IMAGES).logits, before, rtol=0, atol=0)
    assert all(a is b for a, b in zip(model.parameters(), changed.parameters(), strict=True))
    same(intervene(model, Intervention()), model)


def test_the_ranking_switches_off_one_head_after_the_other():
    model = classifier()
    table = rank_heads(model, pixel_values=IMAGES[:1])
    with torch.no_grad():
        before = model(IMAGES[:1]).logits.softmax(-1)[0]
        for row in table.itertuples():
            after = intervene(model, Intervention(heads=[(row.layer, row.head)]))(IMAGES[:1]).logits.softmax(-1)[0]
            assert row.before == pytest.approx(float(before.max()), abs=1e-6)
            assert row.after == pytest.approx(float(after[before.argmax()]), abs=1e-6)
            assert row.drop == row.before - row.after
    assert len(table) == 6
    assert table["drop"].is_monotonic_decreasing
    other = rank_heads(model, 2, pixel_values=IMAGES[:1])
    assert other["before"][0] == pytest.approx(float(before[2]), abs=1e-6)


@pytest.mark.parametrize("position", [0, 2, -1])
def test_the_ranking_of_a_text_model_is_for_the_answer_at_a_position(position):
    torch.manual_seed(0)
    model = cr.models.CrateForCausalLM(toys.causal()).eval()
    ids = torch.randint(0, 29, (1, 5))
    table = rank_heads(model, position=position, input_ids=ids)
    with torch.no_grad():
        before = model(input_ids=ids).logits[0, position].softmax(-1)
        for row in table.itertuples():
            after = intervene(model, Intervention(heads=[(row.layer, row.head)]))(input_ids=ids).logits[0, position]
            assert row.before == pytest.approx(float(before.max()), abs=1e-6)
            assert row.after == pytest.approx(float(after.softmax(-1)[before.argmax()]), abs=1e-6)


def test_plain_values_reproduce_an_intervention():
    intervention = Intervention(heads=[[2, 1], [1, 3], (2, 1)], sparsity=0.5, layers=2)
    assert intervention.heads == ((1, 3), (2, 1))
    text = json.dumps(intervention.to_dict())
    assert Intervention.from_dict(json.loads(text)) == intervention
    assert Intervention().to_dict() == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": [(3, 1)]}, "heads: (3, 1) is not there; the model has 2 layers of 3 heads"),
        ({"atoms": [(1, 16)]}, "the model has 2 layers of 15 atoms"),
        ({"heads": [(0, 1)]}, "pairs (layer, number), numbered from 1"),
        ({"heads": 3}, "heads is 3; it must be a list of pairs"),
        ({"heads": [(True, 1)]}, "numbered from 1"),
        ({"layers": 3}, "layers is 3; the model has 2"),
        ({"layers": 1.5}, "layers is 1.5"),
        ({"sparsity": float("nan")}, "sparsity is nan; it must be a factor"),
        ({"step_size": "2"}, "step_size is '2'"),
        ({"head": [(1, 1)]}, "did you mean 'heads'?"),
    ],
)
def test_what_the_model_does_not_have_is_refused(changes, message):
    refused(message, lambda: intervene(classifier(), Intervention.from_dict(changes)))


def test_a_black_box_has_heads_and_layers_only():
    model = classifier(attention="mhsa", sparsifier="mlp")
    intervene(model, Intervention(heads=[(1, 1)], layers=1))
    refused("has no atoms, λ and η", intervene, model, Intervention(sparsity=2.0))
    refused("a mapping with the keys heads, atoms", Intervention.from_dict, [1])
    refused("one sample", rank_heads, model, pixel_values=IMAGES)


def test_a_run_with_an_intervention_uses_it_everywhere():
    run = cr.Run("crate-tiny-patch16-224")
    changed = run.intervene(heads=[(12, 1), (12, 2), (12, 3)], layers=12)
    pixels = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert not torch.allclose(run.loaded()(pixels).logits, changed.loaded()(pixels).logits)
        same(intervene(run.model(), changed.intervention), changed.model(), pixel_values=pixels)
    assert run.intervention is None
    refused("layers is 13", run.intervene, layers=13)


CHANGES = [
    {"heads": [(2, 1)]},
    {"atoms": [(2, 3)], "heads": [(1, 2)]},
    {"sparsity": 2.0},
    {"step_size": 0.5, "layers": 1},
    {"layers": 1},
    {"heads": [(2, 2)], "layers": 1},
    {},
]


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize("changes", CHANGES)
def test_a_retrace_is_the_trace_of_the_changed_model(kind, changes):
    torch.manual_seed(0)
    text = cr.models.CrateForCausalLM(toys.causal()).eval()
    model, inputs = (classifier(), IMAGES) if kind == "image" else (text, torch.randint(0, 29, (2, 5)))
    changed = Intervention.from_dict(changes)
    original = trace(model, inputs)
    ours, expected = retrace(model, changed, original, inputs), trace(intervene(model, changed), inputs)
    assert ours.encoder_depth == expected.encoder_depth
    assert len(ours.layers) == len(expected.layers)
    torch.testing.assert_close(ours.logits, expected.logits)
    torch.testing.assert_close(ours.tokens, expected.tokens)
    torch.testing.assert_close(ours.compressed, expected.compressed)
    torch.testing.assert_close(ours.bases, expected.bases)
    first = changed.first_layer(2)
    assert all(a is b for a, b in zip(ours.tokens[:first], original.tokens, strict=False))
    torch.testing.assert_close(trace(model, inputs).logits, original.logits, rtol=0, atol=0)  # it stays as it is


def test_the_ranking_reports_its_progress():
    done = []
    rank_heads(classifier(), progress=lambda *counts: done.append(counts), pixel_values=IMAGES[:1])
    assert done == [(1, 2), (2, 2)]
