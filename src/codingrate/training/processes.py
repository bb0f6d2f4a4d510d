"""Being one of several processes: work that one does for all, and leaving."""

from __future__ import annotations

import os
import sys
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


def leave_processes() -> None:
    """End a process that is one of several right here.

    A thread of gloo may still let go of a tensor; where the interpreter is closing down already, that aborts the
    process, and the launcher then calls the run failed (torch 2.13).
    """
    if dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
