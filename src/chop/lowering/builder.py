"""The steps of a program as they are made: operands rounded, binary points aligned."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.lowering import program as steps
from chop.lowering.dyadic import dyadic
from chop.lowering.engine import kernel
from chop.lowering.formats import (
    LoweringError,
    by_element,
    input_limits,
    input_scale,
    of_parts,
    of_rows,
    point_and_scale,
    rescaling,
    with_fields,
)
from chop.lowering.program import PADDING, Codes, Input, Numbers, Shape, Step, Value
from chop.lowering.ranges import (
    FURTHEST,
    TooWideError,
    bounds,
    codes,
    compact,
    move_arrays,
    rounded_shift,
)
from chop.lowering.shapes import UnequalScalesError, scale_after
from chop.lowering.symbols import Exact, Float, Joined, Pending, Raw, Symbol, Turned
from chop.numerics import (
    FORMATS,
    Integer,
    IntegerScaled,
    NumberFormat,
)
from chop.numerics.granular import code_limits

LARGEST_TABLE = 2**16
OUTPUT_NODE = "output"
"""The name that torch.fx gives to the last node."""


def by_row(symbol: Pending, fmt: Integer, node: str) -> tuple[Pending, Integer]:
    """A row of numbers for each function and format that occur together, and its format."""
    fields = of_rows(fmt, symbol.shape, node)
    together = np.stack(np.broadcast_arrays(symbol.rows, *fields), axis=-1)
    found, rows = np.unique(together.reshape(-1, 4), axis=0, return_inverse=True)
    functions = torch.from_numpy(found[:, 0])
    pending = replace(
        symbol,
        numbers=symbol.numbers[functions],
        again=tuple(part[functions] for part in symbol.again),
        rows=compact(codes(rows.reshape(together.shape[:-1])), symbol.shape),
    )
    return pending, with_fields(fmt, np.split(found[:, 1:], 3, axis=1))


class ProgramBuilder:
    """Collects inputs and steps; every method that emits gives the value that results."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self._names: Counter[str] = Counter()
        self._constants: dict[str, Codes] = {}
        self._rounded: dict[tuple[str, Any], Value] = {}
        self._in_double = False
        self._off_grid: set[str] = set()
        """Values whose sums hold a term that is not a multiple of their scale."""

    def note_terms(self, sums: Exact, whole: bool) -> Exact:
        """Take note of sums with a term that is not a whole multiple of their scale."""
        if not whole:
            self._off_grid.add(sums.value.name)
        return sums

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make the steps of an operation that is computed in float64, whatever the network is."""
        before, self.dtype, self._in_double = self.dtype, torch.float64, True
        try:
            yield
        finally:
            self.dtype, self._in_double = before, False

    def show(self, values: Sequence[Value]) -> None:
        """Take note that values leave such an operation, and are then in the network's own type."""
        names = {value.name for value in values}
        for place, step in enumerate(self.steps):
            if step.out.name in names:
                self.steps[place] = replace(step, in_double=False)

    def name(self, wanted: str) -> str:
        """A name that no value has yet."""
        self._names[wanted] += 1
        count = self._names[wanted]
        return wanted if count == 1 else self.name(f"{wanted}_{count - 1}")

    def emit(
        self,
        step: type[Step],
        node: str,
        sources: Sequence[Value],
        shape: Shape,
        frac: Any,
        scale: Any = 1.0,
        **own: Any,
    ) -> Value:
        """Add a step; its range follows from those of its sources.

        Args:
            scale: of its constants or format; those of its sources are multiplied with it.
        """
        names = tuple(source.name for source in sources)
        blank = Value(self.name(node), shape, compact(codes(frac), shape), codes(0), codes(0))
        fields = {name: _as_arrays(value) for name, value in own.items()}
        made = step(node, names, blank, **fields, in_double=self._in_double)
        given = [self._constants[name] for name in names if name in self._constants]
        if names and len(given) == len(names):
            known = kernel(made, torch.int64)(*(torch.from_numpy(each)[None] for each in given))
            scale = scale_after(made, *sources) * scale
            return self.emit(
                steps.Constant, node, [], shape, frac, scale, codes=codes(known[0].numpy())
            )
        low, high = bounds(made, *sources)
        try:
            scale = compact(np.asarray(scale_after(made, *sources) * scale), shape)
        except UnequalScalesError as error:
            raise LoweringError(f"{node} {error}: give it a data_in of one scale") from None
        low, high = compact(codes(low), shape), compact(codes(high), shape)
        value = replace(blank, low=low, high=high, scale=scale)
        self.steps.append(replace(made, out=value))
        if step is steps.Constant:
            self._constants[value.name] = np.broadcast_to(fields["codes"], shape).copy()
        if not self._off_grid.isdisjoint(names) and step not in (steps.Rescale, steps.Table):
            self._off_grid.add(value.name)
        return value

    def input(self, placeholder: str, shape: Shape, fmt: NumberFormat | None, limits: Any) -> Value:
        """The codes of a network's input; asked for the same twice, the same value."""
        key = (placeholder, fmt)
        if key not in self._rounded:
            frac, low, high = limits
            ends = codes(frac), codes(low), codes(high)
            scale = compact(input_scale(fmt, shape, placeholder), shape)
            value = Value(self.name(placeholder), shape, *ends, scale)
            self.inputs.append(
                Input(value, placeholder, None if fmt is None else _format_record(fmt))
            )
            self._rounded[key] = value
        return self._rounded[key]

    def constant(self, node: str, numbers: Tensor) -> Value:
        """Numbers that are the same for every row."""
        values, frac = dyadic(numbers)
        return self.emit(steps.Constant, node, [], tuple(values.shape), frac, codes=values)

    def move(self, node: str, sources: Sequence[Value], index: Codes | None, shape: Shape) -> Value:
        """Codes in other places, each with its binary point; nothing where nothing changes."""
        size = sources[0].size
        if index is not None and len(sources) == 1 and size == index.size:
            index = None if (index.reshape(-1) == np.arange(size)).all() else index.reshape(-1)
        if index is None and sources[0].shape == shape:
            return sources[0]
        shapes = [source.shape for source in sources]
        frac = move_arrays(index, [source.frac for source in sources], shapes, shape)
        return self.emit(steps.Move, node, sources, shape, frac, index=index)

    def reshape(self, node: str, value: Value, shape: Shape) -> Value:
        """The same codes in another shape."""
        return self.move(node, [value], None, shape)

    def align(self, node: str, value: Value, frac: int | None = None) -> Value:
        """The value with one binary point for all elements, `frac` or the finest that it has."""
        frac = int(value.frac.max()) if frac is None else frac
        if (value.frac == frac).all():
            return value
        factor = np.left_shift(codes(1), frac - value.frac)
        return self.emit(steps.Sum, node, [value], value.shape, frac, factors=(factor,))

    def exact(self, symbol: Symbol, node: str) -> Value:
        """A symbol as a value, without rounding it; what cannot be one is refused."""
        match symbol:
            case Exact(value=value):
                return value
            case Pending():
                return self.tabulate(symbol, None, node)
            case Raw():
                raise LoweringError(
                    f"{node} reads the input {symbol.placeholder!r} in floating point: "
                    f"quantise {node} (its data_in)"
                )
            case Joined():
                values = [self.exact(part, node) for part in symbol.parts]
                return self.move(node, values, symbol.index, symbol.shape)
            case Turned():
                raise LoweringError(
                    f"{node} reads rows along dimension {symbol.axis}, and computes along the "
                    "first: permute before it"
                )
            case Float():
                raise LoweringError(f"{node} reads {symbol.node}, and {symbol.reason}")

    def round_symbol(self, symbol: Symbol, fmt: NumberFormat, node: str) -> Exact:
        """A symbol in a number format."""
        obstacle = by_element(fmt)
        if obstacle is not None:
            raise LoweringError(f"{node}: {obstacle}; quantise its data to 'integer'")
        if isinstance(symbol, Raw):
            return self._round_input(symbol, fmt, node)
        if isinstance(symbol, Pending):
            return Exact(self.tabulate(symbol, fmt, node))
        if isinstance(symbol, Joined):
            return self._round_joined(symbol, fmt, node)
        value = self.exact(symbol, node)
        if isinstance(fmt, IntegerScaled) or (isinstance(fmt, Integer) and value.is_scaled):
            return Exact(self._rescale(value, fmt, node))
        if isinstance(fmt, Integer):
            return Exact(self._requantise(value, fmt, node))
        return Exact(self.tabulate(self.pending(value, node), fmt, node))

    def _round_joined(self, symbol: Joined, fmt: NumberFormat, node: str) -> Exact:
        shapes, index = [part.shape for part in symbol.parts], symbol.index
        formats: Sequence[NumberFormat] = [fmt] * len(shapes)
        if isinstance(fmt, Integer):
            formats = of_parts(fmt, index, symbol.shape, shapes, node)
        elif isinstance(fmt, IntegerScaled) and (fmt.scales.size > 1 or fmt.grid is not None):
            raise LoweringError(f"{node} rounds several results together: give it one plain scale")
        pairs = zip(symbol.parts, formats, strict=True)
        values = [self.round_symbol(part, own, node).value for part, own in pairs]
        zero = fmt(torch.zeros(1)) if not isinstance(fmt, Integer) else torch.zeros(1)
        if zero.any() and (index == PADDING).any():  # a format such as bipolar has no zero
            index = np.where(index == PADDING, sum(map(prod, shapes)), index)
            values.append(self.constant(node, zero))
        return Exact(self.move(node, values, index, symbol.shape))

    def _round_input(self, symbol: Raw, fmt: NumberFormat, node: str) -> Exact:
        if isinstance(fmt, Integer):
            shape = symbol.source_shape
            if fmt.granular and (symbol.index is not None or symbol.shape != shape):
                index = np.arange(prod(shape)) if symbol.index is None else symbol.index
                (fmt,) = of_parts(fmt, index, symbol.shape, [shape], node)
        elif isinstance(fmt, IntegerScaled) and fmt.grid is not None:
            raise LoweringError(f"{node} rounds an input of the network by a grid: leave that out")
        elif isinstance(fmt, IntegerScaled) and fmt.scales.size > 1 and symbol.index is not None:
            raise LoweringError(f"{node} rounds a moved input by channel: give it one scale")
        limits = input_limits(fmt, symbol.source_shape, node)
        value = self.input(symbol.placeholder, symbol.source_shape, fmt, limits)
        if symbol.index is None:
            return Exact(value)
        return Exact(self.move(node, [value], symbol.index, symbol.shape))

    def _rescale(self, value: Value, fmt: NumberFormat, node: str) -> Value:
        own = rescaling(value, fmt, node)
        if own is None:
            return value
        own["in_integers"] = own["in_integers"] and value.name not in self._off_grid
        key = (value.name, fmt)
        if key not in self._rounded:
            self._rounded[key] = self.emit(steps.Rescale, node, [value], value.shape, **own)
        return self._rounded[key]

    def _requantise(self, value: Value, fmt: Integer, node: str) -> Value:
        frac, low, high = code_limits(*of_rows(fmt, value.shape, node))
        shift = compact(value.frac - frac, value.shape)
        shift = np.clip(shift, -FURTHEST, FURTHEST + 1)  # beyond, codes are or become 0
        if (shift <= 0).all():
            limits = [rounded_shift(side, shift, fmt.rounding) for side in (value.low, value.high)]
            if (limits[0] >= low).all() and (limits[1] <= high).all():
                return value  # already numbers of the format
        key = (value.name, fmt)
        if key not in self._rounded:
            modes = {"rounding": fmt.rounding, "overflow": fmt.overflow}
            own = {"shift": shift, "low": low, "high": high} | modes
            self._rounded[key] = self.emit(
                steps.Requantise, node, [value], value.shape, frac, **own
            )
        return self._rounded[key]

    def pending(self, value: Value, node: str) -> Pending:
        """Every code that a value can have, as a number, to compute functions of."""
        value = self.align(node, value)
        low, high = value.limits
        if high - low >= LARGEST_TABLE:
            raise LoweringError(
                f"{node} would be a table of {high - low + 1:,} entries, and {LARGEST_TABLE:,} are "
                f"the most: quantise {node} (its data_in, or the data_out of what it reads) to "
                "fewer bits, 16 at most"
            )
        if value.unit.size > 1:
            raise LoweringError(f"{node} reads channels of several scales: give it a data_in")
        every = np.arange(low, high + 1)[None] * value.unit.astype(np.float64)
        numbers = torch.from_numpy(every).to(self.dtype)
        return Pending(value, numbers, (numbers,), codes(0))

    @staticmethod
    def _as_codes(numbers: Tensor, node: str) -> tuple[Codes, int]:
        try:
            return dyadic(numbers)
        except TooWideError as error:
            advice = "leave it off with cut_tail" if node == OUTPUT_NODE else f"quantise {node}"
            raise LoweringError(
                f"{node} reads a function that nothing rounds, which {error}: give it a data_out, "
                f"or {advice}"
            ) from None

    def tabulate(self, symbol: Pending, fmt: NumberFormat | None, node: str) -> Value:
        """The pending function, rounded to a format or exactly as it is, as a table."""
        if isinstance(fmt, Integer) and fmt.granular:
            symbol, fmt = by_row(symbol, fmt, node)
        layouts = (symbol.numbers, *symbol.again)
        results = [part if fmt is None else fmt(part) for part in layouts]
        if not results[0].isfinite().all():
            raise LoweringError(
                f"{node} reads a function that is infinite or not a number for some input codes"
            )
        scale = np.ones(())
        if isinstance(fmt, Integer):
            point = fmt.arrays[1]
            values = codes(np.ldexp(results[0].double().numpy(), point))
        elif isinstance(fmt, IntegerScaled):
            values, (point, scale) = fmt.steps(symbol.numbers).numpy(), self._table_scale(fmt, node)
        else:
            values, finest = self._as_codes(results[0], node)
            point = codes(finest)
        value = symbol.value
        own = {"table": values, "rows": compact(symbol.rows, value.shape), "start": symbol.start}
        own["stable"] = all(torch.equal(part, results[0]) for part in results)
        frac = point.reshape(-1)[symbol.rows] if point.shape else point
        return self.emit(steps.Table, node, [value], value.shape, frac, scale, **own)

    @staticmethod
    def _table_scale(fmt: IntegerScaled, node: str) -> tuple[Codes, Numbers]:
        """The binary point and scale of a table."""
        if fmt.scales.size > 1 or fmt.grid is not None:
            raise LoweringError(f"{node} rounds a function of one code: give it one plain scale")
        return point_and_scale(fmt.scales.reshape(()))


def _as_arrays(value: Any) -> Any:
    """A field of a step; NumPy makes single numbers of arrays without dimensions."""
    if isinstance(value, tuple):
        return tuple(_as_arrays(item) for item in value)
    return codes(value) if isinstance(value, np.generic) else value


def _format_record(fmt: NumberFormat) -> Mapping[str, Any]:
    name = next(name for name, kind in FORMATS.items() if kind is type(fmt))
    return {"name": name, **fmt.model_dump()}
