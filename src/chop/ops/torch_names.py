"""The functions, methods and ATen operators of torch that have the name of an operation."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def named_functions(*names: str) -> tuple[Callable[..., Any], ...]:
    """The functions of `torch.nn.functional` and `torch` with these names, in place or not."""
    found = (
        getattr(place, name + ending, None)
        for name in names
        for ending in ("", "_")
        for place in (F, torch)
    )
    return tuple(dict.fromkeys(function for function in found if function))


def named_methods(*names: str) -> tuple[str, ...]:
    """The tensor methods with these names, in place or not."""
    candidates = (name + ending for name in names for ending in ("", "_"))
    return tuple(name for name in candidates if hasattr(torch.Tensor, name))


def named_operators(*names: str) -> tuple[str, ...]:
    """Those of these names that an ATen operator has."""
    return tuple(name for name in names if hasattr(torch.ops.aten, name))
