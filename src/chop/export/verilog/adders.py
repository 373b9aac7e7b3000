"""Products with a constant matrix as shifts and adds, with sums that several rows need made once.

Each weight is a few powers of two with signs (canonical signed digits), so a row is a list of
shifted inputs. The pair that occurs most often in all rows becomes an input itself, until no pair
occurs twice; what is left of each row is added in a tree. A pair is taken out of a row only if the
tree of the row does not become deeper than allowed.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chop.export.verilog.netlist import Netlist, Term, code_bits, constant_operand
from chop.lowering.program import Codes

Place = tuple[int, int]
"""An operand and its shift."""
Pair = tuple[int, int, int, int]
"""Two operands, how many places the second is further left, and its sign beside the first."""
DEEPER = 1
"""Levels that a tree may have beyond the least, for the sake of shared sums."""


def signed_digits(value: int) -> Iterator[tuple[int, int]]:
    """Shift and sign of the powers of two that make up a number, no two of them neighbours."""
    shift = 0
    while value:
        if value & 1:
            digit = 2 - (value & 3)
            yield shift, digit
            value -= digit
        value >>= 1
        shift += 1


@dataclass(frozen=True)
class AdderPlan:
    """Additions that compute a constant matrix times a vector."""

    inputs: int
    sums: list[Pair]
    """Each is a further operand: ``first + sign * (second << shift)``."""
    rows: list[tuple[int, int, int] | None]
    """Operand, shift and sign of each row; None where the row is 0."""
    forms: Codes
    """Each sum as a row of factors of the inputs."""

    def applied(self, net: Netlist, layer: str, terms: Sequence[Term]) -> list[Term]:
        """The products for one vector of terms."""
        low, high = np.array([term.ends for term in terms], np.int64).T
        positive, negative = np.maximum(self.forms, 0), np.minimum(self.forms, 0)
        lows = (positive @ low + negative @ high).tolist()
        highs = (positive @ high + negative @ low).tolist()
        made = list(terms)
        for (first, second, shift, sign), *ends in zip(self.sums, lows, highs, strict=True):
            other = made[second].times(sign << shift)
            made.append(net.add(layer, made[first], other, (ends[0], ends[1])))
        return [
            constant_operand(0) if row is None else made[row[0]].times(row[2] << row[1])
            for row in self.rows
        ]


class Planner:
    """Takes shared pairs out of the rows of a matrix."""

    def __init__(self, matrix: Codes, limits: Sequence[tuple[int, int]]) -> None:
        self.forms = list(np.eye(matrix.shape[1], dtype=np.int64))
        self.low, self.high = np.array(limits, np.int64).reshape(-1, 2).T
        self.sums: list[Pair] = []
        self.depth = [0] * matrix.shape[1]
        self.widths = [code_bits(*each) for each in limits]
        self.rows: list[dict[Place, int]] = [
            {(column, shift): sign for column in np.nonzero(row)[0].tolist()
             for shift, sign in signed_digits(int(row[column]))}
            for row in matrix
        ]  # fmt: skip
        self.most = [1 << (max(len(row) - 1, 0).bit_length() + DEEPER) for row in self.rows]
        """The sum of ``2**depth`` of a row's operands may not exceed this."""
        self.load = [len(row) for row in self.rows]
        self.users: defaultdict[int, set[int]] = defaultdict(set)
        self.counts: Counter[Pair] = Counter()
        self.queue: list[tuple[float, Pair]] = []

    def plan(self) -> AdderPlan:
        for number, row in enumerate(self.rows):
            for operand, _ in row:
                self.users[operand].add(number)
            places = list(row.items())
            for index, one in enumerate(places):
                for other in places[index + 1 :]:
                    self.counts[pair_of(one, other)] += 1
        self.queue = [
            (-self.worth(pair, count), pair) for pair, count in self.counts.items() if count > 1
        ]
        heapq.heapify(self.queue)
        while self.queue:
            score, pair = heapq.heappop(self.queue)
            count = self.counts[pair]
            if count < 2:
                continue
            if -score > self.worth(pair, count):
                heapq.heappush(self.queue, (-self.worth(pair, count), pair))
                continue
            self.extract(pair)
        results = [self.tree(row) for row in self.rows]
        size = len(self.widths) - len(self.sums)
        forms = np.array(self.forms[size:], np.int64).reshape(-1, size)
        return AdderPlan(size, self.sums, results, forms)

    def worth(self, pair: Pair, count: int) -> float:
        """Full adders that are saved if a pair is made once."""
        first, second, shift, _ = pair
        width = max(self.widths[first], self.widths[second] + shift) + 1 - shift
        return (count - 1) * width

    def operand(self, pair: Pair) -> int:
        """A new operand for a pair."""
        first, second, shift, sign = pair
        form = self.forms[first] + sign * (self.forms[second] << shift)
        self.forms.append(form)
        positive, negative = np.maximum(form, 0), np.minimum(form, 0)
        low = int(positive @ self.low + negative @ self.high)
        high = int(positive @ self.high + negative @ self.low)
        self.widths.append(code_bits(low, high))
        self.sums.append(pair)
        self.depth.append(1 + max(self.depth[first], self.depth[second]))
        return len(self.widths) - 1

    def extract(self, pair: Pair) -> None:
        """Replace a pair wherever it occurs and may be taken out, if that is in two places."""
        first, second, shift, _ = pair
        depths = self.depth[first], self.depth[second]
        heavier = (1 << max(depths)) - (1 << min(depths))
        found = [
            (number, at, own)
            for number in sorted(self.users[first] & self.users[second])
            for at, own in self.occurrences(number, pair, heavier)
        ]
        if len(found) > 1:
            new = self.operand(pair)
            fresh: set[Pair] = set()
            for number, at, own in found:
                self.load[number] += heavier
                self.drop(number, (first, at))
                self.drop(number, (second, at + shift))
                fresh |= self.insert(number, (new, at), own)
            for each in sorted(fresh):
                if self.counts[each] > 1:
                    heapq.heappush(self.queue, (-self.worth(each, self.counts[each]), each))
        self.counts[pair] = 0

    def occurrences(self, number: int, pair: Pair, heavier: int) -> Iterator[tuple[int, int]]:
        """Shift and sign of each pair in a row, no two of which share an operand."""
        first, second, shift, sign = pair
        row, load = self.rows[number], self.load[number]
        used: set[Place] = set()
        for (operand, at), own in sorted(row.items()):
            one, other = (first, at), (second, at + shift)
            free = operand == first and one not in used and other not in used
            if free and row.get(other) == own * sign and load + heavier <= self.most[number]:
                load += heavier
                used |= {one, other}
                yield at, own

    def drop(self, number: int, place: Place) -> None:
        row = self.rows[number]
        own = row.pop(place)
        for other in row.items():
            self.counts[pair_of((place, own), other)] -= 1
        if not any(operand == place[0] for operand, _ in row):
            self.users[place[0]].discard(number)

    def insert(self, number: int, place: Place, own: int) -> set[Pair]:
        row = self.rows[number]
        pairs = [pair_of((place, own), other) for other in row.items()]
        for pair in pairs:
            self.counts[pair] += 1
        row[place] = own
        self.users[place[0]].add(number)
        return set(pairs)

    def tree(self, row: dict[Place, int]) -> tuple[int, int, int] | None:
        """Add what is left of a row: the shallowest first, of these the narrowest."""
        heap = [(*self.rank(place), place, own) for place, own in row.items()]
        heapq.heapify(heap)
        while len(heap) > 1:
            *_, place, own = heapq.heappop(heap)
            *_, other, sign = heapq.heappop(heap)
            pair = pair_of((place, own), (other, sign))
            lowest = min((place[1], place[0], own), (other[1], other[0], sign))
            new = (self.operand(pair), lowest[0])
            heapq.heappush(heap, (*self.rank(new), new, lowest[2]))
        if not heap:
            return None
        *_, place, own = heap[0]
        return (*place, own)

    def rank(self, place: Place) -> tuple[int, int]:
        operand, shift = place
        return self.depth[operand], shift + self.widths[operand]


def pair_of(one: tuple[Place, int], other: tuple[Place, int]) -> Pair:
    """Two signed and shifted operands, whatever their common shift and sign."""
    (a, shift), sign = one
    (b, further), opposite = other
    if (further, b) < (shift, a):
        a, b, shift, further = b, a, further, shift
    return a, b, further - shift, sign * opposite


def plan_adders(matrix: Codes, limits: Sequence[tuple[int, int]]) -> AdderPlan:
    """Plan the additions of a constant matrix times a vector whose elements have these ranges."""
    return Planner(matrix, limits).plan()
