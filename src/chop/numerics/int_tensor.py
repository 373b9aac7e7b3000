"""Arrays as values: what a number format says for each channel or element."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from torch import Tensor

LARGEST = 2**15 - 1


class ArrayValue:
    """An immutable array; equal contents make equal values.

    It is made from nested lists, a NumPy array or a tensor, and says something for each channel
    or element of a tensor, against which it broadcasts from the right as tensors of PyTorch do.
    """

    def __init__(self, array: NDArray[Any], dtype: Any) -> None:
        self.array: NDArray[Any] = array.astype(dtype)
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
        return isinstance(other, ArrayValue) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        """Smallest, mean and largest, which is what fits in a line."""
        low, mean, high = self.array.min(), self.array.mean(), self.array.max()
        return f"{low:.3g}/{mean:.3g}/{high:.3g}"

    def __repr__(self) -> str:
        return repr(self.tolist()) if self.array.size <= 8 else f"<{self}, shape {self.shape}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.array,)


class IntTensor(ArrayValue):
    """An immutable array of small integers or of booleans."""

    def __init__(self, values: Any) -> None:
        given = as_array(values)
        if given.dtype.kind not in "biu" or given.max() > LARGEST or given.min() < -LARGEST:
            raise ValueError("small integers expected")
        super().__init__(given, bool if given.dtype == bool else np.int16)


class FloatTensor(ArrayValue):
    """An immutable array of float32 numbers."""

    def __init__(self, values: Any) -> None:
        given = as_array(values)
        if given.dtype.kind not in "iuf":
            raise ValueError("numbers expected")
        super().__init__(given, np.float32)


class DoubleTensor(ArrayValue):
    """An immutable array of float64 numbers."""

    def __init__(self, values: Any) -> None:
        given = as_array(values)
        if given.dtype.kind not in "iuf":
            raise ValueError("numbers expected")
        super().__init__(given, np.float64)


ARRAYS = (ArrayValue, list, tuple, np.ndarray, Tensor)
"""What these are made from."""


def as_array(values: Any) -> NDArray[Any]:
    """Nested lists, an array or a tensor as an array."""
    if isinstance(values, ArrayValue):
        return values.array
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError("lists inside a list must have one length") from None
    if not array.size:
        raise ValueError(f"at least one number expected, and the shape is {array.shape}")
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
            self._check,
            handler.generate_schema(self.kind),
            serialization=core_schema.plain_serializer_function_ser_schema(as_lists),
        )

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        one: JsonSchemaValue = {"type": "integer", "minimum": self.low, "maximum": self.high}
        if self.kind is bool:
            one = {"type": "boolean"}
        inner = {"anyOf": [one, {"type": "array"}]}
        return {"anyOf": [handler(core), {"type": "array", "items": inner, "minItems": 1}]}

    def _check(self, value: Any, plain: Callable[[Any], Any]) -> Any:
        if not isinstance(value, ARRAYS):
            return plain(value)
        array = value.array if isinstance(value, IntTensor) else IntTensor(value).array
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
    return value.tolist() if isinstance(value, ArrayValue) else value
