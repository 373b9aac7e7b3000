"""Functions and methods by name, and the keywords each takes: only those that compute."""

import builtins
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from chop.nn.forward import HOME
from chop.nn.function import named_function
from chop.ops.op import op_of_function, op_of_method
from chop.ops.table import OPS
from chop.passes.graph.interface.harmless import COMPUTES, OF_ATEN, OF_PYTHON

PLACES: Mapping[str, types.ModuleType] = {
    "torch.nn.functional": F,
    "torch": torch,
    "operator": operator,
    "math": math,
    "builtins": builtins,
}
QUANTIZED = "chop.quantized"
TABLE = "chop.ops"
ATEN = "aten"
# What torch's own parser of arguments takes besides the names in the schema.
ALIASES = {"self": ("input", "x"), "dim": ("axis",), "keepdim": ("keepdims",)}
# Where a result is written, a source of random numbers, memory of a device: none of it is data.
NOT_DATA = frozenset({"out", "generator", "pin_memory"})
_CAST, _SECTIONS = ("memory_format",), ("indices_or_sections",)
# Keywords of functions written in C that are in no schema, by the last part of their names.
STATED: Mapping[str, tuple[str, ...]] = {
    "builtins.max": ("default",), "builtins.min": ("default",), "builtins.sum": ("start",),
    "builtins.pow": ("base", "exp", "mod"), "builtins.round": ("ndigits",),
    "builtins.int": ("base",), "math.isclose": ("rel_tol", "abs_tol"), "math.prod": ("start",),
    "tensor": ("data", "dtype", "device", "requires_grad"), "nonzero": ("as_tuple",),
    "as_tensor": ("data", "dtype", "device"), "type": ("dtype", "non_blocking"),
    "unique": ("input", "sorted", "return_inverse", "return_counts", "dim"),
    "lu": ("A", "pivot", "get_infos"), "hsplit": _SECTIONS, "vsplit": _SECTIONS,
    "dsplit": _SECTIONS, "tensor_split": _SECTIONS, "float": _CAST, "double": _CAST,
    "half": _CAST, "bfloat16": _CAST, "bool": _CAST, "int": _CAST, "long": _CAST, "cpu": _CAST,
}  # fmt: skip


@functools.lru_cache(maxsize=1)
def _functions(rows: int) -> dict[str, Callable[..., Any]]:
    """Every function that graphs may call while the table has so many rows."""
    found = {
        f"{place}.{name}": value
        for place, module in PLACES.items()
        for name, value in vars(module).items()
        if is_harmless(place, name, value)
    }
    known = set(map(id, found.values()))
    for op in OPS.values():  # rows that users add have functions of their own
        for function in op.functions:
            if id(function) not in known:
                found[f"{TABLE}.{op.name}.{getattr(function, '__name__', '')}"] = function
    return found


def functions_by_name() -> dict[str, Callable[..., Any]]:
    """Every function that graphs from files may call, by each of its names."""
    return _functions(len(OPS))


@functools.lru_cache(maxsize=1)
def _names(rows: int) -> dict[Callable[..., Any], str]:
    """The first name of each function."""
    found: dict[Callable[..., Any], str] = {}
    for name, value in functions_by_name().items():
        found.setdefault(value, name)
    return found


def is_harmless(place: str, name: str, function: Any) -> bool:
    """Whether a function of a place is on the list of those that compute."""
    if place in OF_PYTHON:
        return name in OF_PYTHON[place]
    known = isinstance(function, types.FunctionType | types.BuiltinFunctionType)
    return known and (op_of_function(function) is not None or computes(name))


def computes(name: str) -> bool:
    """Whether a name of torch, in place or not, is on the list."""
    return name in COMPUTES or name.removesuffix("_") in COMPUTES


def function_name(function: Any) -> str | None:
    """The name under which a function is stored; None if it is the user's own."""
    if getattr(function, "__module__", None) == f"{HOME}.quantized_funcs":
        return f"{QUANTIZED}.{function.__name__}"
    if isinstance(function, torch._ops.OpOverload) and function.namespace == ATEN:
        name = function._schema.name.partition("::")[2]
        return f"{ATEN}.{name}.{function._overloadname}" if is_operator(function) else None
    try:
        first = _names(len(OPS)).get(function)
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
        raise ValueError(f"{name!r:.60} is not a function that a graph may call")
    return functions_by_name()[name]


def _aten(name: str, overload: str) -> Callable[..., Any]:
    listed = computes(name) or name in OF_ATEN
    packet = getattr(torch.ops.aten, name, None) if listed else None
    found = getattr(packet, overload, None) if overload.isidentifier() else None
    if not isinstance(found, torch._ops.OpOverload) or not is_operator(found):
        raise ValueError(
            f"'aten.{name:.40}.{overload:.40}' is not a function that a graph may call"
        )
    return found


def is_operator(overload: torch._ops.OpOverload) -> bool:
    """Whether an operator of ATen is on the list, and is none of TorchScript's for texts."""
    schema = overload._schema
    name = schema.name.partition("::")[2]
    writes = any(argument.is_out for argument in schema.arguments)
    listed = computes(name) or name in OF_ATEN
    return listed and not writes and full_name(schema) in _dispatched()


def full_name(schema: torch.FunctionSchema) -> str:
    """The name of an operator with its overload."""
    return ".".join(filter(None, (schema.name, schema.overload_name)))


@functools.cache
def _dispatched() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def is_method(name: str) -> bool:
    """Whether a graph from a file may call this method of tensors."""
    listed = computes(name) or op_of_method(name) is not None
    return listed and callable(getattr(torch.Tensor, name, None))


@functools.cache
def keywords(op: str, target: str) -> frozenset[str]:
    """The keywords that a function or method on the list takes, by its stored name."""
    place, _, last = target.rpartition(".")
    if place in OF_PYTHON:
        return frozenset(STATED.get(target, ()))
    method = op == "call_method"
    function: Any = getattr(torch.Tensor, target) if method else function_by_name(target)
    row = op_of_method(target) if method else op_of_function(function)
    if isinstance(function, torch._ops.OpOverload):  # whose schema says all
        row = None
    found = {*STATED.get(last, ()), *_parameters(function)}
    if row is not None:
        found |= {argument.name for argument in row.arguments}
    if place == QUANTIZED:
        assert row is not None
        found |= {"config", "inplace"}
        for each in (row.function, *row.functions):
            found |= _parameters(each)
    return frozenset(found - NOT_DATA - {"self"})


def _parameters(function: Any) -> set[str]:
    """The names of a function's arguments, from its source and from its schema."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return _of_schemas(function)
    found = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # one of two functions, chosen by a flag
        whole = getattr(F, f"{getattr(function, '__name__', '')}_with_indices", None)
        found |= set() if whole is None else _parameters(whole)
    return found | _of_schemas(function)


def _of_schemas(function: Any) -> set[str]:
    """The names of the arguments of all operators that go by a function's name."""
    if isinstance(function, torch._ops.OpOverload):
        return {argument.name for argument in function._schema.arguments}
    name = getattr(function, "__name__", "")
    spelt = {"logsigmoid": "log_sigmoid"}.get(name, name)
    names = {
        argument.name
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{spelt}")
        for argument in schema.arguments
        if not argument.is_out and full_name(schema) in _dispatched()
    }
    made = {"requires_grad"} if {"dtype", "device"} <= names else set()
    return names | made | {alias for each in names for alias in ALIASES.get(each, ())}
