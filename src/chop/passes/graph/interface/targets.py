"""Functions and methods by name: only those that can do no more than compute.

A graph read from a file is run later, so what it may call is decided here. `torch.load` is a
function of torch like any other, and `x.numpy().tofile(...)` a chain of methods; neither is among
them.
"""

import builtins
import functools
import math
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from chop.nn.function import named_function
from chop.nn.rounding import HOME
from chop.ops.lookup import op_of_function, op_of_method

PLACES: Mapping[str, types.ModuleType] = {
    "torch.nn.functional": F,
    "torch": torch,
    "operator": operator,
    "math": math,
    "builtins": builtins,
}
QUANTIZED = "chop.quantized"
ATEN = "aten"
# These reach files or call what they are given.
REFUSED = frozenset({"from_file", "attrgetter", "itemgetter", "methodcaller", "call"})
OF_PYTHON = frozenset(
    {"abs", "getattr", "len", "max", "min", "pow", "round", "sum", "int", "float"}
)
ATTRIBUTES = frozenset(
    {
        "shape", "dtype", "device", "ndim", "layout", "itemsize", "nbytes", "is_cuda",
        "requires_grad", "T", "mT", "H", "mH", "real", "imag", "values", "indices",
    }
)  # fmt: skip
"""What `getattr` in a graph may ask for: facts about a tensor, and parts of what `max` gives."""


@functools.cache
def functions_by_name() -> dict[str, Callable[..., Any]]:
    """Every function that graphs from files may call, by each of its names."""
    return {
        f"{place}.{name}": value
        for place, module in PLACES.items()
        for name, value in vars(module).items()
        if callable(value) and is_harmless(place, name, value)
    }


@functools.cache
def names_of_functions() -> dict[Callable[..., Any], str]:
    """The first name of each function."""
    found: dict[Callable[..., Any], str] = {}
    for name, value in functions_by_name().items():
        found.setdefault(value, name)
    return found


def is_harmless(place: str, name: str, function: Any) -> bool:
    """Whether a function of a place only computes."""
    if place == "builtins":
        return name in OF_PYTHON
    known = isinstance(function, types.FunctionType | types.BuiltinFunctionType)
    if not known or name in REFUSED or name.startswith("__"):
        return False
    if place in ("operator", "math"):
        return isinstance(function, types.BuiltinFunctionType)
    home = getattr(function, "__module__", None)
    if op_of_function(function) is not None or home == "torch.functional":
        return True
    if place == "torch.nn.functional":
        return home == place and not name.startswith("_")
    return hasattr(torch._C._VariableFunctions, name)


def function_name(function: Any) -> str | None:
    """The name under which a function is stored; None if it is the user's own."""
    if getattr(function, "__module__", None) == f"{HOME}.quantized_funcs":
        return f"{QUANTIZED}.{function.__name__}"
    if isinstance(function, torch._ops.OpOverload) and function.namespace == "aten":
        name = f"{ATEN}.{function._schema.name.partition('::')[2]}.{function._overloadname}"
        return None if REFUSED & set(name.split(".")) else name
    try:
        first = names_of_functions().get(function)
    except TypeError:  # not hashable
        return None
    # torch.mm equals torch.dsmm, which computes the same, but its code is to read as before.
    own = f"{str(first).rpartition('.')[0]}.{getattr(function, '__name__', '')}"
    return own if first and functions_by_name().get(own) == function else first


def function_by_name(name: str) -> Callable[..., Any]:
    """The function stored under a name; any other name raises ValueError."""
    place, _, last = name.rpartition(".")
    if place == QUANTIZED:
        try:
            return named_function(last)
        except AttributeError as error:
            raise ValueError(str(error)) from None
    if name.startswith(f"{ATEN}.") and name.count(".") == 2:
        return _aten(*name.split(".")[1:])
    if name not in functions_by_name():
        raise ValueError(f"{name!r} is not a function that a graph may call")
    return functions_by_name()[name]


def _aten(name: str, overload: str) -> Callable[..., Any]:
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if name in REFUSED or not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"torch.ops.aten.{name}.{overload} is not an operator")
    return found


def is_method(name: str) -> bool:
    """Whether a graph from a file may call this method of tensors."""
    if name in REFUSED or not hasattr(torch.Tensor, name):
        return False
    operator_of_torch = getattr(torch.ops.aten, name, None)
    is_operator = isinstance(operator_of_torch, torch._ops.OpOverloadPacket)
    return op_of_method(name) is not None or is_operator


def check_attribute(function: Any, args: tuple[Any, ...]) -> None:
    """Raise ValueError if a call of `getattr` asks for more than facts about a tensor."""
    if function is getattr and (len(args) != 2 or args[1] not in ATTRIBUTES):
        raise ValueError(f"getattr of {args[1:]!r:.60} is not allowed in a graph")
