"""Optimizers against their formulas, schedules against the curves that a recipe describes."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from codingrate.recipes.schema import OptimizerSection, ScheduleSection
from codingrate.runs.optimizers import WeightAverage, build_optimizer, build_schedule, rate_factor, weight_decay_at
from tests.refusals import refused

from .toys import lines, toy_task, train_toy


def test_matrices_decay_and_the_rest_does_not_unless_everything_does_as_in_the_released_code():
    model = toy_task().build_model()
    decayed, undecayed = build_optimizer(model, OptimizerSection(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.3, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(p) for p in model.parameters() if p.ndim > 1}
    assert {id(p) for p in undecayed["params"]} == {id(p) for p in model.parameters() if p.ndim <= 1}
    (group,) = build_optimizer(model, OptimizerSection(decay="all", weight_decay=0.3)).param_groups
    assert (group["weight_decay"], len(group["params"])) == (0.3, len(list(model.parameters())))


@pytest.mark.parametrize("name", ["lion", "adamw", "adam", "muon"])
def test_frozen_weights_are_not_optimized(name):
    model = toy_task({"model.freeze": True}).build_model()
    optimizer = build_optimizer(model, OptimizerSection(name=name))
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in model.parameters() if p.requires_grad}
    assert optimized


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
    optimizer = build_optimizer(layer, OptimizerSection(name=name, lr=0.02, weight_decay=0.4))
    gradients = [torch.randn(3, 5, dtype=torch.float64) for _ in range(5)]
    for gradient in gradients:
        layer.weight.grad, layer.bias.grad = gradient.clone(), torch.zeros(3, dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), NAIVE[name](start, gradients, 0.02, 0.4), rtol=0, atol=1e-12)


def muon(w, gradients, lr, wd, momentum=0.95):
    """The step of Muon with an exact singular value decomposition in place of its iteration."""
    m = torch.zeros_like(w)
    for g in gradients:
        m = momentum * m + (1 - momentum) * g
        u, _, v = torch.linalg.svd((1 - momentum) * g + momentum * m, full_matrices=False)
        w = (1 - lr * wd) * w - lr * 0.2 * math.sqrt(max(w.shape)) * u @ v
    return w


def test_muon_moves_the_matrices_of_layers_and_adamw_the_rest():
    """The iteration has singular values between about 0.7 and 1.2 where the formula has one.

    At this width the scale of AdamW's updates, 0.2√d, is twice that of Muon's own formula.
    """
    model = toy_task({"model.config.hidden_size": 96}).build_model()
    section = OptimizerSection(name="muon", lr=0.02, weight_decay=0.4)
    optimizer = build_optimizer(model, section)
    inside = {n for n, p in model.named_parameters() if ".layers." in f".{n}" and p.ndim == 2}
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = [{name: torch.randn_like(p) for name, p in model.named_parameters()} for _ in range(3)]
    for gradient in gradients:
        for name, p in model.named_parameters():
            p.grad = gradient[name].clone()
        optimizer.step()
    assert inside
    assert inside != set(start)
    for name, p in model.named_parameters():
        ours, wd = [gradient[name] for gradient in gradients], 0.4 if p.ndim > 1 else 0.0
        if name in inside:
            moved, expected = p.detach() - start[name], muon(start[name], ours, 0.02, wd) - start[name]
            assert torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.95
            assert 0.7 < moved.norm() / expected.norm() < 1.2
        else:
            torch.testing.assert_close(p.detach(), adam(start[name], ours, 0.02, wd))


def test_betas_and_eps_reach_the_optimizer():
    layer = nn.Linear(3, 2, bias=False)
    (group,) = build_optimizer(layer, OptimizerSection(name="adam", betas=(0.5, 0.6), eps=1e-3)).param_groups
    assert (group["betas"], group["eps"]) == ((0.5, 0.6), 1e-3)
    (group,) = build_optimizer(layer, OptimizerSection(name="lion", betas=(0.5, 0.6))).param_groups
    assert group["betas"] == (0.5, 0.6)


# Schedules


def naive_rate(step, scheduler, peak, low, warmup, total, from_zero=False):
    """Return the learning rate of a step counted from 1."""
    if step <= warmup:
        return peak * (step - from_zero) / warmup
    share = (step - 1 - warmup) / (total - warmup)
    return {
        "cosine": low + (peak - low) * (1 + math.cos(math.pi * share)) / 2,
        "linear": peak + (low - peak) * share,
        "constant": peak,
    }[scheduler]


@pytest.mark.parametrize("scheduler", ["cosine", "linear", "constant"])
def test_the_rate_of_every_step(scheduler):
    for (warmup, total), from_zero in itertools.product([(0, 11), (3, 11), (5, 5)], [False, True]):
        check_rates(scheduler, warmup, total, from_zero)


def check_rates(scheduler, warmup, total, from_zero):
    section = ScheduleSection(scheduler=scheduler, final_lr=0.002, warmup_from_zero=from_zero)
    factor = rate_factor(section, 0.05, warmup, total)
    for step in range(1, total + 1):
        expected = naive_rate(step, scheduler, 0.05, 0.002, warmup, total, from_zero)
        assert 0.05 * factor(step - 1) == pytest.approx(expected, rel=1e-12)
    if scheduler != "constant" and warmup < total:
        assert 0.05 * factor(total) == pytest.approx(0.002)
        assert 0.05 * factor(total + 7) == pytest.approx(0.002), "no rise after the end"


@pytest.mark.parametrize(
    ("changes", "warmup", "total"),
    [
        ({"schedule.warmup_epochs": 1.0}, 4, 12),
        ({"schedule.warmup_steps": 3, "schedule.scheduler": "linear"}, 3, 12),
        ({"schedule.warmup_epochs": 0.5, "schedule.steps": 7}, 2, 7),
        ({"schedule.warmup_epochs": 1.0, "run.per_device_batch_size": 5}, 4, 12),
        ({"schedule.warmup_epochs": 1.0, "schedule.epochs": 1.5}, 4, 6),
    ],
    ids=str,
)
def test_the_rates_of_a_run(tmp_path, few, changes, warmup, total):
    train_toy(tmp_path / "run", {**few, "schedule.final_lr": 1e-4, **changes})
    name = changes.get("schedule.scheduler", "cosine")
    rates = [line["learning_rate"] for line in lines(tmp_path / "run", "training")]
    assert rates == pytest.approx([naive_rate(step, name, 1e-3, 1e-4, warmup, total) for step in range(1, total + 1)])


def test_a_warm_up_in_epochs_needs_a_known_length():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    epochs = ScheduleSection(warmup_epochs=1.0)
    refused("set schedule.warmup_steps", build_schedule, optimizer, epochs, 1.0, None, 10)
    schedule = build_schedule(optimizer, ScheduleSection(warmup_epochs=1.0, warmup_steps=4), 1.0, None, 10)
    assert schedule.get_last_lr() == [0.25]


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_weight_decay_follows_a_cosine(steps):
    for step in range(steps):
        decay = 0.4 + 0.5 * (0.04 - 0.4) * (1 + math.cos(math.pi * step / steps))
        assert weight_decay_at(step, steps, 0.04, 0.4) == pytest.approx(decay, rel=1e-13)
        assert weight_decay_at(step, steps, 0.005, 0.005) == pytest.approx(0.005)
    assert weight_decay_at(0, 0, 0.1, 0.2) == pytest.approx(0.1)


# The average of the weights


def test_the_average_is_applied_inside_its_block_and_survives_a_file(tmp_path):
    layer = nn.Linear(5, 3)
    start = layer.weight.detach().clone()
    average = WeightAverage(0.75)
    average.start(layer)
    with torch.no_grad():
        layer.weight += 1
    own = layer.weight.detach().clone()
    average.update(layer)
    save_file(average.whole(), tmp_path / WeightAverage.FILE)
    other = WeightAverage(0.75)
    other.load(tmp_path, nn.Linear(5, 3))
    for loaded in (average, other):
        with contextlib.suppress(ZeroDivisionError), loaded.applied(layer):
            torch.testing.assert_close(layer.weight, 0.75 * start + 0.25 * own)
            raise ZeroDivisionError
        assert torch.equal(layer.weight, own), "also after an error"
