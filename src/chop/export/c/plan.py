"""The plan of the C: steps fused to layers, orders of elements in memory, places in one arena."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from chop.export.c.code import BYTES, value_type
from chop.lowering import program as steps
from chop.lowering.program import Codes, IntegerProgram, Shape, Step, Value
from chop.lowering.ranges import reach


@dataclass(frozen=True, eq=False)
class Floor(Step):
    """Codes shifted right, without rounding, and limited."""

    shift: Codes
    low: Codes
    high: Codes


ELEMENTWISE = (
    steps.Sum, steps.Multiply, steps.Clamp, steps.Requantise, steps.Rescale, steps.Table, Floor,
)  # fmt: skip
"""Steps that compute each element from the elements at the same place."""
ALIGNMENT = 8


@dataclass
class Layer:
    """A step and the elementwise steps that follow it; only its last result is stored."""

    head: Step
    chain: list[Step] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        """The head and the chain, without those that only change a shape."""
        return [self.head, *self.chain]

    @property
    def out(self) -> Value:
        """The value that is stored."""
        return self.steps[-1].out

    @property
    def sources(self) -> list[str]:
        """Names of the values that it reads from memory."""
        inside = {step.out.name for step in self.steps}
        named = (name for step in self.steps for name in step.sources)
        return [name for name in dict.fromkeys(named) if name not in inside]

    @property
    def remark(self) -> str:
        """The nodes of the network and the kinds of steps."""
        nodes = ", ".join(dict.fromkeys(step.node for step in self.steps))
        kinds = " + ".join(type(step).__name__.lower() for step in self.steps)
        return f"{nodes}: {kinds} -> {self.out}"


def is_reshape(step: Step) -> bool:
    """Return True for a step that changes nothing but the shape."""
    return isinstance(step, steps.Move) and step.index is None


def uses_of(program: Iterable[Step], outputs: Sequence[str]) -> Counter[str]:
    """Return the number of times that each value is read; an output counts as one more."""
    return Counter([*(name for step in program for name in step.sources), *outputs])


def fused_layers(program: IntegerProgram) -> tuple[list[Layer], dict[str, str]]:
    """Return the layers in the order in which they run, and reshaped values by what they are of."""
    uses = uses_of(program.steps, program.outputs)
    layers: list[Layer] = []
    ends: dict[str, Layer] = {}
    same: dict[str, str] = {}
    for step in program.steps:
        if is_reshape(step) and step.sources[0] in ends and uses[step.sources[0]] == 1:
            ends[step.out.name] = ends.pop(step.sources[0])
            ends[step.out.name].chain.append(step)
            continue
        if is_reshape(step):
            same[step.out.name] = step.sources[0]
            continue
        layer = _layer_to_join(step, ends, uses)
        if layer is None:
            layer = Layer(step)
        else:
            layers.remove(layer)
            layer.chain.append(step)
        layers.append(layer)
        for name in step.sources:
            ends.pop(name, None)
        if not isinstance(step, steps.Constant | steps.Move | steps.Lookup):
            ends[step.out.name] = layer
    return layers, same


def _layer_to_join(step: Step, ends: dict[str, Layer], uses: Counter[str]) -> Layer | None:
    """The latest layer whose only reader is an elementwise step."""
    if not isinstance(step, ELEMENTWISE):
        return None
    open_ends = [
        ends[name]
        for name in dict.fromkeys(step.sources)
        if name in ends and uses[name] == 1 and ends[name].out.size == step.out.size
    ]
    order = list(ends.values())
    return max(open_ends, key=order.index, default=None)


def channels_last(shape: Shape) -> Codes | None:
    """Return which element stands at each place if channels, the first dimension, vary fastest."""
    inner = prod(shape[1:])
    if len(shape) < 2 or shape[0] == 1 or inner == 1:
        return None
    return np.arange(shape[0] * inner).reshape(shape[0], inner).T.reshape(-1)


@dataclass(frozen=True, eq=False)
class Stored:
    """A value in memory: the name of its array, the order of its elements, and its rows."""

    name: str
    value: Value
    order: Codes | None
    """Which element stands at each place; None for all in order."""
    inner: int
    """Elements of a row, within which constants of channels vary."""
    buffer: int | None = None
    """The number of its buffer, if it is in the arena."""

    @property
    def is_channels_last(self) -> bool:
        """Return whether its channels vary fastest."""
        wanted = channels_last(self.value.shape)
        return self.order is not None and wanted is not None and bool((self.order == wanted).all())

    @property
    def places(self) -> Codes:
        """The place of each element."""
        if self.order is None:
            return np.arange(self.value.size)
        found = np.empty_like(self.order)
        found[self.order] = np.arange(len(self.order))
        return found


@dataclass
class Buffer:
    """Bytes that are needed from one layer to another."""

    label: str
    size: int
    first: int
    last: int
    offset: int = 0

    def overlaps(self, other: "Buffer") -> bool:
        """Return True if both are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


def place_buffers(buffers: Sequence[Buffer]) -> int:
    """Give every buffer a place in one arena, the largest first; return the size of the arena."""
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda each: (-each.size, each.first)):
        rivals = sorted((b for b in placed if b.overlaps(buffer)), key=lambda each: each.offset)
        offset = 0
        for rival in rivals:
            if offset + buffer.size <= rival.offset:
                break
            offset = max(offset, aligned(rival.offset + rival.size))
        buffer.offset = offset
        placed.append(buffer)
    return aligned(max((each.offset + each.size for each in placed), default=0))


def aligned(size: int) -> int:
    """The next multiple of the alignment of buffers."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def bytes_of(value: Value) -> int:
    """Bytes of the codes of a value."""
    return value.size * BYTES[value_type(value)]


def as_matrix(step: Step, source: Value) -> bool:
    """Return True if a step is computed from columns of 16-bit numbers, with sums of 32 bits."""
    if not isinstance(step, steps.Product | steps.Convolution):
        return False
    if isinstance(step, steps.Convolution) and (step.groups > 1 or step.weight.ndim > 4):
        return False
    narrow = all(
        int(low) >= -(2**15) and int(high) < 2**15
        for low, high in (source.limits, (step.weight.min(), step.weight.max()))
    )
    sizes = [*source.shape, *step.out.shape, *step.weight.shape]
    small = max(sizes) < 2**15 and prod(step.weight.shape[1:]) < 2**15 - 4
    return narrow and small and reach(step, [source]) < 2**31
