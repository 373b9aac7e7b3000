"""Memory and names of values while layers are written as C."""

from dataclasses import dataclass, field
from math import prod

import numpy as np

from chop.export.c.code import BYTES, SHORT, CText, c_type, loops, short_type
from chop.export.c.elements import Elements
from chop.export.c.plan import ELEMENTWISE, Buffer, Layer, Stored, bytes_of
from chop.lowering.program import Codes, Step, Value


@dataclass
class LayerWriter:
    """Writes layers one after the other, and takes note of the memory they need."""

    text: CText
    values: dict[str, Value]
    stored: dict[str, Stored]
    buffers: list[Buffer] = field(default_factory=list)
    last_use: dict[str, int] = field(default_factory=dict)
    """The last layer that reads each value from memory."""
    wanted: dict[str, str] = field(default_factory=dict)
    """Names of arrays of the caller, by the values that go there."""
    number: int = 0
    """The layer that is being written."""
    arrays: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Type and number of the buffer of each array in the arena."""
    needs: set[str] = field(default_factory=set)
    code: dict[str, str] = field(default_factory=dict)
    """Fixed functions that are called, by name."""
    forms: dict[str, str] = field(default_factory=dict)
    """The form of the constant matrix of each value that is a product with one."""

    def source(self, step: Step, place: int = 0) -> Stored:
        """A source of a step in memory."""
        return self.stored[step.sources[place]]

    def buffer(self, label: str, size: int, kind: str, last: int) -> tuple[str, int]:
        """Make a buffer of a type; return the name of its array, and its number."""
        self.buffers.append(Buffer(label, size, self.number, last))
        number = len(self.buffers) - 1
        return self.array(kind, number), number

    def array(self, kind: str, buffer: int) -> str:
        """Return the name of an array of a type in a buffer."""
        name = f"v{len(self.arrays)}"
        self.arrays[name] = kind, buffer
        self.text.kinds[name] = f"{kind} *"
        return name

    def in_order(self, stored: Stored) -> Stored:
        """Return a value with its elements in order, copied if need be."""
        if stored.order is None:
            return stored
        kind = short_type(stored.value)
        name, number = self.buffer(
            f"{stored.value.name} in order", bytes_of(stored.value), kind, self.number
        )
        lines = reordering(stored, name)
        self.text.call(lines, f"{stored.value.name} in order")
        return Stored(name, stored.value, None, stored.inner, number)

    def in_fours(self, stored: Stored) -> Stored:
        """Return a copy with channels fastest and zeros up to a multiple of four of them."""
        channels, pixels = stored.value.shape[0], prod(stored.value.shape[1:])
        wide, kind = -(-channels // 4) * 4, short_type(stored.value)
        size = pixels * wide * BYTES[c_type(*stored.value.limits)]
        name, number = self.buffer(f"{stored.value.name} by pixels", size, kind, self.number)
        lines = ["for (int q = 0; q < pixels; q++) {"]
        for place in range(wide):
            read = f"{stored.name}[q + {place} * pixels]" if place < channels else "0"
            lines.append(f"    {name}[q * {wide} + {place}] = {read};")
        lines.append("}")
        self.text.call(lines, f"{stored.value.name} by pixels", [("pixels", pixels)])
        return Stored(name, stored.value, None, wide, number)

    def result(self, layer: Layer, order: Codes | None, inner: int) -> Stored:
        """Return memory for the result of a layer: the caller's, that of a source, or new."""
        value = layer.out
        last = self.last_use.get(value.name, self.number)
        name, number = self.wanted.get(value.name, ""), None
        if not name or order is not None:
            number = self._shared(layer, order, inner)
            if number is None:
                name, number = self.buffer(value.name, bytes_of(value), short_type(value), last)
            else:
                old = self.buffers[number]
                old.last, old.label = max(old.last, last), f"{old.label}, {value.name}"
                name = self.array(short_type(value), number)
        found = Stored(name, value, order, inner, number)
        self.stored[value.name] = found
        return found

    def _shared(self, layer: Layer, order: Codes | None, inner: int) -> int | None:
        """The buffer of a source that each element of the result may take the place of."""
        heads = () if isinstance(layer.head, ELEMENTWISE) else layer.head.sources
        out = BYTES[c_type(*layer.out.limits)]
        for name in layer.sources:
            found = self.stored[name]
            size = BYTES[c_type(*found.value.limits)]
            fits = size == out if heads else size >= out
            if found.buffer is None or name in heads or found.value.size != layer.out.size:
                continue
            same = np.array_equal(found.places, Stored("", found.value, order, inner).places)
            others = [n for n, s in self.stored.items() if s.buffer == found.buffer]
            if fits and same and all(self.last_use.get(n, 0) <= self.number for n in others):
                return found.buffer
        return None

    def elements(self, order: Codes | None, inner: int) -> Elements:
        """The statements of elements of a result."""
        return Elements(self.text, self.stored, order, inner, self.needs)

    def chain(self, layer: Layer, to: Elements, out: Stored) -> list[str]:
        """Return the statements after the head, and the one that stores the result."""
        for step in layer.chain:
            to.add(step, [self.values[name] for name in step.sources])
        kind = f"({SHORT[c_type(*layer.out.limits)]})"
        return [*to.lines, f"{out.name}[p] = {kind}{to.current[layer.out.name]};"]


def reordering(stored: Stored, name: str) -> list[str]:
    """Statements that copy a value to an array with its elements in order."""
    shape = stored.value.shape
    order = stored.order
    assert order is not None
    matrix = order.reshape(-1, stored.inner)
    if np.array_equal(matrix, np.arange(order.size).reshape(stored.inner, -1).T):
        rows = len(matrix)
        line = f"{name}[i1 * {rows} + i0] = {stored.name}[i0 * {stored.inner} + i1];"
        return list(loops((rows, stored.inner), [line]))
    raise ValueError(f"an order of {shape} that is not known")


def row_loops(rows: str, inner: str, body: list[str]) -> list[str]:
    """Loops over rows ``q`` and their elements ``i0``."""
    head = [f"for (int q = 0; q < {rows}; q++) {{", f"    for (int i0 = 0; i0 < {inner}; i0++) {{"]
    return [*head, *(f"        {line}" for line in body), "    }", "}"]
