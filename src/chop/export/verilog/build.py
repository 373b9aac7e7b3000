"""The netlist of an integer program: a fold over its steps, element by element."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from itertools import count
from itertools import product as places_of
from math import prod

import numpy as np

from chop.export.verilog.adders import plan_adders
from chop.export.verilog.netlist import Netlist, Port, Term, constant_operand
from chop.export.verilog.rounding import Rounding, Roundings, lookup_term
from chop.lowering import program as steps
from chop.lowering.program import PADDING, Codes, IntegerProgram, Shape, Step, Value

INPUT, OUTPUT = "inputs", "outputs"
"""Layers of the circuit that are not steps; those of steps begin with ``layer_``."""
LONGEST_NAME = 60
Terms = list[Term]


@dataclass
class CircuitBuilder:
    """The terms of every value so far."""

    net: Netlist
    values: dict[str, Value]
    terms: dict[str, Terms] = field(default_factory=dict)
    roundings: Roundings = field(init=False)

    def __post_init__(self) -> None:
        self.roundings = Roundings(self.net)

    def sources(self, step: Step) -> list[tuple[Value, Terms]]:
        return [(self.values[name], self.terms[name]) for name in step.sources]

    def broadcast(self, step: Step) -> list[Terms]:
        """The terms of each source, for every element of the result."""
        return [
            [
                terms[place]
                for place in broadcast_array(np.arange(value.size).reshape(value.shape), step)
            ]
            for value, terms in self.sources(step)
        ]


def netlist_of(program: IntegerProgram) -> Netlist:
    """The circuit that computes a program, for one row."""
    circuit = CircuitBuilder(Netlist(), program.values)
    for number, each in enumerate(program.inputs):
        low, high = (np.broadcast_to(end, each.value.shape).reshape(-1).tolist()
                     for end in (each.value.low, each.value.high))  # fmt: skip
        circuit.net.inputs.append(list(zip(low, high, strict=True)))
        circuit.terms[each.value.name] = [
            circuit.net.signal(Port, INPUT, ends, number, element)
            for element, ends in enumerate(circuit.net.inputs[-1])
        ]
    for layer, step in zip(layer_names(program), program.steps, strict=True):
        circuit.terms[step.out.name] = build_step(replace(step, node=layer), circuit)
    circuit.net.outputs = [
        [circuit.net.plain(term.layer(OUTPUT), term) for term in circuit.terms[name]]
        for name in program.outputs
    ]
    return circuit.net


def layer_names(program: IntegerProgram) -> list[str]:
    """The identifier of the layer that each step belongs to.

    Names come from files, so only letters, digits and underscores of them are taken. A node that
    occurs again later is another layer, as layers must not read each other in a circle.
    """
    names: list[str] = []
    before = None
    for step in program.steps:
        if step.node != before:
            clean = "layer_" + re.sub(r"[^A-Za-z0-9_]", "_", step.node)[:LONGEST_NAME]
            name = next(each for each in numbered_layers(clean) if each not in names)
        names.append(name)
        before = step.node
    return names


def numbered_layers(name: str) -> Iterator[str]:
    """The name, then the name with 2, 3 and so on."""
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def broadcast_array(array: Codes, step: Step) -> list[int]:
    """An array that broadcasts to the result, as one number for each element of it."""
    found: list[int] = np.broadcast_to(array, step.out.shape).reshape(-1).tolist()
    return found


@singledispatch
def build_step(step: Step, circuit: CircuitBuilder) -> Terms:
    """The terms of the result of a step."""
    raise NotImplementedError(type(step).__name__)


@build_step.register
def _(step: steps.Constant, circuit: CircuitBuilder) -> Terms:
    return [constant_operand(code) for code in step.codes.reshape(-1).tolist()]


@build_step.register
def _(step: steps.Product, circuit: CircuitBuilder) -> Terms:
    ((_, terms),) = circuit.sources(step)
    size = step.weight.shape[1]
    vectors = [terms[start : start + size] for start in range(0, len(terms), size)]
    return [term for sums in weighted_sums(step, circuit, vectors) for term in sums]


def weighted_sums(
    step: steps.Product | steps.Convolution,
    circuit: CircuitBuilder,
    vectors: Sequence[Terms],
    rows: slice = slice(None),
) -> Iterator[Terms]:
    """Some rows of the constant matrix of a step times each vector, with the bias."""
    bias = step.bias[rows].tolist()
    weight = step.weight[rows].reshape(len(bias), -1)
    ends = np.array([[term.ends for term in vector] for vector in vectors])
    low, high = ends[..., 0].min(0), ends[..., 1].max(0)
    plan = plan_adders(
        np.where(low < high, weight, 0), list(zip(low.tolist(), high.tolist(), strict=True))
    )
    for vector in vectors:
        offsets = (weight @ np.array([term.offset for term in vector], np.int64)).tolist()
        bare = [replace(term, offset=0) for term in vector]
        sums = plan.applied(circuit.net, step.node, bare)
        yield [term.plus(a + b) for term, a, b in zip(sums, offsets, bias, strict=True)]


@build_step.register
def _(step: steps.Convolution, circuit: CircuitBuilder) -> Terms:
    ((value, terms),) = circuit.sources(step)
    inside, kernel = value.shape[1:], step.weight.shape[2:]
    each, reads = step.weight.shape[0] // step.groups, step.weight.shape[1]
    windows = list(read_places(step, kernel, inside))
    channels: list[Terms] = []
    for group in range(step.groups):
        channel = range(group * reads, (group + 1) * reads)
        vectors = [
            [
                constant_operand(0) if place is None else terms[number * prod(inside) + place]
                for number in channel
                for place in window
            ]
            for window in windows
        ]
        rows = slice(group * each, (group + 1) * each)
        channels += map(list, zip(*weighted_sums(step, circuit, vectors, rows), strict=True))
    return [term for channel_terms in channels for term in channel_terms]


def read_places(
    step: steps.Convolution | steps.Pool, kernel: Shape, inside: Shape
) -> Iterator[list[int | None]]:
    """For each place of the result, where in a channel its window reads; None outside."""
    for target in places_of(*map(range, step.out.shape[1:])):
        window: list[int | None] = []
        for tap in places_of(*map(range, kernel)):
            place = [
                to * stride + at * dilation - before
                for to, stride, at, dilation, before in zip(
                    target, step.stride, tap, step.dilation, step.padding, strict=True
                )
            ]
            within = all(0 <= at < size for at, size in zip(place, inside, strict=True))
            window.append(int(np.ravel_multi_index(place, inside)) if within else None)
        yield window


@build_step.register
def _(step: steps.Pool, circuit: CircuitBuilder) -> Terms:
    ((value, terms),) = circuit.sources(step)
    inside, net, layer = value.shape[1:], circuit.net, step.node
    made: Terms = []
    for channel in range(value.shape[0]):
        for window in read_places(step, step.kernel, inside):
            read = [terms[channel * prod(inside) + at] for at in window if at is not None]
            if step.kind == "sum":
                made.append(balanced_sum(net, layer, read, [1] * len(read)))
            else:
                made.append(balanced_tree(lambda a, b: net.larger(layer, a, b), read))
    return made


def balanced_tree(combine: Callable[[Term, Term], Term], terms: Terms) -> Term:
    """All terms combined, in a tree."""
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [combine(a, b) for a, b in pairs] + odd
    return terms[0]


def balanced_sum(net: Netlist, layer: str, terms: Terms, factors: Sequence[int]) -> Term:
    """The sum of terms with constant factors."""
    row = np.array([factors], np.int64)
    plan = plan_adders(row, [term.ends for term in terms])
    offset = sum(term.offset * each for term, each in zip(terms, factors, strict=True))
    bare = [replace(term, offset=0) for term in terms]
    return plan.applied(net, layer, bare)[0].plus(offset)


@build_step.register
def _(step: steps.Sum, circuit: CircuitBuilder) -> Terms:
    factors = zip(*(broadcast_array(factor, step) for factor in step.factors), strict=True)
    elements = zip(*circuit.broadcast(step), strict=True)
    return [
        balanced_sum(circuit.net, step.node, list(terms), each)
        for terms, each in zip(elements, factors, strict=True)
    ]


@build_step.register
def _(step: steps.Multiply, circuit: CircuitBuilder) -> Terms:
    one, other = circuit.broadcast(step)
    return [multiply_signals(circuit.net, step.node, a, b) for a, b in zip(one, other, strict=True)]


def multiply_signals(net: Netlist, layer: str, a: Term, b: Term) -> Term:
    """The product of two terms, either of which may be a constant."""
    if a.signal is None or b.signal is None:
        factor, term = (a.offset, b) if a.signal is None else (b.offset, a)
        return balanced_sum(net, layer, [term], [factor])
    return net.product(layer, a, b)


@build_step.register
def _(step: steps.MatMul, circuit: CircuitBuilder) -> Terms:
    (left, lefts), (right, rights) = circuit.sources(step)
    rows, size, columns = *left.shape[-2:], right.shape[-1]
    net, layer = circuit.net, step.node
    made: Terms = []
    for batch, row, column in places_of(*map(range, (prod(left.shape[:-2]), rows, columns))):
        terms = [
            multiply_signals(
                net, layer,
                lefts[(batch * rows + row) * size + at],
                rights[(batch * size + at) * columns + column],
            )
            for at in range(size)
        ]  # fmt: skip
        made.append(balanced_sum(net, layer, terms, [1] * size))
    return made


@build_step.register
def _(step: steps.Clamp, circuit: CircuitBuilder) -> Terms:
    how, shift = Rounding(0, "half_up", 0, 0, "saturate"), np.zeros((), np.int64)
    (terms,) = circuit.broadcast(step)
    return round_terms(step, circuit, terms, how, (shift, step.low, step.high))


@build_step.register
def _(step: steps.Requantise, circuit: CircuitBuilder) -> Terms:
    how = Rounding(0, step.rounding, 0, 0, step.overflow)
    (terms,) = circuit.broadcast(step)
    return round_terms(step, circuit, terms, how, (step.shift, step.low, step.high))


@build_step.register
def _(step: steps.Rescale, circuit: CircuitBuilder) -> Terms:
    how, net = Rounding(0, step.rounding, 0, 0, "saturate"), circuit.net
    (terms,) = circuit.broadcast(step)
    factors = zip(terms, broadcast_array(step.multiplier, step), strict=True)
    products = [balanced_sum(net, step.node, [term], [factor]) for term, factor in factors]
    return round_terms(step, circuit, products, how, (step.shift, step.low, step.high))


def round_terms(
    step: Step,
    circuit: CircuitBuilder,
    terms: Terms,
    how: Rounding,
    settings: tuple[Codes, Codes, Codes],
) -> Terms:
    """Every term in a range; it belongs to the layer whose result it is.

    Args:
        settings: shift, smallest and largest code of each element.
    """
    return [
        circuit.roundings.rounded(
            term.layer(step.node), term, replace(how, shift=by, least=least, most=most)
        )
        for term, by, least, most in zip(
            terms, *(broadcast_array(each, step) for each in settings), strict=True
        )
    ]


@build_step.register
def _(step: steps.Move, circuit: CircuitBuilder) -> Terms:
    together = [term for _, terms in circuit.sources(step) for term in terms]
    if step.index is None:
        return together
    index = step.index.reshape(-1).tolist()
    return [constant_operand(0) if place == PADDING else together[place] for place in index]


@build_step.register
def _(step: steps.Table, circuit: CircuitBuilder) -> Terms:
    ((_, terms),) = circuit.sources(step)
    rows = [row.tolist() for row in step.table]
    return [
        lookup_term(circuit.net, step.node, term, rows[row], step.start)
        for term, row in zip(terms, broadcast_array(step.rows, step), strict=True)
    ]


@build_step.register
def _(step: steps.Lookup, circuit: CircuitBuilder) -> Terms:
    ((_, terms),) = circuit.sources(step)
    columns = [column.tolist() for column in step.table.T]
    return [
        lookup_term(circuit.net, step.node, term, each, 0) for term in terms for each in columns
    ]
