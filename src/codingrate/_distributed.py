"""Helpers for distributed runs: run code on the first process only, and shut down cleanly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState

PATIENCE = timedelta(days=7)
"""Time that the other processes wait. The trainer's half hour would end a run that tokenizes a large text first."""


def first_process() -> bool:
    """Return whether this is the first process of a run, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block in the first process, then in the others, which find the files that the first has written."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    cpu = not torch.cuda.is_available()
    PartialState(cpu=cpu, **({"backend": "gloo"} if cpu else {"timeout": timedelta(minutes=30)}))  # as the trainer does
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    if dist.get_rank():
        dist.barrier(group)
        yield
    else:
        yield  # if this fails, the launcher ends the other processes
        dist.barrier(group)
    dist.destroy_process_group(group)


def leave_process_group() -> None:
    """Leave the process group of a distributed run, after every process has finished."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
