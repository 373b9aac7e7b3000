"""Results worth keeping, within a budget of bytes, and when to look for what is not."""

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from torch import Tensor

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Values by key; those unused for longest make room when the budget is used up.

    A value is kept when it comes a second time. What is kept cannot be overwritten, so the next
    result needs memory that is new from the system, which costs more than rounding does; and most
    results of a search never come again.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._met: set[Hashable] = set()

    def get(self, key: Hashable) -> Value | None:
        """The value, if it is still there."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Keep a new value of so many bytes, unless it alone would exceed the budget."""
        if key not in self._met:
            self._met.add(key)
            return
        if size > self.budget:
            return
        self._values[key] = (value, size)
        self.used += size
        while self.used > self.budget:
            _, (_, freed) = self._values.popitem(last=False)
            self.used -= freed

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._met.clear()
        self.used = 0


def bytes_of(value: Any) -> int:
    """The bytes of the tensors in a value."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    return sum(map(bytes_of, value.values())) if isinstance(value, dict) else 0


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Put Python's garbage collector off while many small objects are made that live on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
