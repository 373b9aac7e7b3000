"""The nodes whose floating-point simulation is exact, known before anything runs.

A sum of products is exact in floating point with p bits, in any order of summation, if the sum of
all magnitudes is at most ``2**p`` in units of the last bit: then every partial sum is a number
of the type. Rounding to fixed point scales by powers of two, which is exact anyway.
"""

from dataclasses import dataclass

import numpy as np

from chop.lowering import program as steps
from chop.lowering.dyadic import odd_part
from chop.lowering.program import IntegerProgram, Step, Value
from chop.lowering.ranges import bit_width, overflows, peak

EXACT = {"float32": (2**24, -100, 126), "float64": (2**53, -900, 1022)}
"""The largest integer up to which all are there, and binary points far from the type's limits."""
ROUNDED = (steps.Requantise, steps.Table)


@dataclass(frozen=True)
class NodeExactness:
    """The exactness of one node of the graph."""

    node: str
    steps: tuple[str, ...]
    accumulator_bits: int
    """Bits of the widest sum or product; 0 where nothing is added or multiplied."""
    float32: bool
    """A float32 simulation of this node is exact in any order of summation."""
    float64: bool
    saturates: bool
    """Some input within the ranges leads beyond a format's last code."""
    stable: bool = True
    """Tables are the same in every memory layout that was tried."""


@dataclass(frozen=True)
class Exactness:
    """The exactness of a program."""

    nodes: tuple[NodeExactness, ...]
    ties: tuple[tuple[str, str], ...]
    """Two roundings in a row, the first one bit finer: every odd code is then half-way."""

    @property
    def accumulator_bits(self) -> int:
        """Bits of the widest sum or product."""
        return max((each.accumulator_bits for each in self.nodes), default=0)

    def exact(self, dtype: str = "float32") -> bool:
        """True if a simulation in this type is exact, node by node."""
        return all(getattr(each, dtype) and each.stable for each in self.nodes)


def analyse(program: IntegerProgram) -> Exactness:
    """Bits, exactness, saturation and ties of each node, in the order in which they run."""
    values = program.values
    spans = {each.value.name: largest_code(each.value) for each in program.inputs}
    makers = {step.out.name: step for step in program.steps}
    found: dict[str, list[NodeExactness]] = {}
    ties = []
    for step in program.steps:
        sources = [values[name] for name in step.sources]
        span = spans[step.out.name] = significand(step, sources, spans)
        exact = {
            name: exact_in(step.out, span, "float64" if step.in_double else name) for name in EXACT
        }
        saturates = isinstance(step, steps.Requantise) and overflows(step, sources[0])
        width = bit_width(*step.out.limits) if step.arithmetic else 0
        stable = not isinstance(step, steps.Table) or step.stable
        kind = type(step).__name__
        one = NodeExactness(step.node, (kind,), width, **exact, saturates=saturates, stable=stable)
        found.setdefault(step.node, []).append(one)
        if isinstance(step, steps.Requantise) and (step.shift == 1).any():
            before = rounded_before(step.sources[0], makers, program)
            ties += [(before, step.node)] if before else []
    return Exactness(tuple(map(summarise_steps, found.values())), tuple(dict.fromkeys(ties)))


def summarise_steps(parts: list[NodeExactness]) -> NodeExactness:
    """The exactness of a node, from its steps."""
    return NodeExactness(
        parts[0].node,
        tuple(kind for part in parts for kind in part.steps),
        max(part.accumulator_bits for part in parts),
        all(part.float32 for part in parts),
        all(part.float64 for part in parts),
        any(part.saturates for part in parts),
        all(part.stable for part in parts),
    )


def largest_code(value: Value) -> int:
    """The largest magnitude of a code."""
    return max(map(abs, value.limits))


def significand(step: Step, sources: list[Value], spans: dict[str, int]) -> int:
    """An integer that no partial result exceeds in units of its last bit that may be set."""
    before = max((spans[name] for name in step.sources), default=0)
    if chooses(step):
        return before
    if isinstance(step, steps.Clamp):
        return max(before, odd_part(np.append(step.out.low, step.out.high)))
    if isinstance(step, steps.Table | steps.Lookup):
        return odd_part(step.table)
    if isinstance(step, steps.Constant):
        return odd_part(step.codes)
    return int(peak(step, *sources).max())


def chooses(step: Step) -> bool:
    """True if all codes of the result are codes of the sources."""
    return isinstance(step, steps.Move) or (isinstance(step, steps.Pool) and step.kind == "max")


def exact_in(value: Value, span: int, dtype: str) -> bool:
    """True if a type holds all partial results and is far from its smallest and largest numbers."""
    most, least, finest = EXACT[dtype]
    return span <= most and least <= int(value.frac.min()) and int(value.frac.max()) <= finest


def rounded_before(name: str, makers: dict[str, Step], program: IntegerProgram) -> str | None:
    """The node or input whose rounding a value still shows, if it was only moved since."""
    while name in makers:
        step = makers[name]
        if isinstance(step, ROUNDED):
            return step.node
        if not (chooses(step) or isinstance(step, steps.Clamp)):
            return None
        name = step.sources[0]
    return next(each.placeholder for each in program.inputs if each.value.name == name)
