"""Data movement: PyTorch moves the places of elements, and the program follows."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.lowering import program as steps
from chop.lowering.formats import SAME, LoweringError
from chop.lowering.from_graph import SymbolicCall
from chop.lowering.program import PADDING, Codes, Shape, Value
from chop.lowering.ranges import codes, move_arrays
from chop.lowering.symbols import (
    PROBE_ROWS,
    Exact,
    Float,
    Joined,
    Pending,
    Raw,
    Symbol,
    Turned,
    in_place,
    symbols_in,
)
from chop.ops.op import Reads, lowering

EXACT_TYPES = (torch.float32, torch.float64)
FINEST = 16
"""Bits by which a unit is finer that terms of several scales are multiples of."""


@lowering(Reads.SAME)
def lower_identity(call: SymbolicCall) -> Symbol:
    """Lower an operation that does nothing in evaluation: its symbol is its operand's."""
    symbol: Symbol = call.source
    return symbol


@lowering("to", "float")
def in_another_type(call: SymbolicCall) -> Symbol:
    """Lower a change of type that changes no number."""
    symbol: Any = call.source
    found = call.run(torch.zeros((PROBE_ROWS, *symbol.shape), dtype=call.builder.dtype)).dtype
    if found not in EXACT_TYPES:
        return call.float_result(f"rounds to {str(found).removeprefix('torch.')}")
    return Exact(symbol.value) if isinstance(symbol, Exact) else symbol


@lowering(Reads.SHAPE)
def fact(call: SymbolicCall) -> Any:
    """A fact about a shape, for some number of rows."""
    symbol: Any = symbols_in(dict(call.operands))[0]
    rows = torch.empty((PROBE_ROWS, *symbol.shape), dtype=call.builder.dtype)
    return call.run(in_place(rows, symbol))


@lowering("zeros", "ones", "full")
def lower_made(call: SymbolicCall) -> Any:
    """Numbers that are the same for every row, in the shape of something that varies."""
    symbols: list[Any] = symbols_in(dict(call.operands))
    return call.run(*(torch.zeros((PROBE_ROWS, *symbol.shape)) for symbol in symbols))


@lowering("unfold")
def lower_windows(call: SymbolicCall) -> Any:
    """Elements of windows; places are moved as floating point, which every form takes."""
    (symbol,) = symbols_in(dict(call.operands))
    (places,) = element_places([symbol])
    return follow(call, [symbol], call.run(places.double()).long())


@lowering(Reads.MOVED)
def movement(call: SymbolicCall) -> Any:
    """Elements in other places, or in parts."""
    if isinstance(call.source, tuple) and call.op.name == "getitem":
        place: Any = call.node.args[1]
        return call.source[place]
    symbols: list[Any] = symbols_in(dict(call.operands))
    parts = call.operands.get("tensors", ())
    if any(isinstance(part, Tensor) for part in parts):  # joined with constants
        symbols = [as_symbol(call, part) for part in parts]
        result = call.op.functions[0](element_places(symbols), call.operands.get("dim", 0))
    elif call.op.name == "pad":  # which mirrors floating point only
        return lower_windows(call)
    else:
        result = call.run(*element_places(symbols))
    if isinstance(result, Tensor):
        return follow(call, symbols, result)
    return tuple(follow(call, symbols, part) for part in result)


def element_places(symbols: list[Any]) -> list[Tensor]:
    """For each source the places of its elements, from 1 on, in each of some rows."""
    sizes = [int(np.prod(symbol.shape)) for symbol in symbols]
    total, found, start = sum(sizes), [], 1
    for symbol, size in zip(symbols, sizes, strict=True):
        row = torch.arange(start, start + size).reshape(1, *symbol.shape)
        rows = torch.cat([row + total * number for number in range(PROBE_ROWS)])
        found.append(in_place(rows, symbol))
        start += size
    return found


def as_symbol(call: SymbolicCall, part: Any) -> Any:
    """A symbol itself, or that of a tensor which is the same for every row."""
    if not isinstance(part, Tensor):
        return part
    if len(part) != PROBE_ROWS or not torch.equal(part[0], part[1]):
        raise LoweringError(f"{call.name} has a constant for each row of the batch")
    return Exact(call.builder.constant(call.name, part[0]))


def find_rows(call: SymbolicCall, total: int, moved_places: Tensor) -> int:
    """The dimension along which the rows of a result lie; refused where they are mixed."""
    for axis, size in enumerate(moved_places.shape):
        if size == PROBE_ROWS:
            first, second = moved_places.unbind(axis)
            apart = torch.equal(torch.where(first > 0, first + total, 0), second)
            if apart and int(first.max() if first.numel() else 0) <= total:
                return axis
    raise LoweringError(f"{call.name} moves elements between the rows of a batch")


def follow(call: SymbolicCall, symbols: list[Any], moved_places: Tensor) -> Symbol:
    """The symbol whose elements are in the places that PyTorch has moved them to."""
    total = sum(int(np.prod(symbol.shape)) for symbol in symbols)
    axis = find_rows(call, total, moved_places)
    places = moved_places.select(axis, 0)
    index, shape = codes(places.reshape(-1).numpy()) - 1, tuple(places.shape)
    assert PADDING == -1  # the place 0 that PyTorch pads with
    if not index.size:
        raise LoweringError(f"{call.name} gives an empty tensor, which no rule covers")
    inner = [symbol.inner if isinstance(symbol, Turned) else symbol for symbol in symbols]
    found = move_symbols(call, inner, index, shape)
    return found if axis == 0 or isinstance(found, Float) else Turned(found, axis)


def move_symbols(call: SymbolicCall, symbols: list[Any], index: Codes, shape: Shape) -> Any:
    """The elements of rows of symbols in other places of a row."""
    index, symbols = of_what_is_read(index, symbols)
    only = symbols[0] if len(symbols) == 1 else None
    if isinstance(only, Float):
        return only
    padded = bool((index == PADDING).any())
    if padded and call.setting("value", 0):
        raise LoweringError(f"{call.name} pads with numbers other than 0")
    if isinstance(only, Raw) and not padded:
        combined = index if only.index is None else only.index[index]
        return replace(only, shape=shape, index=combined)
    if isinstance(only, Pending) and not padded:
        value = call.builder.move(call.name, [only.value], index, shape)
        return only.take(value, move_arrays(index, [only.rows], [only.shape], shape))
    if isinstance(only, Joined) and not padded:
        return replace(only, shape=shape, index=only.index[index])
    if not all(isinstance(symbol, Exact) for symbol in symbols):
        return join(symbols, index, shape)
    values = [call.value(symbol) for symbol in symbols]
    truth = all(symbol.is_truth for symbol in symbols)
    return Exact(call.builder.move(call.name, values, index, shape), truth)


def of_what_is_read(index: Codes, symbols: list[Any]) -> tuple[Codes, list[Any]]:
    """The only symbol whose elements are read, or all: some give a shape and nothing else."""
    ends = np.cumsum([0, *(int(np.prod(symbol.shape)) for symbol in symbols)])
    first = int(np.searchsorted(ends, int(index.max()), "right")) - 1
    only = len(symbols) > 1 and int(index.min()) >= ends[first] and index.max() < ends[first + 1]
    return (codes(index - ends[first]), symbols[first : first + 1]) if only else (index, symbols)


def join(symbols: list[Any], index: Codes, shape: Shape) -> Joined:
    """Join symbols; of those that are joined already, their parts are."""
    parts: list[Any] = []
    places, start = [], 0
    for symbol in symbols:
        joined = isinstance(symbol, Joined)
        own = symbol.index if joined else np.arange(int(np.prod(symbol.shape)))
        places.append(np.where(own == PADDING, PADDING, own + start))
        added = symbol.parts if joined else [symbol]
        parts += added
        start += sum(int(np.prod(part.shape)) for part in added)
    from_parts = np.concatenate(places)[index]
    return Joined(tuple(parts), codes(np.where(index == PADDING, PADDING, from_parts)), shape)


def expand(call: SymbolicCall, value: Value, shape: Shape) -> Value:
    """A value repeated to a shape that it broadcasts to."""
    index = np.broadcast_to(np.arange(value.size).reshape(value.shape), shape)
    return call.builder.move(call.name, [value], codes(index.reshape(-1)), shape)


def in_one_unit(call: SymbolicCall, one: Value, other: Value) -> tuple[Value, Value, bool]:
    """Two values as multiples of one unit, the nearest ones, and whether they are those."""
    ends = [end for each in (one, other) for end in (each.scale.min(), each.scale.max())]
    if not (one.is_scaled or other.is_scaled) or max(ends) <= min(ends) * (1 + SAME):
        return one, other, True
    unit = float(min(each.unit.min() for each in (one, other))) / 2**FINEST
    return as_multiples(call, one, unit), as_multiples(call, other, unit), False


def as_multiples(call: SymbolicCall, value: Value, unit: float) -> Value:
    """A value as the nearest multiples of a unit."""
    factor = codes(np.rint(value.unit / unit))
    scale = unit / value.scale
    return call.builder.emit(
        steps.Sum, call.name, [value], value.shape, 0, scale, factors=(factor,)
    )
