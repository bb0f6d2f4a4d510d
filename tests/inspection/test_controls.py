"""Measures of a layer's steps against naive float64 ones, and the controls that a verdict has to beat."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from codingrate import create_model, inspection, objective
from codingrate.inspection.measure import steps
from codingrate.inspection.measure.steps import LayerStep
from codingrate.inspection.report.layers import Design, layer_panels

SMALL = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "patch_size": 8}
EPS = 0.3


def model_and_pixels(**fields):
    torch.manual_seed(0)
    model = create_model("crate-tiny-patch16-224", **SMALL, num_labels=7, **fields).double().eval()
    return model, torch.randn(4, 3, 32, 32, dtype=torch.float64)


def step_of(model, pixels, layer=1):
    passed = inspection.trace(model, pixels)
    module, inputs = passed.layers[layer], passed.attention_input(layer)
    start = inputs if module.normalized_skip else passed.tokens[layer]
    return LayerStep(module, inputs, start, passed.compressed[layer], passed.tokens[layer + 1], EPS)


def unit(z):
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def naive_rate(z, bases):
    """R^c of unit tokens on orthonormal bases of the column spaces, by eigenvalues of n × n matrices."""
    total = 0.0
    for u in bases:
        w = unit(z) @ np.linalg.svd(u, full_matrices=False)[0]
        total += 0.5 * np.log(np.linalg.eigvalsh(np.eye(len(z)) + u.shape[1] / (len(z) * EPS**2) * w @ w.T)).sum()
    return total


def naive_alignment(start, update, bases):
    """The cosine of the velocities of unit tokens, by finite differences of the naive rate."""
    directions = [unit(start), unit(start + 1e-6 * update)]
    velocity = (directions[1] - directions[0]) / 1e-6
    gradient, x = np.zeros_like(start), unit(start)
    for index in np.ndindex(*start.shape):
        moved = x.copy()
        moved[index] += 1e-6
        other = x.copy()
        other[index] -= 1e-6
        gradient[index] = (naive_rate(moved, bases) - naive_rate(other, bases)) / 2e-6  # `unit` projects on the sphere
    return -(velocity * gradient).sum() / np.linalg.norm(velocity) / np.linalg.norm(gradient)


@pytest.mark.parametrize("fields", [{}, {"skip": "residual"}, {"attention": "mhsa", "sparsifier": "mlp"}], ids=str)
def test_normalized_measures_equal_naive_ones(fields):
    model, pixels = model_and_pixels(**fields)
    step = step_of(model, pixels)
    bases = [u.numpy() for u in step.layer.attention.bases.detach()]
    measures = {name: compute() for name, compute in step.measures().items()}
    for index in range(2):
        start, after, sparse = (z[index].detach().numpy() for z in (step.start, step.after, step.sparse))
        before, later = naive_rate(start, bases), naive_rate(after, bases)
        assert float(measures["before_normalized"][index]) == pytest.approx(before, rel=1e-9)
        assert float(measures["compression_normalized"][index]) == pytest.approx(later, rel=1e-9)
        assert float(measures["change"][index]) == pytest.approx(later - before, rel=1e-7)
        whole = unit(sparse)
        rate = 0.5 * np.linalg.slogdet(np.eye(len(whole)) + 30 / (len(whole) * EPS**2) * whole @ whole.T)[1]
        assert float(measures["rate_normalized"][index]) == pytest.approx(rate, rel=1e-9)
        reduction = rate - naive_rate(sparse, bases)
        assert float(measures["reduction_normalized"][index]) == pytest.approx(reduction, rel=1e-7)
        alignment = naive_alignment(start, after - start, bases)
        assert float(measures["alignment"][index]) == pytest.approx(alignment, abs=1e-5)


def test_the_whole_alignment_and_the_objective_are_those_of_autograd():
    model, pixels = model_and_pixels(skip="residual")
    step = step_of(model, pixels)
    bases = step.layer.attention.bases.detach()
    unit = torch.nn.functional.normalize(step.start, dim=-1).requires_grad_()
    (gradient,) = torch.autograd.grad(objective.normalized_compression(unit, bases, EPS).sum(), unit)
    (raw,) = torch.autograd.grad(
        objective.subspace_coding_rate(unit, objective.orthonormal_columns(bases), EPS).sum(), unit
    )
    measures = {name: compute() for name, compute in step.measures().items()}
    velocity = (step.update / step.start.norm(dim=-1, keepdim=True)).flatten(1)
    expected = torch.nn.functional.cosine_similarity(velocity, -raw.flatten(1))
    torch.testing.assert_close(measures["alignment_whole"], expected)
    along = (step.update * unit).sum(-1, keepdim=True) * unit
    turned = ((step.update - along) / step.start.norm(dim=-1, keepdim=True)).flatten(1)
    torch.testing.assert_close(
        measures["alignment"], torch.nn.functional.cosine_similarity(turned, -gradient.flatten(1)).detach()
    )
    value = objective.sparse_rate_reduction(step.sparse, bases, EPS, 0.1)
    torch.testing.assert_close(measures["objective"], value)


def test_normalized_measures_ignore_norms_and_bases():
    model, pixels = model_and_pixels(skip="residual")
    step = step_of(model, pixels)
    scale = torch.rand(4, step.start.shape[1], 1, dtype=torch.float64) + 0.1
    mixed = LayerStep(step.layer, step.inputs, step.start, step.after * scale, step.sparse * scale, EPS)
    ours, scaled = ({name: compute() for name, compute in one.measures().items()} for one in (step, mixed))
    for name in ("compression_normalized", "reduction_normalized", "rate_normalized", "hoyer"):
        torch.testing.assert_close(scaled[name], ours[name])
    assert not torch.allclose(scaled["compression"], ours["compression"])
    with torch.no_grad():  # another basis of each subspace
        weight = step.layer.attention.project.weight
        weight.copy_((torch.randn(5, 6, 6, dtype=torch.float64) @ weight.unflatten(0, (5, 6))).flatten(0, 1))
    again = LayerStep(step.layer, step.inputs, step.start, step.after, step.sparse, EPS)
    torch.testing.assert_close(again.measures()["compression_normalized"](), ours["compression_normalized"])
    torch.testing.assert_close(again.measures()["alignment"](), ours["alignment"])


def test_steepest_descent_is_aligned_and_small_steps_along_it_lower_the_rate():
    model, pixels = model_and_pixels(skip="residual")  # tokens of different lengths
    step = step_of(model, pixels)
    torch.testing.assert_close(step.alignment(step.descent), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(step.alignment(-3 * step.descent), -torch.ones(4, dtype=torch.float64))
    small = LayerStep(step.layer, step.inputs, step.start, step.start + 1e-3 * step.update, step.sparse, EPS)
    best = small.after_update(small.descent)
    assert bool((best < small.normalized(small.start_codes, small.start)).all())
    for control in steps.CONTROLS.values():
        assert bool((best < small.after_update(control(small))).all()), control.__name__


def test_controls_have_the_size_of_the_layers_own_update():
    model, pixels = model_and_pixels(skip="residual")
    step = step_of(model, pixels)
    seen = []

    class Spy(LayerStep):
        def normalized(self, codes, z):
            seen.append(torch.linalg.matrix_norm(z - self.start))
            return super().normalized(codes, z)

    spy = Spy(step.layer, step.inputs, step.start, step.after, step.sparse, EPS)
    for control in steps.CONTROLS.values():
        spy.after_update(control(spy))
    for size in seen:
        torch.testing.assert_close(size, torch.linalg.matrix_norm(step.update))
    assert len(seen) == len(steps.CONTROLS)
    torch.testing.assert_close(
        step.after_update(step.update * 7), step.normalized(step.after_codes, step.after)
    )  # the own update, scaled back


@pytest.mark.parametrize("causal", [False, True])
def test_uniform_attention_is_the_mean_of_the_codes_that_a_token_may_see(causal):
    torch.manual_seed(0)
    model = create_model(
        "crate-gpt-base", hidden_size=24, num_hidden_layers=2, num_attention_heads=3, vocab_size=50, causal=True
    )
    if causal:
        ids = torch.randint(0, 50, (2, 7))
        step = step_of(model.double().eval(), ids)
    else:
        vision, pixels = model_and_pixels()
        step = step_of(vision, pixels)
    found = steps.uniform_attention(step)
    attention = step.layer.attention
    w = attention.codes(step.inputs)
    for t in range(w.shape[2]):
        mean = w[:, :, : t + 1].mean(2) if causal else w.mean(2)
        expected = attention.output(mean.flatten(1))
        torch.testing.assert_close(found[:, t if causal else 0], expected)


class Rounding(torch.nn.Linear):
    """A projection that rounds its input, as quantized ones do: the mean of its outputs is not that of its input."""

    def forward(self, z):
        return super().forward((z * 2).round() / 2)


def test_uniform_attention_behind_a_wrapped_projection_is_the_mean_of_what_it_returns():
    model, pixels = model_and_pixels()
    step = step_of(model, pixels)
    attention = step.layer.attention
    attention.project.__class__ = Rounding
    expected = attention.output(attention.codes(step.inputs).mean(2).flatten(1))
    torch.testing.assert_close(steps.uniform_attention(step)[:, 0], expected)


def test_all_tokens_of_a_layer_have_one_random_vector():
    model, pixels = model_and_pixels()
    vector, other = (steps.random_vector(step_of(model, batch)) for batch in (pixels, pixels[:1]))
    assert vector.shape == (4, 1, 30)
    assert torch.equal(vector[3:], other), "it depends neither on the sample nor on its batch"


def test_random_subspaces_are_orthonormal_and_belong_to_the_layer():
    model, pixels = model_and_pixels()
    step = step_of(model, pixels)
    expected = objective.random_bases(*step.factors[0].shape, "incoherent", torch.Generator().manual_seed(step.seed))
    torch.testing.assert_close(steps.random_subspaces(step), expected.to(step.factors[0]))
    torch.testing.assert_close(expected.mT @ expected, torch.eye(expected.shape[-1]).expand(len(expected), -1, -1))


def test_a_permuted_update_keeps_no_token_in_place():
    model, pixels = model_and_pixels()
    step = step_of(model, pixels)
    permuted = steps.CONTROLS["permuted"](step)
    assert bool((permuted != step.update).any(-1).all())
    torch.testing.assert_close(permuted.sum(1), step.update.sum(1))


def test_ista_beats_its_controls_for_the_dictionary_that_made_the_tokens():
    model, pixels = model_and_pixels()
    step = step_of(model, pixels)
    measures, controls = {name: compute() for name, compute in step.measures().items()}, step.controls()
    x = step.lasso_input
    atoms = step.layer.sparsifier.dictionary.detach()

    def cost(z):
        return (0.5 * (x - z @ atoms.T).square().sum((-2, -1)) + 0.1 * z.abs().sum((-2, -1))).detach()

    torch.testing.assert_close(measures["lasso"], cost(step.sparse) / cost(x.relu()))
    torch.testing.assert_close(controls["lasso_threshold"], cost((x.relu() - 0.01).relu()) / cost(x.relu()))
    torch.testing.assert_close(controls["lasso_gap_permuted"], measures["lasso"] - controls["lasso_permuted"])


class RandomVector(torch.nn.Module):
    """Attention that adds one random vector to all tokens, of the size of the update that it replaces."""

    def __init__(self, attention):
        super().__init__()
        self.inner = attention

    @property
    def bases(self):
        return self.inner.bases

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, z, *args):
        update = self.inner(z, *args)
        vector = torch.randn(len(z), 1, z.shape[-1], generator=torch.Generator().manual_seed(1)).to(z)
        vector = vector.expand_as(update)
        return vector * update.norm(dim=(1, 2), keepdim=True) / vector.norm(dim=(1, 2), keepdim=True)


def compressing_model():
    """A model whose attention really descends on R^c: the exact gradient of the normalized rate."""
    model, pixels = model_and_pixels(skip="residual", sparsifier="none")

    class Descent(RandomVector):
        def forward(self, z, *args):
            step = objective.descent_direction(z, self.inner.bases.detach(), 0.5) * z.norm(dim=-1, keepdim=True)
            return 0.3 * step * z.norm() / step.norm()

    for layer in model.crate.layers:
        layer.attention = Descent(layer.attention)
    return model, pixels


def test_attention_that_descends_agrees_and_its_control_does_not():
    """The verdict on attention changes when the operator is replaced by its own random-vector control."""
    model, pixels = compressing_model()
    table = inspection.layerwise(model, [pixels], controls=True)
    panel = next(panel for panel in layer_panels({"m": table}) if panel.name == "attention-step")
    assert (table["alignment"] > 0.5).all()
    assert next(finding.verdict for finding in panel.findings if "random" in finding.measured) == "agrees"
    for layer in model.crate.layers:
        layer.attention = RandomVector(layer.attention.inner)
    table = inspection.layerwise(model, [pixels], controls=True)
    panel = next(panel for panel in layer_panels({"m": table}) if panel.name == "attention-step")
    assert panel.verdict is not None
    assert panel.verdict != "agrees"
    assert (table["alignment"].abs() < 0.3).all()


@pytest.mark.parametrize("name", list(steps.CONTROLS))
def test_no_control_is_passed_by_itself(name, monkeypatch):
    """Attention that is replaced by one of its controls never beats that control."""
    model, pixels = model_and_pixels(skip="residual")
    layers = list(model.crate.layers)
    for index in range(len(layers)):  # front to back: a control is built from the tokens that a layer reads
        step = step_of(model, pixels, index)
        update = steps.CONTROLS[name](step).expand_as(step.start)
        update = update * step.update.norm(dim=(1, 2), keepdim=True) / update.norm(dim=(1, 2), keepdim=True)
        inner = layers[index].attention
        fixed = RandomVector(inner)
        monkeypatch.setattr(fixed, "forward", lambda z, *args, update=update: update.detach())
        layers[index].attention = fixed
    table = inspection.layerwise(model, [pixels], controls=True)
    panel = next(p for p in layer_panels({"m": table}) if p.name == "attention-step")
    assert panel.verdict != "agrees"


def test_without_controls_there_is_no_verdict_on_the_layers():
    model, pixels = model_and_pixels()
    table = inspection.layerwise(model, [pixels])
    for panel in layer_panels({"m": table}):
        assert panel.verdict is None, panel.name
        assert "control" in panel.verdict_text


def test_a_black_box_is_not_judged():
    model, pixels = model_and_pixels(attention="mhsa", sparsifier="mlp")
    table = inspection.layerwise(model, [pixels], controls=True)
    designs = {"m": Design.of(model.config)}
    assert all(panel.verdict is None for panel in layer_panels({"m": table}, designs))


def test_several_precisions_in_one_pass():
    model, pixels = model_and_pixels()
    table = inspection.layerwise(model, [pixels], [0.1, 0.5])
    assert table["eps"].tolist() == [0.1] * 3 + [0.5] * 3
    alone = inspection.layerwise(model, [pixels], 0.1)
    assert table.iloc[:3].equals(alone)


def test_columns_of_controls_are_those_of_their_updates():
    model, pixels = model_and_pixels(skip="residual")
    step = step_of(model, pixels)
    columns, again = step.controls(), step_of(model, pixels).controls()
    updates = {
        "uniform": steps.uniform_attention(step).expand_as(step.start),
        "random": steps.random_vector(step),
        "permuted": steps.CONTROLS["permuted"](step),
        "mean": step.start.mean(1, keepdim=True).expand_as(step.start),
    }
    for name, update in updates.items():
        torch.testing.assert_close(columns[f"compression_{name}"], step.after_update(update))
        torch.testing.assert_close(columns[f"gap_{name}"], step.after_normalized - step.after_update(update))
        torch.testing.assert_close(columns[f"alignment_{name}"], step.alignment(update))
    for name, values in columns.items():
        assert torch.equal(values, again[name]), "controls that are drawn at random are drawn again"
    assert not torch.allclose(columns["lasso_permuted"], step.lasso(step.sparse))
