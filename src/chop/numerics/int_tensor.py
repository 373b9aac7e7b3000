"""Arrays of small integers as values: what a number format says for each channel or element."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from torch import Tensor

LARGEST = 2**15 - 1


class IntTensor:
    """An immutable array of small integers or of booleans; equal contents make equal values.

    It is made from nested lists, a NumPy array or a tensor, and says something for each channel
    or element of a tensor, against which it broadcasts from the right as tensors of PyTorch do.
    """

    def __init__(self, values: Any) -> None:
        given = array_of(values)
        self.array: NDArray[Any] = given.astype(bool if given.dtype == bool else np.int16)
        """The contents, which cannot be written to."""
        self.array.flags.writeable = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The size along each dimension."""
        return self.array.shape

    @cached_property
    def digest(self) -> bytes:
        """Sixteen bytes that stand for type, shape and contents."""
        kind = f"{self.array.dtype}{self.shape}".encode()
        return blake2b(kind + self.array.tobytes(), digest_size=16).digest()

    def tolist(self) -> Any:
        """The contents as nested lists."""
        return self.array.tolist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntTensor) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        if self.array.size <= 8:
            return repr(self.tolist())
        low, high = self.array.min().item(), self.array.max().item()
        return f"<{low} to {high}, shape {self.shape}>"

    def __copy__(self) -> "IntTensor":
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> "IntTensor":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return IntTensor, (self.array,)


ARRAYS = (IntTensor, list, tuple, np.ndarray, Tensor)
"""What an `IntTensor` is made from."""


def array_of(values: Any) -> NDArray[Any]:
    """Nested lists, an array or a tensor as an array of small integers or of booleans."""
    if isinstance(values, IntTensor):
        return values.array
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError("lists inside a list must have one length") from None
    if not array.size:
        raise ValueError(f"at least one number expected, and the shape is {array.shape}")
    if array.dtype.kind not in "biu" or array.max() > LARGEST or array.min() < -LARGEST:
        raise ValueError("small integers expected")
    return array


@dataclass(frozen=True)
class Granular:
    """Marks a field that holds a number for a whole tensor, or an `IntTensor` of numbers.

    Attributes:
        low: the smallest number inside an `IntTensor`.
        high: the largest one.
        kind: the type of a single number, with its bounds.
    """

    low: int
    high: int
    kind: Any

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            self._checked,
            handler.generate_schema(self.kind),
            serialization=core_schema.plain_serializer_function_ser_schema(as_lists),
        )

    def _checked(self, value: Any, plain: Callable[[Any], Any]) -> Any:
        if not isinstance(value, ARRAYS):
            return plain(value)
        array = array_of(value)
        low, high = array.min(), array.max()
        if low < self.low or high > self.high:
            wrong = low if low < self.low else high
            raise ValueError(f"numbers from {self.low} to {self.high} expected, and {wrong} is one")
        if self.kind is bool:
            array = array.astype(bool, copy=False)
        elif array.dtype == bool:
            raise ValueError("integers expected, and these are true and false")
        if not array.shape:
            return plain(array.item())
        return value if isinstance(value, IntTensor) and array is value.array else IntTensor(array)


def as_lists(value: Any) -> Any:
    """A field of a format as files hold it: a plain value, or nested lists."""
    return value.tolist() if isinstance(value, IntTensor) else value
