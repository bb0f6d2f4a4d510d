"""Optimizers against their formulas, learning rates against the curve a recipe describes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from codingrate import CrateError
from codingrate.training import build_classifier
from codingrate.training.optimizers import build_optimizer, build_schedule, rate_factor
from codingrate.training.recipe import OptimiseSection, ScheduleSection
from tests.training.toys import lines, run, toy

CLASSES = tuple("0123456789")


def classifier():
    return build_classifier(toy(), CLASSES)


def test_matrices_decay_and_the_rest_does_not():
    model = classifier()
    optimizer = build_optimizer(model, OptimiseSection(weight_decay=0.3))
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(p) for p in model.parameters() if p.ndim > 1}
    assert {id(p) for p in spared["params"]} == {id(p) for p in model.parameters() if p.ndim <= 1}


def test_everything_decays_as_in_the_released_code():
    model = classifier()
    (group,) = build_optimizer(model, OptimiseSection(decay="all", weight_decay=0.3)).param_groups
    assert group["weight_decay"] == 0.3
    assert len(group["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("name", ["lion", "adamw", "adam"])
def test_frozen_weights_are_left_to_themselves(name):
    model = classifier()
    for parameter in model.crate.parameters():
        parameter.requires_grad_(False)
    optimizer = build_optimizer(model, OptimiseSection(name=name))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


def lion(w, gradients, lr, wd, b1=0.9, b2=0.99):
    m = torch.zeros_like(w)
    for g in gradients:
        w = (1 - lr * wd) * w - lr * torch.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return w


def adam(w, gradients, lr, wd, b1=0.9, b2=0.999, eps=1e-8, decoupled=True):
    m = v = torch.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        if decoupled:
            w = (1 - lr * wd) * w
        else:
            g = g + wd * w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        w = w - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
    return w


NAIVE = {"lion": lion, "adamw": adam, "adam": lambda *args: adam(*args, decoupled=False)}


@pytest.mark.parametrize("name", NAIVE)
def test_five_steps_by_the_formula(name):
    layer = nn.Linear(5, 3).double()
    start = layer.weight.detach().clone()
    optimizer = build_optimizer(layer, OptimiseSection(name=name, lr=0.02, weight_decay=0.4))
    gradients = [torch.randn(3, 5, dtype=torch.float64) for _ in range(5)]
    for gradient in gradients:
        layer.weight.grad, layer.bias.grad = gradient.clone(), torch.zeros(3, dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), NAIVE[name](start, gradients, 0.02, 0.4), rtol=0, atol=1e-12)


def test_betas_and_eps_reach_the_optimizer():
    (group,) = build_optimizer(
        nn.Linear(3, 2, bias=False), OptimiseSection(name="adam", betas=(0.5, 0.6), eps=1e-3)
    ).param_groups
    assert (group["betas"], group["eps"]) == ((0.5, 0.6), 1e-3)
    (group,) = build_optimizer(nn.Linear(3, 2, bias=False), OptimiseSection(name="lion", betas=(0.5, 0.6))).param_groups
    assert group["betas"] == (0.5, 0.6)


def naive_rate(step, shape, peak, low, warmup, total):
    """The rate of the step-th step, from 1."""
    if step <= warmup:
        return peak * step / warmup
    gone = (step - 1 - warmup) / (total - warmup)
    return {
        "cosine": low + (peak - low) * (1 + math.cos(math.pi * gone)) / 2,
        "linear": peak + (low - peak) * gone,
        "constant": peak,
    }[shape]


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 11), (3, 11), (5, 5)])
def test_the_rate_of_every_step(shape, warmup, total):
    factor = rate_factor(ScheduleSection(shape=shape, final_lr=0.002), 0.05, warmup, total)
    for step in range(1, total + 1):
        expected = naive_rate(step, shape, 0.05, 0.002, warmup, total)
        assert 0.05 * factor(step - 1) == pytest.approx(expected, rel=1e-12)
    if shape != "constant" and warmup < total:
        assert 0.05 * factor(total) == pytest.approx(0.002)
        assert 0.05 * factor(total + 7) == pytest.approx(0.002), "no rise after the end"


@pytest.mark.parametrize(
    ("changes", "warmup", "total"),
    [
        ({"schedule.warmup_epochs": 1.0}, 4, 12),
        ({"schedule.warmup_steps": 3, "schedule.shape": "linear"}, 3, 12),
        ({"schedule.warmup_epochs": 0.5, "schedule.steps": 7}, 2, 7),
        ({"schedule.warmup_epochs": 1.0, "run.device_batch": 90}, 4, 12),
        ({"schedule.warmup_epochs": 1.0, "schedule.epochs": 1.5}, 4, 6),
    ],
    ids=str,
)
def test_the_rates_a_run_takes(tmp_path, changes, warmup, total):
    run(tmp_path / "run", {"schedule.final_lr": 1e-4, **changes})
    shape = changes.get("schedule.shape", "cosine")
    rates = [line["learning_rate"] for line in lines(tmp_path / "run", "training")]
    assert rates == pytest.approx([naive_rate(step, shape, 1e-3, 1e-4, warmup, total) for step in range(1, total + 1)])


def test_a_warm_up_in_passes_needs_a_known_length():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    with pytest.raises(CrateError, match=r"set schedule\.warmup_steps"):
        build_schedule(optimizer, ScheduleSection(warmup_epochs=1.0), 1.0, None, 10)
    schedule = build_schedule(optimizer, ScheduleSection(warmup_epochs=1.0, warmup_steps=4), 1.0, None, 10)
    assert schedule.get_last_lr() == [0.25]
