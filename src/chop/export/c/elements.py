"""The C of elementwise steps: each is one expression, no wider than its range needs."""

from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np

from chop.export.c.code import CText, literal, sum_type
from chop.export.c.plan import Floor, Stored, is_reshape
from chop.lowering import program as steps
from chop.lowering.program import Codes, Step, Value
from chop.lowering.ranges import reach, rounded_shift


@dataclass
class Elements:
    """Statements that compute the element at place ``p``, which is ``q * inner + i0``."""

    text: CText
    stored: dict[str, Stored]
    order: Codes | None
    inner: int
    needs: set[str]
    """Helpers that the statements call."""
    lines: list[str] = field(default_factory=list)
    current: dict[str, str] = field(default_factory=dict)
    """The variables of values that are not in memory."""

    def assign(self, value: Value, expression: str, magnitude: int) -> None:
        """Add a statement that computes a value."""
        name = f"x{len(self.current)}"
        self.lines.append(f"const {sum_type(magnitude)} {name} = {expression};")
        self.current[value.name] = name

    def index(self, places: Codes, size: int) -> str:
        """Return an index into an array of a size, given the place for each place of the result."""
        grid = places.reshape(-1, self.inner)
        if size == grid.size and (places == np.arange(size)).all():
            return "p"
        if (grid == grid[0]).all():
            row = grid[0]
            if (row == row[0]).all():
                return str(int(row[0]))
            straight = (row == np.arange(self.inner)).all()
            return "i0" if straight else f"{self.text.constant(row)}[i0]"
        if (grid == grid[:, :1]).all() and (grid[:, 0] == np.arange(len(grid))).all():
            return "q"
        return f"{self.text.constant(places)}[p]"

    def spread(self, array: Codes, step: Step) -> Codes:
        """One entry for each place of the result, in the order of memory."""
        shape = step.out.shape
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        flat = np.broadcast_to(array, shape).reshape(-1)
        return flat if self.order is None else flat[self.order]

    def entry(self, array: Codes, step: Step) -> str:
        """Return an expression for the entry of an array that broadcasts to the result."""
        if array.size == 1:
            return literal(int(array.reshape(-1)[0]))
        flat = self.spread(array, step)
        grid = flat.reshape(-1, self.inner)
        if (grid == grid[0, 0]).all():
            return literal(int(grid[0, 0]))
        if (grid == grid[0]).all():
            return f"{self.text.constant(grid[0])}[i0]"
        if (grid == grid[:, :1]).all():
            return f"{self.text.constant(grid[:, 0])}[q]"
        return f"{self.text.constant(flat)}[p]"

    def read(self, name: str, step: Step) -> str:
        """Return an expression for the element of a source."""
        if name in self.current:
            return self.current[name]
        found = self.stored[name]
        shape = found.value.shape
        places = self.spread(found.places.reshape(shape), step)
        return f"{found.name}[{self.index(places, found.value.size)}]"

    def add(self, step: Step, sources: list[Value]) -> None:
        """Add the statement of a step."""
        if is_reshape(step):
            self.current[step.out.name] = self.current[step.sources[0]]
            return
        reads = [self.read(name, step) for name in step.sources]
        write_element(step, self, reads, sources)

    def limit(self, step: Step, x: str, limits: tuple[Codes, Codes], given: tuple[Codes, Codes],
              magnitude: int) -> str:  # fmt: skip
        """Return an expression limited to a range, on the sides where it can leave it."""
        (low, high), (least, most) = limits, given
        kind = sum_type(magnitude)
        if (low > least).any():
            side = self.entry(np.maximum(low, -(2**62)), step)
            name = self.variable(kind, x)
            x = f"({name} < {side} ? {side} : {name})"
        if (high < most).any():
            side = self.entry(high, step)
            name = self.variable(kind, x)
            x = f"({name} > {side} ? {side} : {name})"
        return x

    def variable(self, kind: str, expression: str) -> str:
        """Return the name of a variable that holds an expression."""
        if expression.isidentifier():
            return expression
        name = f"t{len(self.lines)}"
        self.lines.append(f"const {kind} {name} = {expression};")
        return name


def largest_of(value: Value) -> int:
    """The largest magnitude of a code."""
    return max(map(abs, value.limits))


@singledispatch
def write_element(step: Step, to: Elements, reads: list[str], sources: list[Value]) -> None:
    """Add the statement that computes one element of a step."""
    raise NotImplementedError(type(step).__name__)


@write_element.register
def _(step: steps.Sum, to: Elements, reads: list[str], sources: list[Value]) -> None:
    magnitude = reach(step, sources)
    wide = f"({sum_type(magnitude)})"
    terms = []
    for read, factor in zip(reads, step.factors, strict=True):
        entry = to.entry(factor, step)
        terms.append(f"{wide}{read}" if entry == "1" else f"{wide}{read} * {entry}")
    to.assign(step.out, " + ".join(terms), magnitude)


@write_element.register
def _(step: steps.Multiply, to: Elements, reads: list[str], sources: list[Value]) -> None:
    magnitude = reach(step, sources)
    to.assign(step.out, f"({sum_type(magnitude)}){reads[0]} * {reads[1]}", magnitude)


@write_element.register
def _(step: steps.Clamp, to: Elements, reads: list[str], sources: list[Value]) -> None:
    magnitude = max(largest_of(sources[0]), largest_of(step.out))
    ends = sources[0].low, sources[0].high
    to.assign(step.out, to.limit(step, reads[0], (step.low, step.high), ends, magnitude), magnitude)


@write_element.register
def _(step: steps.Requantise, to: Elements, reads: list[str], sources: list[Value]) -> None:
    (source,) = sources
    ends = tuple(
        rounded_shift(side, step.shift, step.rounding) for side in (source.low, source.high)
    )
    before = largest_of(source)
    shifts = int(step.shift.min()), int(step.shift.max())
    after = max(int(np.abs(side).max()) for side in ends)
    reached = max(before + 2 ** max(shifts[1] - 1, 0), after)
    limits = max(abs(int(step.low.min())), abs(int(step.high.max())))
    rounded = rounding_code(step, to, reads[0], reached)
    wide = max(after, limits if limits < 2**62 else 0)
    if step.overflow == "saturate":
        result = to.limit(step, rounded, (step.low, step.high), (ends[0], ends[1]), wide)
    elif (ends[0] < step.low).any() or (ends[1] > step.high).any():
        to.needs.add("wrap")
        low, high = (to.entry(side, step) for side in (step.low, step.high))
        result = f"wrap({rounded}, {low}, {high})"
    else:
        result = rounded
    to.assign(step.out, result, max(after, largest_of(step.out)))


@write_element.register
def _(step: steps.Rescale, to: Elements, reads: list[str], sources: list[Value]) -> None:
    product = step.product_of(sources[0])
    kind = sum_type(largest_of(product))
    x = to.variable(kind, f"({kind}){reads[0]} * {to.entry(step.multiplier, step)}")
    write_element(step.division, to, [x], [product])


@write_element.register
def _(step: Floor, to: Elements, reads: list[str], sources: list[Value]) -> None:
    (source,), entry = sources, to.entry(step.shift, step)
    ends = source.low >> step.shift, source.high >> step.shift
    shifted = reads[0] if entry == "0" else f"{reads[0]} >> {entry}"
    largest = largest_of(source)
    result = to.limit(step, shifted, (step.low, step.high), ends, largest)
    to.assign(step.out, result, max(largest, largest_of(step.out)))


def rounding_code(step: steps.Requantise, to: Elements, x: str, reached: int) -> str:
    """Return an expression for a code divided by a power of two, in 32 bits if the range allows."""
    entry, kind = to.entry(step.shift, step), sum_type(reached)
    if not entry.lstrip("-").isdigit() or int(entry) > 31:
        name = step.rounding if kind == "int64_t" or entry.isdigit() else f"{step.rounding}_32"
        to.needs.add(name)
        return f"{name}({x}, {entry})"
    shift = int(entry)
    if shift <= 0:
        return x if shift == 0 else f"({kind}){x} * {literal(1 << -shift)}"
    x = to.variable(kind, x)
    half = 1 << (shift - 1)
    if step.rounding == "half_up":
        return f"({x} + {literal(half)}) >> {shift}"
    odd = f"(({x} >> {shift}) & 1)"
    return f"({x} + {literal(half - 1)} + {odd}) >> {shift}" if half > 1 else f"({x} + {odd}) >> 1"


@write_element.register
def _(step: steps.Table, to: Elements, reads: list[str], sources: list[Value]) -> None:
    table, width = to.text.constant(step.table), step.table.shape[1]
    row = to.entry(step.rows, step)
    start = literal(-step.start) if step.start <= 0 else f"({literal(-step.start)})"
    place = f"{reads[0]} + {start}" if step.start else reads[0]
    place = place if row == "0" else f"(int32_t){row} * {width} + {place}"
    to.assign(step.out, f"{table}[{place}]", largest_of(step.out))
