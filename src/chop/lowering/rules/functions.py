"""Functions of single elements: limits where they are, tables elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, floor
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chop.ir.call import NodeCall
from chop.lowering.builder import LARGEST_TABLE
from chop.lowering.formats import LoweringError
from chop.lowering.from_graph import SymbolicCall
from chop.lowering.program import PADDING, Clamp, Codes, Shape, Sum, Table, Value
from chop.lowering.ranges import codes, compact
from chop.lowering.symbols import Exact, Float, Joined, Pending, Raw, Symbol, symbols_in
from chop.ops.op import OPS, Reads, lowering, op_of_node

UNLIMITED = 2**62
MIRRORED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}
VECTOR = 64
"""Elements of which PyTorch computes a multiple with vector instructions."""
FEW_PLACES, MANY_PLACES, AT_ONCE = 3, 32, 2**22
Layout = Literal["many", "few", "gaps"]
"""Many or few places of a channel side by side, or none."""


@lowering(Reads.PLACE)
def lower_elementwise(call: SymbolicCall) -> Symbol:
    """Any function of one element and numbers."""
    if len([v for v in call.operands.values() if isinstance(v, Exact | Pending | Tensor)]) > 1:
        return call.float_result("has two operands that vary")
    return of_each_code(call, call.source)


def of_each_code(
    call: SymbolicCall, symbol: Symbol, function: Callable[[Tensor], Tensor] | None = None
) -> Symbol:
    """A function that PyTorch computes for every code; the node's own unless another is given."""
    if isinstance(symbol, Joined) and not (symbol.index == PADDING).any():
        parts: list[Any] = [of_each_code(call, part, function) for part in symbol.parts]
        failed = next((part for part in parts if isinstance(part, Float)), None)
        return failed or replace(symbol, parts=tuple(parts))
    found = codes_to_compute(call, symbol)
    if isinstance(found, Float):
        return found
    function = function or call.run
    again = tuple(one_by_one(function, part) for part in found.again)
    return replace(found, numbers=by_vector(function, found.numbers), again=again)


@lowering("eq", "ne", "lt", "le", "gt", "ge", "logical_not")
def lower_comparison(call: SymbolicCall) -> Symbol:
    """Lower a comparison of a value with a number: a table of zeros and ones."""
    symbols = symbols_in(dict(call.operands))
    if len(symbols) != 1 or any(isinstance(v, Tensor) and v.dim() for v in call.operands.values()):
        return call.float_result("compares two things that vary")
    symbol = symbols[0]
    if isinstance(symbol, Raw):
        symbol = index_of_input(call, symbol)
    if (wide := compare_wide(call, symbol)) is not None:
        return wide
    is_truth = isinstance(symbol, Exact) and symbol.is_truth

    def compare(numbers: Tensor) -> Tensor:
        truth: Tensor = call.run(numbers.bool() if is_truth else numbers)
        return truth.to(numbers.dtype)

    found = of_each_code(call, symbol, compare)
    return found if isinstance(found, Float) else Exact(call.value(found), is_truth=True)


def compare_wide(call: SymbolicCall, symbol: Symbol) -> Exact | None:
    """Lower a comparison of codes that are too many for a table: they are limited to two."""
    left, right = (*call.operands.values(), None)[:2]
    name = call.op.name if left is symbol else MIRRORED.get(call.op.name, "")
    number = right if left is symbol else left
    if not isinstance(symbol, Exact) or not isinstance(number, int | float) or name not in MIRRORED:
        return None
    value = symbol.value
    low, high = value.limits
    if high - low < LARGEST_TABLE or value.is_scaled or value.frac.ndim:
        return None
    place = number * 2.0 ** int(value.frac)
    first = ceil(place) if name in ("ge", "lt") else floor(place) + 1
    sign = 1 if name in ("gt", "ge") else -1  # of codes less the last that is not above
    shape, frac, rank = value.shape, value.frac, len(value.shape)
    offset = torch.full(
        (1,) * rank, (1 - first if sign > 0 else first) * 2.0 ** -int(frac)
    ).double()
    term = call.builder.constant(call.name, offset)
    factors = codes(sign), codes(2 ** (int(frac) - int(term.frac)))
    apart = call.builder.emit(Sum, call.name, [value, term], shape, frac, factors=factors)
    limited = call.builder.emit(Clamp, call.name, [apart], shape, frac, low=codes(0), high=codes(1))
    whole = call.builder.emit(Sum, call.name, [limited], shape, 0, factors=(codes(1),))
    return Exact(whole, is_truth=True)


def index_of_input(call: SymbolicCall, symbol: Raw) -> Exact:
    """An input of whole numbers, which choose the rows of the smallest table that reads it."""
    limits = 0, 0, rows_of_tables(call, symbol.placeholder) - 1
    value = call.builder.input(symbol.placeholder, symbol.source_shape, None, limits)
    if symbol.index is None:
        return Exact(call.builder.reshape(call.name, value, symbol.shape))
    return Exact(call.builder.move(call.name, [value], symbol.index, symbol.shape))


def rows_of_tables(call: SymbolicCall, placeholder: str) -> int:
    """The number of rows of the smallest table that an input chooses from."""
    found = []
    for node in call.lowering.graph.nodes:
        other = NodeCall.of(node, call.modules)
        if other.op is not OPS["embedding"]:
            continue
        source = next(iter(node.all_input_nodes), node)
        while (op := op_of_node(source, call.modules)) and op.reads in (Reads.MOVED, Reads.SAME):
            source = source.all_input_nodes[0]
        if source.target == placeholder:
            weight: Any = other.arguments.get("weight") if other.layer is None else None
            is_stored = weight is not None and weight.op == "get_attr"
            table: Any = other.layer if weight is None else call.lowering.results.get(weight)
            if is_stored:  # whether it was visited already or not
                table = attrgetter(weight.target)(call.lowering.graph.model)
            found.append(len(getattr(table, "weight", table)))
    if not found:
        raise LoweringError(
            f"{call.name} reads the input {placeholder!r} in floating point: quantise {call.name} "
            "(its data_in)"
        )
    return min(found)


@lowering("long")
def whole_numbers(call: SymbolicCall) -> Symbol:
    """Numbers without what is after the point, as indices have to be."""
    symbol = call.source
    if call.node.target == "bool":
        return call.float_result("gives truth values, which no rule covers")
    if isinstance(symbol, Exact) and (symbol.value.frac <= 0).all() and not symbol.value.is_scaled:
        return symbol
    return of_each_code(call, symbol, lambda numbers: numbers.trunc())


def entries(call: SymbolicCall) -> Symbol:
    """An embedding of codes in one number each: a table that the network has itself."""
    table = call.operands.get("weight")
    value = call.value(call.source)
    low, high = value.limits
    if not isinstance(table, Tensor) or table.shape[1] != 1 or value.frac.any():
        raise LoweringError(f"{call.name} must read an input of the network as it is")
    if low < 0 or high >= len(table):
        raise LoweringError(
            f"{call.name} has {len(table)} entries, and its input may be {low} to {high}"
        )
    column = call.builder.reshape(call.name, value, (*value.shape, 1))
    entry = table.detach()[:, 0]
    return of_each_code(call, Exact(column), lambda numbers: entry[numbers.long()])


def by_vector(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The function of elements that lie side by side, which vector instructions compute."""
    flat = x.reshape(-1)
    filled = torch.cat([flat, flat[-1:].expand(-len(flat) % VECTOR)])
    return function(filled)[: len(flat)].reshape(x.shape)


def one_by_one(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The function of elements with gaps between, computed like the last odd ones of a tensor.

    The results may differ in the last bit, and with them those of batches of different sizes.
    """
    return function(torch.stack([x.reshape(-1)] * 2, dim=-1)[:, 0]).reshape(x.shape)


def codes_to_compute(call: SymbolicCall, symbol: Symbol) -> Pending | Float:
    """The numbers of a symbol, one for each code; Float if there are too many."""
    if isinstance(symbol, Pending):
        return symbol
    value = call.value(symbol)
    try:
        return call.builder.pending(value, call.name)
    except LoweringError as error:
        return call.float_result(str(error).removeprefix(f"{call.name} "))


@lowering("relu", "relu6", "hardtanh", "clamp")
def lower_limits(call: SymbolicCall) -> Symbol:
    """Limits that are codes; a table where they lie between codes, or after another function."""
    symbol = call.source
    if isinstance(symbol, Pending):
        return of_each_code(call, symbol)
    value = call.value(symbol)
    bounds = limits_of_call(call)
    if bounds is None:
        return call.float_result("is limited by something that varies")
    sides = [None if side is None else side / value.unit for side in bounds]
    if value.is_scaled:  # sums are read as whole units, and so are limits
        sides = [None if side is None else np.rint(side) for side in sides]
    if any(side is not None and (side != np.floor(side)).any() for side in sides):
        return of_each_code(call, symbol)
    low = codes(-UNLIMITED if sides[0] is None else sides[0])
    high = codes(UNLIMITED if sides[1] is None else sides[1])
    low = np.minimum(low, high)  # where they are the wrong way round, PyTorch gives the upper one
    if (value.low >= low).all() and (value.high <= high).all():
        return Exact(value)
    return call.emit(Clamp, [value], value.shape, value.frac, low=low, high=high)


def limits_of_call(call: SymbolicCall) -> tuple[float | None, float | None] | None:
    """Between which numbers a function limits its input; None if that is not known."""
    if call.op.name == "relu":
        return 0.0, None
    if call.op.name == "relu6":
        return 0.0, 6.0
    if call.op.name == "hardtanh":
        return float(call.setting("min_val", -1.0)), float(call.setting("max_val", 1.0))
    named = dict(zip(("min", "max"), call.node.args[1:], strict=False)) | dict(call.node.kwargs)
    found = [named.get("min"), named.get("max")]
    if any(isinstance(side, Tensor) or not isinstance(side, int | float | None) for side in found):
        return None
    low, high = (None if side is None else float(side) for side in found)  # type: ignore[arg-type]
    return low, high


@lowering("batch_norm1d", "batch_norm2d", "batch_norm3d", "batch_norm", "prelu")
def by_channel(call: SymbolicCall) -> Symbol:
    """A function of one element that differs between channels."""
    if (
        isinstance(call.module, nn.modules.batchnorm._BatchNorm)
        and call.module.running_mean is None
    ):
        raise LoweringError(f"{call.name} has no running statistics: it depends on the batch")
    found = codes_to_compute(call, call.source)
    if isinstance(found, Float):
        return found
    shape = found.shape
    channels = shape[0] if len(shape) > 0 else 1
    numbers = on_channels(call, found.numbers, channels, shape, "many")
    layouts: tuple[Layout, ...] = ("few", "gaps") if call.reads_out_of_order else ("few",)
    again = [
        on_channels(call, part, channels, shape, how) for part in found.again for how in layouts
    ]
    # Each of the functions so far, in each channel: those that some element has are kept.
    axis = np.arange(channels).reshape((-1,) + (1,) * (len(shape) - 1))
    pairs = found.rows * channels + axis
    kept, rows = np.unique(pairs, return_inverse=True)
    kept_rows = torch.from_numpy(kept)
    return replace(
        found,
        numbers=numbers[kept_rows],
        again=tuple(part[kept_rows] for part in again),
        rows=compact(codes(rows.reshape(pairs.shape)), shape),
    )


def on_channels(
    call: SymbolicCall, numbers: Tensor, channels: int, shape: Shape, layout: Layout
) -> Tensor:
    """The results of each channel for each row of numbers: row times channel rows.

    Images are computed with vector instructions where a channel has many places, and without where
    it has few. For rows of features it is the number of channels that decides, which is the same.
    """
    spread = (FEW_PLACES if layout == "few" else MANY_PLACES,) * (len(shape) > 1)
    ones = (1,) * (len(shape) - 1 - len(spread))
    piece = max(AT_ONCE // (channels * MANY_PLACES), 1)
    results = []
    for row in numbers:
        parts = []
        for some in torch.split(row, piece):
            x = some.reshape(-1, *(1,) * len(shape)).expand(len(some), channels, *ones, *spread)
            x = x if layout == "gaps" else x.contiguous()
            parts.append(call.run(x).reshape(len(some), channels, -1)[..., -1])
        results.append(torch.cat(parts).T)
    return torch.cat(results).contiguous()


def rank_codes(call: SymbolicCall) -> Exact | tuple[Value, Callable[[Value], Pending]]:
    """The codes that a maximum compares, or the ranks of a function's results for them.

    A function that nothing has rounded gives numbers that need not fit any format; their order
    does. The second part turns ranks back into numbers.
    """
    symbol = call.source
    if not isinstance(symbol, Pending):
        return Exact(call.value(symbol))
    rows = _by_channel(symbol.rows, symbol.shape, call)
    ranks = [ranking(*same) for same in zip(symbol.numbers, *symbol.again, strict=True)]
    own = {"table": codes(np.stack([rank.places for rank in ranks])), "start": symbol.start}
    own |= {"rows": compact(symbol.rows, symbol.shape), "stable": all(r.stable for r in ranks)}
    value = call.builder.emit(Table, call.name, [symbol.value], symbol.shape, 0, **own)

    def back(pooled: Value) -> Pending:
        low, high = pooled.limits
        every = torch.arange(low, high + 1)
        numbers, *again = (
            torch.stack([part[every.clamp(max=len(part) - 1)] for part in side])
            for side in zip(*((r.numbers, r.least, r.most) for r in ranks), strict=True)
        )
        shaped = rows.reshape((-1,) + (1,) * (len(pooled.shape) - 1))
        return Pending(pooled, numbers, tuple(again), compact(shaped, pooled.shape))

    return value, back


class Ranking(NamedTuple):
    """The order of some numbers."""

    places: NDArray[np.int64]
    """The rank of each."""
    numbers: Tensor
    """The number of each rank."""
    least: Tensor
    """The smallest that some memory layout gives for it."""
    most: Tensor
    """The largest."""
    stable: bool
    """Any mixture of the layouts has the same order."""


def ranking(numbers: Tensor, *again: Tensor) -> Ranking:
    """The order of numbers that were computed in several layouts."""
    ranked, places = torch.unique(numbers, return_inverse=True)
    least, most = ranked.clone(), ranked.clone()
    for part in again:
        least.scatter_reduce_(0, places, part, "amin")
        most.scatter_reduce_(0, places, part, "amax")
    in_order = bool((most[:-1] <= least[1:]).all())
    return Ranking(places.numpy(), ranked, least, most, in_order)


def _by_channel(rows: Codes, shape: tuple[int, ...], call: SymbolicCall) -> Codes:
    """The function of each channel, if all its elements have the same."""
    full = np.broadcast_to(rows, shape).reshape(shape[0], -1)
    if (full != full[:, :1]).any():
        raise LoweringError(f"{call.name} compares different functions: quantise its data_in")
    return full[:, 0]
