"""The nodes whose floating-point simulation is exact, known before anything runs.

A sum of products is exact in floating point with p bits, in any order of summation, if the sum of
all magnitudes is at most ``2**p`` in units of the last bit: then every partial sum is a number
of the type. Rounding to fixed point scales by powers of two, which is exact anyway.

Numbers with other scales are never exact; but those that are rounded from a grid need only be
nearer to their multiple of it than to any other, and bounds of what floating point adds say so.
"""

from dataclasses import dataclass

import numpy as np

from chop.lowering import program as steps
from chop.lowering.dyadic import odd_part
from chop.lowering.program import IntegerProgram, Step, Value
from chop.lowering.ranges import bit_width, overflows, peak, reach

EXACT = {"float32": (2**24, -100, 126), "float64": (2**53, -900, 1022)}
"""The largest integer up to which all are there, and binary points far from the type's limits."""
HALF_UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}
"""The largest share by which rounding to a type changes a number."""
MOST_NOISE = 0.495
"""A number that is off by less than this share of its grid is still read as its multiple."""
UNLIMITED = 2**61
"""Limits beyond this are none."""
ROUNDED = (steps.Requantise, steps.Rescale, steps.Table)


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
    noise = Noise(program)
    found: dict[str, list[NodeExactness]] = {}
    ties = []
    for step in program.steps:
        sources = [values[name] for name in step.sources]
        span = spans[step.out.name] = significand(step, sources, spans)
        exact = {
            name: exact_in(step.out, span, "float64" if step.in_double else name) for name in EXACT
        }
        if any(value.is_scaled for value in (step.out, *sources)):
            exact = noise.after(step, sources, makers)
        rounding = step if isinstance(step, steps.Requantise | steps.Rescale) else None
        saturates = rounding is not None and overflows(rounding, sources[0])
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


class Noise:
    """Bounds of what floating point adds to numbers with scales, in units of their codes."""

    def __init__(self, program: IntegerProgram) -> None:
        self.program = program
        self._known = {
            each.value.name: {
                kind: 2 * half * largest_code(each.value) for kind, half in HALF_UNITS.items()
            }
            for each in program.inputs
        }

    def after(self, step: Step, sources: list[Value], makers: dict[str, Step]) -> dict[str, bool]:
        """Return for each type whether a step gives the right codes; take note of its noise."""
        before = [self._of(value) for value in sources]
        self._known[step.out.name] = {
            kind: added_noise(step, sources, [each[kind] for each in before], half)
            for kind, half in HALF_UNITS.items()
        }
        read = {kind: max((each[kind] for each in before), default=0.0) for kind in HALF_UNITS}
        if isinstance(step, steps.Rescale):
            return {kind: step.in_integers and read[kind] < MOST_NOISE for kind in HALF_UNITS}
        if isinstance(step, steps.Table):
            again = rounded_before(step.sources[0], makers, self.program) is not None
            return dict.fromkeys(HALF_UNITS, again)
        leaves = step.out.name in self.program.outputs
        own = self._known[step.out.name]
        return {kind: not leaves or own[kind] < MOST_NOISE for kind in HALF_UNITS}

    def _of(self, value: Value) -> dict[str, float]:
        plain = {kind: 2 * half * largest_code(value) for kind, half in HALF_UNITS.items()}
        return self._known.get(value.name, plain)


def added_noise(step: Step, sources: list[Value], before: list[float], half: float) -> float:
    """The noise of a result, from that of what is read and the rounding of each partial sum."""
    ends = [largest_code(value) for value in sources]
    largest = reach(step, sources)
    if isinstance(step, steps.Product | steps.Convolution):
        weight = np.abs(step.weight).reshape(len(step.weight), -1).astype(np.float64)
        of_bias = float(np.abs(step.bias).max()) * HALF_UNITS["float32"] * 2
        summed = float(weight.sum(1).max()) * before[0]
        return summed + largest * (weight.shape[1] + 4) * half + of_bias
    if isinstance(step, steps.MatMul | steps.Multiply):
        count = sources[0].shape[-1] if isinstance(step, steps.MatMul) else 1
        summed = count * (before[0] * ends[1] + before[1] * ends[0])
        return summed + largest * (count + 2) * half
    if isinstance(step, steps.Sum):
        factors = (float(np.abs(factor).max()) for factor in step.factors)
        summed = sum(each * factor for each, factor in zip(before, factors, strict=True))
        return summed + largest * (len(sources) + 2) * half
    if isinstance(step, steps.Pool) and step.kind == "sum":
        count = int(np.prod(step.kernel))
        return count * before[0] + count * ends[0] * (count + 2) * half
    if isinstance(step, steps.Clamp | steps.Move | steps.Pool):
        return max(*before, limit_noise(step))
    return 2 * half * largest_code(step.out)


def limit_noise(step: Step) -> float:
    """The noise of limits, which are the nearest codes: nearly half a unit, or none at 0."""
    if not isinstance(step, steps.Clamp):
        return 0.0
    ends = np.append(step.low, step.high)
    between = (np.abs(ends) < UNLIMITED) & (ends != 0)
    return MOST_NOISE - 0.005 if between.any() else 0.0
