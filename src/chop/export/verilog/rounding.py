"""Other formats, limits and functions of single codes, as wires."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from chop.export.verilog.netlist import (
    CircuitError,
    LookupTable,
    Netlist,
    Round,
    Signal,
    Term,
    constant_operand,
)


@dataclass(frozen=True)
class Rounding:
    """A division by ``2**shift`` and a range for the result, as a program states them."""

    shift: int
    mode: Literal["half_even", "half_up"]
    least: int
    most: int
    overflow: Literal["saturate", "wrap"]

    def divided(self, value: int) -> int:
        """The result for a code before its range is looked at."""
        if self.shift <= 0:
            return value << -self.shift
        half = 1 << (self.shift - 1)
        result, rest = divmod(value + half, 2 * half)
        return result - (result & 1) if self.mode == "half_even" and rest == 0 else result

    def limited(self, value: int) -> int:
        """A result in the range."""
        if self.overflow == "wrap":
            return (value - self.least) % (self.most - self.least + 1) + self.least
        return min(max(value, self.least), self.most)


class Roundings:
    """Makes `Round` signals, and remembers what they round.

    A limit of what was rounded is part of the rounding, and so is the rounding of what was limited:
    both keep the order of codes.
    """

    def __init__(self, net: Netlist) -> None:
        self.net = net
        self._made: dict[Signal, tuple[Term, Rounding]] = {}

    def rounded(self, layer: str, term: Term, how: Rounding) -> Term:
        """A term divided by a power of two, rounded and brought into a range."""
        term, how = self._merged(term, how)
        low, high = (how.divided(end) for end in term.limits)
        if low == high:
            return constant_operand(how.limited(low))
        fits = how.least <= low and high <= how.most
        raised, drop, even = divide_operand(term, how)
        if fits and not drop:
            return raised
        wraps = how.overflow == "wrap" and not fits
        if wraps and how.least not in (0, -how.most - 1):
            raise CircuitError(
                f"{layer} wraps at {how.least}..{how.most}, which are not all codes of some bits"
            )
        limits = (how.least, how.most) if wraps else (how.limited(low), how.limited(high))
        source = self.net.plain(layer, raised).signal
        assert source is not None
        made = self.net.signal(Round, layer, limits, source, drop, even, wraps)
        if made.signal is not None:
            self._made.setdefault(made.signal, (term, how))
        return made

    def _merged(self, term: Term, how: Rounding) -> tuple[Term, Rounding]:
        if term.signal not in self._made or term != Term(term.signal):
            return term, how
        origin, first = self._made[term.signal]
        if "wrap" in (how.overflow, first.overflow) or (how.shift and first.shift):
            return term, how
        least, most = (how.limited(how.divided(end)) for end in (first.least, first.most))
        return origin, replace(how if how.shift else first, least=least, most=most)


def divide_operand(term: Term, how: Rounding) -> tuple[Term, int, bool]:
    """The term with a half added, how many of its bits to drop, and whether ties are to be seen."""
    if how.shift <= 0:
        return term.times(1 << -how.shift), 0, False
    offset = term.offset + (1 << (how.shift - 1))
    even = how.mode == "half_even"
    if term.shift >= how.shift and not (even and offset & ((1 << how.shift) - 1) == 0):
        exact = replace(term, shift=term.shift - how.shift, offset=offset >> how.shift)
        return exact, 0, False
    outside = min(term.shift, how.shift - 1)  # a tie is seen by the bits that are dropped
    even = even and offset & ((1 << outside) - 1) == 0
    raised = replace(term, shift=term.shift - outside, offset=offset >> outside)
    return raised, how.shift - outside, even


def lookup_term(net: Netlist, layer: str, term: Term, table: Sequence[int], start: int) -> Term:
    """Entry ``term - start``; a wire alone where that is the term with a factor and an offset."""
    source, first_place = term.signal, term.offset - start
    if source is None:
        return constant_operand(table[first_place])
    step = -(1 << term.shift) if term.negative else 1 << term.shift
    values = [table[code * step + first_place] for code in range(source.low, source.high + 1)]
    first, step = values[0], values[1] - values[0]
    line = [first + step * place for place in range(len(values))]
    if step and abs(step) & (abs(step) - 1) == 0 and values == line:
        return Term(source).times(step).plus(first - source.low * step)
    differences = 0
    for value in values:
        differences |= value ^ first
    same = (differences & -differences).bit_length() - 1 if differences else 0
    entries = tuple(value >> same for value in values)
    made = net.signal(LookupTable, layer, (min(entries), max(entries)), source, entries)
    return made.times(1 << same).plus(first & ((1 << same) - 1))


__all__ = ["Rounding", "Roundings", "lookup_term"]
