"""The limits that a step is compared with: its products alone, and the bandwidth of memory."""

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from codingrate import create_model
from codingrate.bench.limits import products_alone

from .conftest import SMALL


def operations(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_products_alone_are_all_products_of_a_training_step_and_nothing_else():
    model = create_model("crate-tiny-patch16-224", **SMALL)
    pixels = torch.randn(3, 3, 32, 32)

    def step() -> None:
        F.cross_entropy(model(pixels).logits, torch.tensor([1, 2, 3])).backward()

    alone, gradients = products_alone(step), [p.grad.clone() for p in model.parameters()]
    assert operations(alone) == operations(step) > 0
    with torch.profiler.profile() as profile:
        alone()
    names = {event.key for event in profile.key_averages()}
    assert "aten::mm" in names
    assert not any("norm" in name or "relu" in name or "threshold" in name for name in names)
    step()
    for parameter, before in zip(model.parameters(), gradients, strict=True):  # one more step, none by the replay
        torch.testing.assert_close(parameter.grad, 3 * before, rtol=1e-4, atol=1e-6)
