"""A network as wires and what drives them; every wire has its exact range and thereby its width.

A `Signal` is a wire of a layer. A `Term` is what the rest of the circuit sees of it: shifts, signs
and offsets cost nothing until something needs them, so they are kept beside the wire.
"""

from dataclasses import dataclass, replace
from typing import Any

from chop.errors import GraphError

WIDEST = 62


class CircuitError(GraphError):
    """A program that cannot become a circuit; says why and what would help."""


@dataclass(frozen=True, eq=False)
class Signal:
    """A wire that holds an integer between `low` and `high`, in two's complement if negative."""

    layer: str
    low: int
    high: int

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def width(self) -> int:
        """Bits that the range needs."""
        return code_bits(self.low, self.high)

    @property
    def operands(self) -> tuple["Signal", ...]:
        """The wires that it is computed from."""
        found = (getattr(self, name, None) for name in ("source", "a", "b"))
        return tuple(each for each in found if each is not None)


def code_bits(low: int, high: int) -> int:
    """Bits that hold both numbers, without a sign if none is negative."""
    magnitude = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)
    return max(magnitude + (low < 0), 1)


@dataclass(frozen=True, eq=False)
class Port(Signal):
    """An element of an input."""

    number: int
    element: int


@dataclass(frozen=True, eq=False)
class Add(Signal):
    """``a + (b << shift)``, or the difference.

    With `raised`, operands with a sign are read with their first bit inverted: as numbers that are
    ``2**(width - 1)`` larger, without a sign, which need not be extended.
    """

    a: Signal
    b: Signal
    shift: int
    subtract: bool
    raised: bool

    @property
    def joins(self) -> bool:
        """True if the bits of both stand side by side, so that nothing is added."""
        return not (self.subtract or self.extends(self.a)) and self.shift >= self.a.width

    def extends(self, operand: Signal) -> bool:
        """Return True if the sign of an operand stands in all bits above it."""
        return operand.signed and not self.raised

    @property
    def full_adders(self) -> int:
        """Bits in which both operands can differ; one that only hands on the carry is not."""
        if self.joins:
            return 0
        pairs = set()
        for place in range(self.width - self.shift):
            a, b = self.bit(self.a, place + self.shift), self.bit(self.b, place)
            if a is not None and b is not None:
                pairs.add((a, b))
        return len(pairs)

    def bit(self, operand: Signal, place: int) -> int | None:
        """Return the bit of an operand at a place: its sign beyond the end, or nothing."""
        if place < operand.width:
            return place
        return operand.width - 1 if self.extends(operand) else None


@dataclass(frozen=True, eq=False)
class Offset(Signal):
    """``constant + source``, or ``constant - source``."""

    source: Signal
    constant: int
    negative: bool


@dataclass(frozen=True, eq=False)
class Shifted(Signal):
    """The source with constant bits behind it."""

    source: Signal
    places: int
    bits: int


@dataclass(frozen=True, eq=False)
class Round(Signal):
    """The source without its last `drop` bits, limited to a range or cut to the bits of one.

    Half of the last bit that stays was added before. With `even`, what was half-way then goes to
    the even neighbour: all dropped bits are 0 just in that case.
    """

    source: Signal
    drop: int
    even: bool
    wraps: bool

    @property
    def before(self) -> tuple[int, int]:
        """The range before it is limited."""
        return self.dropped(self.source.low), self.dropped(self.source.high)

    def dropped(self, value: int) -> int:
        """A code of the source without its last bits."""
        rest = value >> self.drop
        tie = self.even and value & ((1 << self.drop) - 1) == 0
        return rest - (rest & 1) if tie else rest


@dataclass(frozen=True, eq=False)
class LookupTable(Signal):
    """Entry ``source - source.low``."""

    source: Signal
    entries: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Largest(Signal):
    """The larger of two."""

    a: Signal
    b: Signal


@dataclass(frozen=True, eq=False)
class Multiplier(Signal):
    """The product of two."""

    a: Signal
    b: Signal


@dataclass(frozen=True)
class Term:
    """``±(signal << shift) + offset``; without a signal a constant."""

    signal: Signal | None = None
    shift: int = 0
    negative: bool = False
    offset: int = 0

    @property
    def ends(self) -> tuple[int, int]:
        """The range without the offset."""
        if self.signal is None:
            return 0, 0
        low, high = self.signal.low << self.shift, self.signal.high << self.shift
        return (-high, -low) if self.negative else (low, high)

    @property
    def limits(self) -> tuple[int, int]:
        low, high = self.ends
        return low + self.offset, high + self.offset

    def times(self, factor: int) -> "Term":
        """The product with a power of two or its negative."""
        shift = abs(factor).bit_length() - 1
        assert abs(factor) == 1 << shift
        negative = self.negative != (factor < 0)
        return Term(self.signal, self.shift + shift, negative, self.offset * factor)

    def plus(self, number: int) -> "Term":
        return replace(self, offset=self.offset + number)

    def layer(self, other: str) -> str:
        """The layer that computes it; `other` for what comes from outside."""
        outside = self.signal is None or isinstance(self.signal, Port)
        return other if outside else self.signal.layer  # type: ignore[union-attr]


def constant_operand(value: int) -> Term:
    """A term that is the same for every row."""
    return Term(offset=value)


class Netlist:
    """All signals of a network in the order in which they can be computed.

    The same operation on the same operands is computed once in a layer.
    """

    def __init__(self) -> None:
        self.signals: list[Signal] = []
        self.inputs: list[list[tuple[int, int]]] = []
        """The ranges of the elements of each input."""
        self.outputs: list[list[Term]] = []
        self._known: dict[tuple[Any, ...], Signal] = {}

    def signal(self, kind: type[Signal], layer: str, limits: tuple[int, int], *own: object) -> Term:
        """A new signal, or the one that is computed alike; a constant where the range is one."""
        low, high = limits
        if low == high:
            return constant_operand(low)
        if max(high, -low) >> WIDEST:
            raise CircuitError(f"{layer} needs more than {WIDEST} bits: take narrower formats")
        key = (kind, layer, *limits, *own)
        if key not in self._known:
            self._known[key] = kind(layer, low, high, *own)
            self.signals.append(self._known[key])
        return Term(self._known[key])

    def add(self, layer: str, a: Term, b: Term, limits: tuple[int, int] | None = None) -> Term:
        """The sum of two terms; `limits` is its range, where that is known better."""
        if a.signal is None or b.signal is None:
            return b.plus(a.offset) if a.signal is None else a.plus(b.offset)
        if a.shift > b.shift or (a.shift == b.shift and a.negative and not b.negative):
            a, b = b, a
        assert a.signal is not None
        assert b.signal is not None
        offset = a.offset + b.offset
        shift, subtract = b.shift - a.shift, a.negative != b.negative
        if a.signal is b.signal and shift == 0:
            return (
                constant_operand(offset)
                if subtract
                else Term(a.signal, a.shift + 1, a.negative, offset)
            )
        low, high = limits or (a.limits[0] + b.limits[0], a.limits[1] + b.limits[1])
        low, high = low - offset, high - offset
        if a.negative:
            low, high = -high, -low
        made = self.sum(layer, (low >> a.shift, high >> a.shift), a.signal, b.signal, shift,
                        subtract)  # fmt: skip
        return made.times(-1 if a.negative else 1).times(1 << a.shift).plus(offset)

    def sum(
        self, layer: str, ends: tuple[int, int], a: Signal, b: Signal, shift: int, subtract: bool
    ) -> Term:
        """The sum or difference of two signals, without signs where that takes fewer adders."""
        raise_a, raise_b = (1 << each.width - 1 if each.signed else 0 for each in (a, b))
        raised = raise_a + (-raise_b if subtract else raise_b) * (1 << shift)
        higher = ends[0] + raised, ends[1] + raised
        plain = Add(layer, *ends, a, b, shift, subtract, raised=False)
        if Add(layer, *higher, a, b, shift, subtract, raised=True).full_adders < plain.full_adders:
            return self.signal(Add, layer, higher, a, b, shift, subtract, True).plus(-raised)
        return self.signal(Add, layer, ends, a, b, shift, subtract, False)

    def wire(self, layer: str, term: Term) -> Term:
        """The same value without a sign, and with an offset only in the bits below its shift."""
        if term.signal is None:
            return term
        above, below = term.offset >> term.shift, term.offset & ((1 << term.shift) - 1)
        source = Term(term.signal)
        if above or term.negative:
            low, high = term.limits
            limits = low >> term.shift, high >> term.shift
            source = self.signal(Offset, layer, limits, term.signal, above, term.negative)
        return source.times(1 << term.shift).plus(below)

    def plain(self, layer: str, term: Term) -> Term:
        """The value as one wire with all its bits, or a constant."""
        term = self.wire(layer, term)
        if term.signal is None or term.shift == 0:
            return term
        return self.signal(Shifted, layer, term.limits, term.signal, term.shift, term.offset)

    def product(self, layer: str, a: Term, b: Term) -> Term:
        """The product of two terms."""
        parts = [self.wire(layer, each) for each in (a, b)]
        a, b = (self.plain(layer, each) if each.offset else each for each in parts)
        if a.signal is None or b.signal is None:
            raise AssertionError("products with constants are sums")
        ends = [one * other for one in (a.signal.low, a.signal.high)
                for other in (b.signal.low, b.signal.high)]  # fmt: skip
        made = self.signal(Multiplier, layer, (min(ends), max(ends)), a.signal, b.signal)
        return made.times(1 << (a.shift + b.shift))

    def larger(self, layer: str, a: Term, b: Term) -> Term:
        """The larger of two terms."""
        (low, high), (other_low, other_high) = a.limits, b.limits
        if low >= other_high or other_low >= high:
            return a if low >= other_high else b
        alike = (a.shift, a.negative, a.offset) == (b.shift, b.negative, b.offset)
        if a.signal is None or b.signal is None or a.negative or not alike:
            a, b = self.plain(layer, a), self.plain(layer, b)
        if a.signal is None or b.signal is None:
            least = max(a.offset, b.offset) if a.signal is None else b.offset
            source = (b if a.signal is None else a).signal
            assert source is not None
            return self.signal(Round, layer, (least, source.high), source, 0, False, False)
        limits = max(a.signal.low, b.signal.low), max(a.signal.high, b.signal.high)
        made = self.signal(Largest, layer, limits, a.signal, b.signal)
        return made.times(1 << a.shift).plus(a.offset)

    def alive(self) -> list[Signal]:
        """The signals that an output depends on, in order."""
        used = {term.signal for terms in self.outputs for term in terms if term.signal is not None}
        for signal in reversed(self.signals):
            if signal in used:
                used.update(signal.operands)
        return [signal for signal in self.signals if signal in used]
