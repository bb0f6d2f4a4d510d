"""Self-distillation: its head against the equations, and the upkeep of its two branches."""

import math

import pytest
import torch

from codingrate import inspection
from codingrate.errors import CrateError
from codingrate.models import CrateForSelfDistillation
from codingrate.models.distillation import distillation_loss, teacher_entropy

from . import toys
from .test_distillation_loss import P, naive_loss, small


def views(batch=5, dtype=torch.float32):
    """Two global views of 21 × 14 pixels, three local ones of 7 × 14."""
    return [
        torch.randn(2, batch, 3, 21, 14, dtype=torch.float64).to(dtype),
        torch.randn(3, batch, 3, 7, 14, dtype=torch.float64).to(dtype),
    ]


def shaken(model, scale=0.1):
    """The same model after a step that went anywhere."""
    with torch.no_grad():
        for parameter in model.student.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def naive_head(head, z):
    """The released head, one vector at a time."""
    w = {name: p.detach() for name, p in head.named_parameters()}

    def gelu(x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    rows = []
    for x in z:
        y = gelu(w["layers.0.weight"] @ x + w["layers.0.bias"])
        y = gelu(w["layers.2.weight"] @ y + w["layers.2.bias"])
        y = w["layers.4.weight"] @ y + w["layers.4.bias"]
        y = y / y.square().sum().sqrt()
        v, g = w["prototypes.direction"], w["prototypes.gain"]
        rows.append(torch.stack([g[j, 0] * (v[j] / v[j].square().sum().sqrt()) @ y for j in range(len(v))]))
    return torch.stack(rows)


def test_the_released_head_compares_unit_vectors_with_prototypes():
    head = small(normalize_prototypes=False).double().student.head
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    z = torch.randn(3, 15, dtype=torch.float64)
    torch.testing.assert_close(head(z), naive_head(head, z), rtol=1e-9, atol=1e-12)


def test_the_papers_head_is_its_equation():
    model = small(projection_head="paper").double()
    head = model.student.head
    assert model.center.shape == (15,)
    assert sum(p.numel() for p in head.parameters()) == 3 * (15 * 15 + 15)
    W1, b1, W2, b2, W3, b3 = (torch.randn_like(p) for p in head.parameters())
    head.load_state_dict(dict(zip(head.state_dict(), (W1, b1, W2, b2, W3, b3), strict=True)))
    z = torch.randn(3, 15, dtype=torch.float64)
    expected = torch.stack([W3 @ (W2 @ (W1 @ x + b1).clamp(min=0) + b2).clamp(min=0) + b3 for x in z])
    torch.testing.assert_close(head(z), expected, rtol=1e-10, atol=1e-12)


def test_the_default_head_has_the_released_sizes():
    with torch.device("meta"):
        head = CrateForSelfDistillation(toys.vision()).student.head
    shapes = [tuple(tensor.shape) for tensor in head.state_dict().values()]
    assert shapes == [
        (2048, 15), (2048,), (2048, 2048), (2048,), (256, 2048), (256,), (65536, 256), (65536, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("initializer", ["torch", "xavier"])
def test_the_head_starts_as_the_release_does(initializer):
    model = small(projection_hidden=211, projection_bottleneck=97, prototypes=307, initializer=initializer)
    head = model.student.head
    for layer in head.layers:
        if isinstance(layer, torch.nn.Linear):
            assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
            assert not layer.bias.any()
    direction = head.prototypes.direction.detach()
    assert float(direction.abs().max()) <= 97**-0.5
    assert float(direction.std()) == pytest.approx(97**-0.5 / 3**0.5, rel=0.02)
    assert (head.prototypes.gain == 1).all()
    for mine, theirs in model.pairs():
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_reach_the_student_alone(normalize):
    model = small(normalize_prototypes=normalize).train()
    model(views=views()).loss.backward()
    assert all(p.grad is None and not p.requires_grad for p in model.teacher.parameters())
    frozen = {name for name, _ in model.student.named_buffers()}
    assert frozen == ({"head.prototypes.gain"} if normalize else set())
    assert all(p.requires_grad and p.grad is not None for p in model.student.parameters())


def test_the_output_is_the_loss_of_its_logits():
    model = shaken(small()).double()
    model.update_center(torch.randn(2, 5, P).double())
    before = model.center.clone()
    output = model(views=views(dtype=torch.float64), student_temperature=0.2, teacher_temperature=0.07)
    assert (output.student_logits.shape, output.teacher_logits.shape) == ((5, 5, P), (2, 5, P))
    torch.testing.assert_close(
        output.loss, naive_loss(output.student_logits, output.teacher_logits, model.center, 0.2, 0.07)
    )
    torch.testing.assert_close(output.entropy, teacher_entropy(output.teacher_logits, model.center, 0.07))
    assert torch.equal(model.center, before)
    as_tuple = model(views=views(dtype=torch.float64), return_dict=False)
    assert [x.shape for x in as_tuple] == [(), (5, 5, P), (2, 5, P), ()]


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_many_crops_at_once_are_the_same_as_one_at_a_time(pooling):
    model = shaken(small(pooling=pooling, class_token=pooling == "class")).double()
    given = views(dtype=torch.float64)
    crops = [crop for group in given for crop in group]
    student = torch.stack([model.student(crop) for crop in crops])
    teacher = torch.stack([model.teacher(crop) for crop in crops[:2]])
    output = model(views=given)
    torch.testing.assert_close(output.student_logits, student)
    torch.testing.assert_close(output.teacher_logits, teacher)
    torch.testing.assert_close(output.loss, distillation_loss(student, teacher, model.center))
    only_global = model(views=given[:1]).loss
    torch.testing.assert_close(only_global, distillation_loss(student[:2], teacher, model.center))


def test_the_teacher_moves_towards_the_student():
    model = shaken(small()).double().eval()
    images = views(dtype=torch.float64)[0][0]
    old = [p.clone() for p in model.teacher.parameters()]
    before = model.features(images)
    model.update_teacher(0.9)
    for mine, theirs, was in zip(model.teacher.parameters(), model.student.parameters(), old, strict=True):
        torch.testing.assert_close(mine, 0.9 * was + 0.1 * theirs)
    assert not torch.allclose(model.features(images), before)  # nothing kept of the weights before
    model.update_teacher(1.0)
    torch.testing.assert_close(next(model.teacher.parameters()), 0.9 * old[0] + 0.1 * next(model.student.parameters()))
    model.update_teacher(0.0)
    for mine, theirs in model.pairs():
        torch.testing.assert_close(mine, theirs)


def test_dropout_is_the_students_alone():
    model = small(dropout=0.5).train()
    assert model.student.training
    assert not any(module.training for module in model.teacher.modules())
    given = views()
    first, second = model(views=given), model(views=given)
    assert torch.equal(first.teacher_logits, second.teacher_logits)
    assert not torch.equal(first.student_logits, second.student_logits)
    model.eval()
    assert torch.equal(model(views=given).student_logits, model(views=given).student_logits)


def test_save_and_load_give_both_branches_and_the_center(tmp_path):
    model = shaken(small()).eval()
    model.update_center(torch.randn(2, 5, P))
    model.save_pretrained(tmp_path)
    again, info = CrateForSelfDistillation.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    saved = model.state_dict()
    assert set(saved) == set(again.state_dict())
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, saved[name]), name
    for name, parameter in again.named_parameters():
        assert parameter.requires_grad == model.get_parameter(name).requires_grad, name
    given = views()
    assert torch.equal(again(views=given).loss, model(views=given).loss)
    assert not torch.equal(model.student(given[0][0]), model.teacher(given[0][0]))


def test_a_checkpoint_of_the_student_makes_the_teacher_too(tmp_path):
    model = shaken(small())
    model.save_pretrained(
        tmp_path, state_dict={k: v for k, v in model.state_dict().items() if k.startswith("student.")}
    )
    again = CrateForSelfDistillation.from_pretrained(tmp_path)
    for mine, theirs in again.pairs():
        assert torch.equal(mine, theirs)
    assert torch.equal(again.center, torch.zeros(P))


def test_an_auto_class_finds_it_and_still_makes_an_autoencoder(tmp_path):
    from transformers import AutoModelForPreTraining

    small().save_pretrained(tmp_path)
    assert type(AutoModelForPreTraining.from_pretrained(tmp_path)) is CrateForSelfDistillation
    assert type(AutoModelForPreTraining.from_config(toys.autoencoding())) is toys.CrateForMaskedAutoencoding


@torch.no_grad()
def test_the_teacher_is_what_is_kept():
    model = shaken(small(final_norm=True)).double()
    model.update_teacher(0.5)
    images = views(dtype=torch.float64)[0][0]
    assert model.crate is model.teacher.crate is model.base_model
    expected = model.teacher.norm(model.teacher.crate(images).last_hidden_state[:, 0])
    torch.testing.assert_close(model.features(images), expected)
    torch.testing.assert_close(model(images).logits, expected)
    backbone = model.as_backbone()
    torch.testing.assert_close(backbone(images).logits, expected)
    assert (backbone.config.num_labels, model.config.num_labels) == (0, 5)
    assert next(backbone.parameters()).data_ptr() != next(model.teacher.parameters()).data_ptr()
    looked = inspection.trace(model, images)
    assert looked.layers == tuple(model.teacher.crate.layers)
    torch.testing.assert_close(looked.tokens[-1], inspection.trace(backbone, images).tokens[-1])


def test_a_backbone_goes_out_and_comes_back():
    model = shaken(small())
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shaken(model).update_teacher(0.0)  # on from what the weights were
    backbone = model.as_backbone(weights)
    for name, tensor in backbone.state_dict().items():
        source = name.replace("head_norm", "norm")
        assert torch.equal(tensor, weights[f"teacher.{source}"]), name
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    other = small()
    other.start_from(backbone)
    images = views()[0][0]
    for branch in (other.student, other.teacher):
        torch.testing.assert_close(branch.features(images), backbone(images).logits)
    assert torch.equal(other.student.head.last_layer().direction, other.teacher.head.last_layer().direction)
    assert not any(p.requires_grad for p in other.teacher.parameters())
    assert small(projection_head="paper").student.head.last_layer().weight.shape == (15, 15)


def test_the_orthogonality_penalty_is_the_students():
    model = small(orthogonality="penalty", orthogonality_weight=0.03).train()
    given = views()
    penalized, plain = model(views=given).loss, model.eval()(views=given).loss
    torch.testing.assert_close(penalized, plain + 0.03 * model.student.crate.orthogonality_penalty())
    project = model.student.crate.layers[0].attention.project.weight
    with_penalty, without = (torch.autograd.grad(loss, project)[0] for loss in (penalized, plain))
    (slope,) = torch.autograd.grad(model.student.crate.orthogonality_penalty(), project)
    assert slope.norm() > 0.1
    torch.testing.assert_close(with_penalty - without, 0.03 * slope, rtol=1e-3, atol=1e-5)


def test_recomputing_layers_changes_no_gradient():
    model, given = small().train(), views()

    def gradients():
        model.zero_grad()
        model(views=given).loss.backward()
        return [p.grad.clone() for p in model.student.parameters() if p.requires_grad]

    expected = gradients()
    model.gradient_checkpointing_enable()
    for found, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_compiles_to_one_graph():
    torch._dynamo.reset()
    model, given = shaken(small()).train(), views()
    output = torch.compile(model, fullgraph=True, backend="aot_eager")(views=given)
    torch.testing.assert_close(output.loss, model(views=given).loss)
    output.loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def test_bfloat16_runs_and_is_near():
    model, given = shaken(small()).eval(), views()
    exact = model(views=given)
    low = model.bfloat16()(views=[group.bfloat16() for group in given])
    assert (low.student_logits.dtype, low.loss.dtype) == (torch.bfloat16, torch.float32)
    # eight bits, a few dozen operations deep, then divided by the temperature
    assert float((low.student_logits - exact.student_logits).norm() / exact.student_logits.norm()) < 0.1
    assert low.loss.isfinite()


def test_a_student_learns_from_a_teacher_that_stands_still():
    model, given = small().train(), views()
    model.update_center(model(views=given).teacher_logits, momentum=0.0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(20):
        output = model(views=given)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        losses.append(float(output.loss.detach()))
        assert 0 < float(output.entropy) < losses[-1]
    assert losses[-1] < 0.9 * losses[0]


BAD = [
    ([], r"^views have shapes \[\]; expected groups"),
    ([torch.zeros(5, 3, 21, 14)], r"expected groups \(views, batch, channels, height, width\)$"),
    ([torch.zeros(2, 5, 3, 21, 14), torch.zeros(2, 4, 3, 7, 14)], r"expected groups"),
    ([torch.zeros(1, 5, 3, 21, 14)], r"expected two views or more, the first group for the teacher$"),
    ([torch.zeros(2, 5, 3, 21, 15)], r"21 × 15 pixels is not divisible by patch_size 7"),
]


@pytest.mark.parametrize(("given", "pattern"), BAD, ids=range(len(BAD)))
def test_bad_views_are_refused(given, pattern):
    with pytest.raises(CrateError, match=pattern):
        small()(views=given)


def test_other_bad_input_is_refused():
    with pytest.raises(CrateError, match=r"^pixel_values is missing"):
        small()()
    with pytest.raises(CrateError, match=r"^CrateForSelfDistillation needs modality='vision', not 'text'$"):
        CrateForSelfDistillation(toys.text())
    for name in ("projection_hidden", "projection_bottleneck", "prototypes"):
        with pytest.raises(CrateError, match=f"^{name} is 0; it must be at least 1 and at most [0-9]+$"):
            toys.vision(**{name: 0})
