"""Helpers for several processes: share the work of a loop, run code on the first process only, and shut down cleanly.

Every process runs the same program, so all of them must call these helpers in the same order. One process alone needs
no process group, and the helpers then do nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = timedelta(days=7)
"""Time that the other processes wait. The trainer's half hour would end a run that tokenizes a large text first."""


def first_process() -> bool:
    """Return whether this is the first process of a run, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def process_count() -> int:
    """Return the number of processes that torchrun or accelerate has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_turns() -> tuple[int, None, int]:
    """Return start, stop and step of the numbers of the batches that this process computes."""
    return int(os.environ.get("RANK", "0")), None, process_count()


@contextmanager
def _group() -> Iterator[Any]:
    """Open a process group on the CPU, whatever device the processes compute on."""
    import torch
    import torch.distributed as dist
    from accelerate import PartialState

    cpu = not torch.cuda.is_available()
    PartialState(cpu=cpu, **({"backend": "gloo"} if cpu else {"timeout": timedelta(minutes=30)}))  # as the trainer does
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    yield group  # if this fails, the launcher ends the other processes
    dist.destroy_process_group(group)


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block in the first process, then in the others, which find the files that the first has written."""
    if process_count() == 1:
        yield
        return
    import torch.distributed as dist

    with _group() as group:
        if not first_process():
            dist.barrier(group)
        yield
        if first_process():
            dist.barrier(group)


def on_first(function: Callable[[], T]) -> T:
    """Call a function in the first process, and return its result, or raise its error, in all of them."""
    if process_count() == 1:
        return function()
    import torch.distributed as dist

    with _group() as group:
        answer = [_attempt(function) if first_process() else None]
        dist.broadcast_object_list(answer, src=0, group=group)
    return _result(cast(Any, answer[0]))


def gather_in_turn(own: Iterable[T]) -> Iterator[T]:
    """Yield the items of all processes in every process: the first item of each, then the second of each, and so on.

    The first processes may have one item more than the last ones. An error in one process is raised in all of them.
    """
    if process_count() == 1:
        yield from own
        return
    import torch.distributed as dist

    items, size = iter(own), process_count()
    with _group() as group:
        complete = True
        while complete:
            answers: list[Any] = [None] * size
            dist.all_gather_object(answers, _attempt(lambda: next(items, _END)), group=group)
            results = [_result(answer) for answer in answers]
            complete = not any(isinstance(result, _End) for result in results)
            yield from (cast(T, result) for result in results if not isinstance(result, _End))


def share(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result of every item in order, in every process; each result is computed by one of them."""
    return gather_in_turn(map(function, islice(items, *own_turns())))


class _End:
    """Stands for an item of a process that has no more of them."""


_END = _End()


def _attempt(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return function(), None
    except Exception as error:  # travels to the other processes, which would wait forever
        return None, error


def _result(answer: tuple[Any, Exception | None]) -> Any:
    value, error = answer
    if error is not None:
        raise error
    return value


class SharedBatches(ABC, Generic[T]):
    """Batches of a loop that several processes share.

    Iterating yields every batch. `map` loads and computes each batch in one process and yields the results of all of
    them in the order of the batches. Batches are the same for every number of processes, and so are the results.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[T]: ...

    @abstractmethod
    def map(self, function: Callable[[T], R]) -> Iterator[R]:
        """Yield the result of every batch, in every process."""

    def then(self, function: Callable[[T], R]) -> SharedBatches[R]:
        """Return the batches with a function applied to each when it is loaded."""
        return _ChangedBatches(self, function)


class ListedBatches(SharedBatches[T]):
    """Batches that `load` makes of `items`, such as lists of indices."""

    def __init__(self, items: Iterable[Any], load: Callable[[Any], T]) -> None:
        self.items, self.load = items, load

    def __iter__(self) -> Iterator[T]:
        return map(self.load, self.items)

    def map(self, function: Callable[[T], R]) -> Iterator[R]:
        return share(lambda item: function(self.load(item)), self.items)


class _ChangedBatches(SharedBatches[R]):
    """Batches with a function applied to each."""

    def __init__(self, batches: SharedBatches[Any], function: Callable[[Any], R]) -> None:
        self.batches, self.function = batches, function

    def __iter__(self) -> Iterator[R]:
        return map(self.function, self.batches)

    def map(self, function: Callable[[R], Any]) -> Iterator[Any]:
        return self.batches.map(lambda batch: function(self.function(batch)))


def map_batches(function: Callable[[T], R], batches: Iterable[T]) -> Iterator[R]:
    """Yield the result of every batch in order; batches that are shared are computed by one process each."""
    return batches.map(function) if isinstance(batches, SharedBatches) else map(function, batches)


def exit_together(code: int = 0) -> None:
    """End this process with an exit code when all processes of the run have come here; one process alone goes on.

    The interpreter is not taken down: threads of a process group may still free tensors, for which they need the
    interpreter, and would abort the process if it were gone.
    """
    if process_count() == 1:
        return
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
