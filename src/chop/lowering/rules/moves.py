"""Data movement: PyTorch moves the places of elements, and the program follows."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.lowering.builder import LoweringError
from chop.lowering.from_graph import SymbolicCall
from chop.lowering.program import PADDING, Codes, Shape, Value
from chop.lowering.ranges import codes, move_arrays
from chop.lowering.symbols import PROBE_ROWS, Exact, Float, Joined, Pending, Raw, Symbol, symbols_in
from chop.ops.op import Reads, lowering


@lowering(Reads.SAME)
def lower_identity(call: SymbolicCall) -> Symbol:
    """Lower an operation that does nothing in evaluation: its symbol is its operand's."""
    symbol: Symbol = call.source
    return symbol


@lowering(Reads.SHAPE)
def fact(call: SymbolicCall) -> Any:
    """A fact about a shape, for some number of rows."""
    symbol: Any = symbols_in(dict(call.operands))[0]
    return call.run(torch.empty((PROBE_ROWS, *symbol.shape), dtype=call.builder.dtype))


@lowering(Reads.MOVED)
def movement(call: SymbolicCall) -> Any:
    """Elements in other places, or in parts."""
    if isinstance(call.source, tuple) and call.op.name == "getitem":
        place: Any = call.node.args[1]
        return call.source[place]
    symbols: list[Any] = symbols_in(dict(call.operands))
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
        found.append(torch.cat([row + total * number for number in range(PROBE_ROWS)]))
        start += size
    return found


def index_of(call: SymbolicCall, symbols: list[Any], moved_places: Tensor) -> Codes:
    """The sources of the elements of a row; refused where they come from other rows."""
    total = sum(int(np.prod(symbol.shape)) for symbol in symbols)
    expected = (
        [
            torch.where(moved_places[0] > 0, moved_places[0] + total * number, 0)
            for number in range(PROBE_ROWS)
        ]
        if moved_places.dim() and len(moved_places) == PROBE_ROWS
        else []
    )
    if not expected or not torch.equal(torch.stack(expected), moved_places):
        raise LoweringError(f"{call.name} moves elements between the rows of a batch")
    index = codes(moved_places[0].reshape(-1).numpy()) - 1
    if not index.size:
        raise LoweringError(f"{call.name} gives an empty tensor, which no rule covers")
    if index.max(initial=0) >= total:
        raise LoweringError(f"{call.name} moves elements between the rows of a batch")
    assert PADDING == -1  # the place 0 that PyTorch pads with
    return index


def follow(call: SymbolicCall, symbols: list[Any], moved_places: Tensor) -> Symbol:
    """The symbol whose elements are in the places that PyTorch has moved them to."""
    index, shape = index_of(call, symbols, moved_places), tuple(moved_places.shape[1:])
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
    return Exact(call.builder.move(call.name, values, index, shape))


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
