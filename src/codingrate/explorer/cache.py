"""A bounded cache by value: what was computed for equal inputs is computed once, for whoever asks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class ValueCache(Generic[V]):
    """Keeps results by the values that they follow from, the most recently used ones, up to a number of bytes.

    A key holds everything that a result depends on, so that sharing results between users cannot mix them up. The
    result of one key is computed once, even if several threads ask for it at the same time.
    """

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self.limit, self.size = limit, size
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()
        self.bytes = 0
        """Number of bytes that are held."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, compute: Callable[[], V]) -> V:
        """Return the result for a key; compute and keep it if it is not there."""
        with self._lock:
            own = self._locks.setdefault(key, threading.Lock())
        with own:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    return self._values[key][0]
            try:
                value = compute()
            finally:
                with self._lock:
                    self._locks.pop(key, None)
            with self._lock:
                size = self.size(value)
                if key not in self._values:
                    self._values[key] = value, size
                    self.bytes += size
                while self.bytes > self.limit and len(self._values) > 1:
                    _, (_, freed) = self._values.popitem(last=False)
                    self.bytes -= freed
            return value
