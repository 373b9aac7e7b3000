"""Rounding of whatever an operation may be given."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from chop.numerics import NumberFormat

HOME = "chop.passes.graph.transforms.quantize"
"""Where users find quantised modules and functions, as the labs print it."""
SCALARS = (int, float, complex, str, type(None))
LISTS = (list, tuple)


def rounded(fmt: NumberFormat | None, value: Any) -> Any:
    """`value` in the format: floating-point tensors are rounded, also inside lists.

    Numbers are constants of the program and integer tensors are exact: both stay as they are.
    """
    if fmt is None or isinstance(value, SCALARS):
        return value
    if isinstance(value, LISTS):
        return type(value)([rounded(fmt, item) for item in value])
    return fmt(value) if value.is_floating_point() or value.is_complex() else value


def written_back(
    compute: Callable[..., Any], first: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What `compute` gives, stored in its first argument as the float operation would.

    It works on a copy, because the gradient of rounding may need the argument as it was.
    """
    if args:
        target: Tensor = args[0]
        return target.copy_(compute(target.clone(), *args[1:], **kwargs))
    target = kwargs[first]
    return target.copy_(compute(**{**kwargs, first: target.clone()}))
