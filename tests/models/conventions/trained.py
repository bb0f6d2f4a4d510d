"""One optimizer step of transformers' own Trainer on 16 samples; run as a program by several processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from codingrate._distributed import exit_together

from .cases import build, inputs

SAMPLES = 16


def samples(family: str) -> list[dict[str, Any]]:
    """Return 16 samples; language models have more labels in some than in others."""
    given = inputs(family, SAMPLES)
    if family in ("masked-lm", "causal-lm", "gpt2"):
        number = torch.arange(SAMPLES)[:, None]
        given["labels"] = given["labels"].masked_fill(torch.arange(11) >= 1 + number % 10, -100)
    return [{name: value[row] for name, value in given.items()} for row in range(SAMPLES)]


class Gradients(TrainerCallback):
    """Copies the gradients before the optimizer uses them."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def train(
    family: str, attention: str, folder: Path, batch: int, accumulation: int = 1, data: Any = None, **fields: Any
) -> tuple[float, dict[str, torch.Tensor]]:
    """Train one step and return the loss that the Trainer logs and the gradients."""
    smoothing, kept = fields.pop("label_smoothing_factor", 0.0), Gradients()
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
        max_steps=1, optim="sgd", learning_rate=1e-3, max_grad_norm=0.0, logging_steps=1, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False, label_smoothing_factor=smoothing,
        dataloader_pin_memory=False, ddp_find_unused_parameters=False,
    )  # fmt: skip
    model = build(family, attention, **fields).double()
    dataset = [
        {name: value.double() if value.is_floating_point() else value for name, value in sample.items()}
        for sample in (data or samples(family))
    ]
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[kept])
    trainer.train()
    return trainer.state.log_history[0]["loss"], kept.gradients


if __name__ == "__main__":
    family, attention, folder = sys.argv[1:]
    loss, gradients = train(family, attention, Path(folder), SAMPLES // 2)
    if torch.distributed.get_rank() == 0:
        torch.save((loss, gradients), Path(folder) / "result.pt")
    exit_together()
