"""Work that one of several processes does for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState

PATIENCE = timedelta(days=7)
"""How long the others wait. The trainer's own half hour would end a run that tokenises a large text first."""


@contextmanager
def main_process_first() -> Iterator[None]:
    """The block in the main process, and when it is done there in the others, which find what it has written."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    cpu = not torch.cuda.is_available()
    PartialState(cpu=cpu, **({"backend": "gloo"} if cpu else {"timeout": timedelta(minutes=30)}))  # as the trainer will
    waiting = dist.new_group(backend="gloo", timeout=PATIENCE)
    if dist.get_rank():
        dist.barrier(waiting)
        yield
    else:
        yield  # if it fails here the launcher ends the others
        dist.barrier(waiting)
    dist.destroy_process_group(waiting)
