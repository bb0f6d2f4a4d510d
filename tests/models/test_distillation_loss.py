"""The loss and the center of DINO, pair by pair and number by number."""

import math

import pytest
import torch

from codingrate.errors import CrateError
from codingrate.models import CrateForSelfDistillation
from codingrate.models.distillation import distillation_loss, teacher_entropy

from . import toys

P = 19
SIZES = [(2, 2, 5, 7), (5, 2, 3, 11), (3, 1, 2, 13), (7, 2, 1, 17)]  # student views, teacher views, batch, P


def small(**fields):
    base = {"projection_hidden": 13, "projection_bottleneck": 11, "prototypes": P}
    return CrateForSelfDistillation(toys.vision(**{**base, **fields}))


def softmax(row):
    top = max(x.item() for x in row)
    parts = [torch.exp(x - top) for x in row]
    return [part / sum(parts) for part in parts]


def naive_loss(student, teacher, center, tau_s, tau_t):
    total, terms = 0.0, 0
    for t in range(len(teacher)):
        for s in range(len(student)):
            if s == t:
                continue
            batch = 0.0
            for b in range(student.shape[1]):
                p = softmax([(teacher[t, b, j] - center[j]) / tau_t for j in range(len(center))])
                q = softmax([student[s, b, j] / tau_s for j in range(len(center))])
                batch = batch - sum(pj.detach() * torch.log(qj) for pj, qj in zip(p, q, strict=True))
            total, terms = total + batch / student.shape[1], terms + 1
    return total / terms


@pytest.mark.parametrize(("tau_s", "tau_t"), [(0.1, 0.04), (0.7, 0.3)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_loss_is_the_mean_over_pairs_of_different_views(sizes, tau_s, tau_t):
    S, T, batch, outputs = sizes
    student = (0.5 * torch.randn(S, batch, outputs, dtype=torch.float64)).requires_grad_()
    teacher = (0.3 * torch.randn(T, batch, outputs, dtype=torch.float64)).requires_grad_()
    center = 0.1 * torch.randn(outputs, dtype=torch.float64)
    loss = distillation_loss(student, teacher, center, tau_s, tau_t)
    expected = naive_loss(student, teacher, center, tau_s, tau_t)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    (gradient,) = torch.autograd.grad(loss, student)
    (wanted,) = torch.autograd.grad(expected, student)
    torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-12)
    unmoved = torch.autograd.grad(distillation_loss(student, teacher, center), teacher, allow_unused=True)
    assert unmoved == (None,)


def test_half_precision_is_summed_in_full_and_an_empty_batch_gives_zero():
    student, teacher, center = torch.randn(3, 5, P), torch.randn(2, 5, P), torch.zeros(P)
    low = distillation_loss(student.bfloat16(), teacher.bfloat16(), center.bfloat16())
    assert low.dtype == torch.float32
    exact = distillation_loss(student.bfloat16().double(), teacher.bfloat16().double(), center.double())
    torch.testing.assert_close(low.double(), exact, rtol=1e-5, atol=0)
    empty = torch.zeros(3, 0, P, requires_grad=True)
    loss = distillation_loss(empty, torch.zeros(2, 0, P), center)
    loss.backward()
    assert loss.item() == float(teacher_entropy(torch.zeros(2, 0, P), center, 0.1)) == 0


def test_the_entropy_is_that_of_what_the_student_is_shown():
    logits, center, tau = 0.2 * torch.randn(2, 3, 7, dtype=torch.float64), 0.1 * torch.randn(7).double(), 0.3
    total = 0.0
    for t in range(2):
        for b in range(3):
            total -= sum(float(p * torch.log(p)) for p in softmax(list((logits[t, b] - center) / tau)))
    assert float(teacher_entropy(logits, center, tau)) == pytest.approx(total / 6, rel=1e-10)
    assert float(teacher_entropy(torch.zeros(2, 3, 7), torch.zeros(7), tau)) == pytest.approx(math.log(7))


@pytest.mark.parametrize(
    "shapes", [((3, 5, 7), (2, 4, 7)), ((2, 5, 7), (3, 5, 7)), ((1, 5, 7), (1, 5, 7)), ((3, 5, 7), (0, 5, 7))], ids=str
)
def test_logits_that_do_not_fit_are_refused(shapes):
    with pytest.raises(CrateError, match=r"student_logits .* do not fit; expected \(views, batch, P\)"):
        distillation_loss(torch.zeros(shapes[0]), torch.zeros(shapes[1]), torch.zeros(7))


@pytest.mark.parametrize("momentum", [0.9, 0.3])
def test_the_center_follows_the_mean_of_the_raw_teacher(momentum):
    model = small().double()
    center = torch.zeros(P, dtype=torch.float64)
    assert torch.equal(model.center, center)
    for batch in (5, 3):
        logits = torch.randn(2, batch, P, dtype=torch.float64)
        model.update_center(logits, *([] if momentum == 0.9 else [momentum]))
        mean = [sum(float(logits[v, b, j]) for v in range(2) for b in range(batch)) / (2 * batch) for j in range(P)]
        center = torch.tensor([momentum * c + (1 - momentum) * m for c, m in zip(center, mean, strict=True)]).double()
        torch.testing.assert_close(model.center, center, rtol=1e-6, atol=1e-7)
    model.update_center(torch.zeros(2, 0, P))
    torch.testing.assert_close(model.center, center, rtol=1e-6, atol=1e-7)


def test_the_center_is_that_of_all_processes(monkeypatch):
    """Another process has 3 images of mean 1 where this one has 5 of mean 2."""

    def all_reduce(tensor):
        tensor += torch.cat([torch.full((P,), 6.0), torch.tensor([6.0])])

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    model = small()
    model.update_center(torch.full((2, 5, P), 2.0))
    torch.testing.assert_close(model.center, torch.full((P,), 0.1 * 13 / 8))
