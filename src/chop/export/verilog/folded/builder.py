"""An integer program as nodes of a stream."""

from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from chop.export.verilog.folded import nodes as kinds
from chop.export.verilog.folded.nodes import LARGEST_CASE, StreamNode, WindowShape, settings_of
from chop.export.verilog.netlist import CircuitError
from chop.lowering import program as steps
from chop.lowering.program import PADDING, Codes, IntegerProgram, Shape, Step

Made = TypeVar("Made", bound=StreamNode)


def refuse(step: Step, why: str) -> CircuitError:
    """Return the error for a step that no block computes."""
    return CircuitError(f"verilog: {step.node} cannot be folded: {why}")


def image_order(shape: Shape) -> tuple[Shape, Codes]:
    """Height, width and channels of a value, and the place of each element in the order of pixels.

    A vector is one pixel; channels of sequences are images of one row.
    """
    if len(shape) > 3:
        raise CircuitError(f"verilog: a value of the shape {list(shape)} cannot be folded")
    full = {0: (1, 1, 1), 1: (*shape, 1, 1), 2: (*shape[:1], 1, *shape[1:])}.get(len(shape), shape)
    order = np.arange(prod(full)).reshape(full).transpose(1, 2, 0).reshape(-1)
    return (full[1], full[2], full[0]), order


class NodeBuilder:
    """Makes the nodes of a program, step by step."""

    def __init__(self, program: IntegerProgram) -> None:
        self.program = program
        self.nodes: dict[str, StreamNode] = {}
        self.known: dict[str, str] = {}
        """The node of each value: a change of shape has none of its own."""
        self.pads: dict[str, tuple[Shape, Shape]] = {}
        """Of a value that is another with zeros around: its size, and rows and columns before."""
        self.readers: dict[str, int] = {}
        for name in [*(n for step in program.steps for n in step.sources), *program.outputs]:
            self.readers[name] = self.readers.get(name, 0) + 1

    def build(self) -> dict[str, StreamNode]:
        """The nodes, by name, in the order of the program; the last gives the output."""
        if len(self.program.inputs) != 1 or len(self.program.outputs) != 1:
            raise CircuitError("verilog: a folded circuit has one input and one output")
        value = self.program.inputs[0].value
        image, order = image_order(value.shape)
        self.add(kinds.Source(value.name, "input", (), image, value.limits, order), value.name)
        for step in self.program.steps:
            self.step(step)
        last = self.known[self.program.outputs[0]]
        self.nodes[last] = self.nodes.pop(last)
        return self.nodes

    def add(self, node: StreamNode, value: str) -> None:
        self.nodes[node.name] = node
        self.known[value] = node.name

    def source(self, name: str) -> StreamNode:
        return self.nodes[self.known[name]]

    def make(
        self, kind: type[Made], step: Step, image: Shape, order: Codes, **more: object
    ) -> None:
        names = tuple(self.known[name] for name in step.sources)
        node = kind(step.out.name, step.node, names, image, step.out.limits, order, **more)
        self.add(node, step.out.name)

    def step(self, step: Step) -> None:
        """Add what a step makes."""
        match step:
            case steps.Convolution():
                self.convolution(step)
            case steps.Product():
                self.product(step)
            case steps.Pool():
                image, order = image_order(step.out.shape)
                window = self.window(step, step.kernel)
                self.make(
                    kinds.Pooled, step, image, order, largest=step.kind == "max", window=window
                )
            case steps.Move():
                self.move(step)
            case steps.Sum():
                self.sum(step)
            case steps.Clamp() | steps.Requantise() | steps.Table():
                self.elementwise(step)
            case _:
                raise refuse(step, f"there is no block for {type(step).__name__.lower()}")

    def window(self, step: steps.Convolution | steps.Pool, kernel: Shape) -> WindowShape:
        """The windows of a step; zeros around its source are those of the window."""
        name = step.sources[0]
        source = self.view(step, name)
        two = [(1, 0, 1)] if len(kernel) == 1 else []
        stride, padding, dilation = (
            (*(each[at] for each in two), *given)
            for at, given in enumerate((step.stride, step.padding, step.dilation))
        )
        result = image_order(step.out.shape)[0][:2]
        if name in self.pads:
            padding = tuple(a + b for a, b in zip(padding, self.pads[name][1], strict=True))
        full = (*(1 for _ in two), *kernel)
        return WindowShape(source.image[:2], result, full, stride, padding, dilation)

    def view(self, step: Step, name: str) -> StreamNode:
        """The source of windows, with the pixels that its value has after a change of its shape."""
        source = self.source(name)
        image, order = image_order(self.program.values[name].shape)
        if name in self.pads or image == source.image:
            return source
        if not np.array_equal(order, source.order):
            raise refuse(step, "its pixels come in another order")
        view = kinds.Viewed(
            f"{name}_viewed", step.node, (source.name,), image, source.limits, order
        )
        self.add(view, name)
        return view

    def convolution(self, step: steps.Convolution) -> None:
        channels = step.weight.shape[1] * step.groups
        image, order = image_order(step.out.shape)
        depthwise = step.groups > 1
        if len(step.weight.shape) > 4:
            raise refuse(step, "it has three dimensions")
        if depthwise and not step.groups == channels == len(step.weight):
            raise refuse(step, f"it has {step.groups} groups of several channels")
        weight = step.weight.reshape(*step.weight.shape[:2], -1)
        window = self.window(step, step.weight.shape[2:])
        self.make(
            kinds.Matrix, step, image, order, weight=weight, bias=step.bias, window=window,
            depthwise=depthwise,
        )  # fmt: skip

    def product(self, step: steps.Product) -> None:
        source = self.source(step.sources[0])
        if prod(step.out.shape[:-1]) != 1:
            raise refuse(step, "it is a product with several vectors of a row")
        image, order = image_order(step.out.shape[-1:])
        weight = step.weight[:, source.order][:, :, None]
        window = WindowShape((1, 1), (1, 1), (1, 1))
        self.make(
            kinds.Matrix, step, image, order, weight=weight, bias=step.bias, window=window,
            depthwise=False,
        )  # fmt: skip

    def move(self, step: steps.Move) -> None:
        """A change of shape, zeros around an image, or channels that follow each other."""
        if step.index is None:
            self.known[step.out.name] = self.known[step.sources[0]]
            return
        sources = [self.source(name) for name in step.sources]
        places = np.arange(sum(each.elements for each in sources))
        if len(sources) > 1 and np.array_equal(step.index.reshape(-1), places):
            self.concatenate(step, sources)
            return
        before = padding_before(step, self.source(step.sources[0]))
        if before is None:
            raise refuse(step, "it moves elements other than by zeros around an image")
        self.known[step.out.name] = self.known[step.sources[0]]
        self.pads[step.out.name] = step.out.shape[-2:], before

    def concatenate(self, step: steps.Move, sources: list[StreamNode]) -> None:
        """Channels that follow each other, two values at a time."""
        if len({each.image[:2] for each in sources}) > 1 or self.pads.keys() & set(step.sources):
            raise refuse(step, "it joins images of different sizes")
        pixels, (first, *others) = prod(sources[0].image[:2]), sources
        for place, other in enumerate(others, 1):
            both = (first.order, other.order + first.elements)
            order = np.concatenate([each.reshape(pixels, -1) for each in both], 1).reshape(-1)
            image = (*first.image[:2], first.image[2] + other.image[2])
            lows, highs = zip(first.limits, other.limits, strict=True)
            limits = min(lows), max(highs)
            name = step.out.name if place == len(others) else f"{step.out.name}_{place}"
            first = kinds.JoinNode(
                name, step.node, (first.name, other.name), image, limits, order, factors=None
            )
            self.add(first, name)

    def sum(self, step: steps.Sum) -> None:
        """A sum of two, or codes that only get another binary point."""
        name = step.sources[0]
        factors = [np.broadcast_to(each, step.out.shape) for each in step.factors]
        if len(step.sources) == 1 and name in self.pads:
            there = self.source(name)
            rows, columns = (slice(at, at + size) for at, size in
                             zip(self.pads[name][1], there.image[:2], strict=True))  # fmt: skip
            if (factors[0][:, rows, columns] == 1).all():
                self.known[step.out.name], self.pads[step.out.name] = there.name, self.pads[name]
                return
        same = {self.source(each).image for each in step.sources}
        if len(step.sources) != 2 or len(same) != 1 or any(np.ptp(each) for each in factors):
            raise refuse(step, "it is not a sum of two values of one shape with two factors")
        one, other = (int(each.flat[0]) for each in factors)
        source = self.source(name)
        self.make(kinds.JoinNode, step, source.image, source.order, factors=(one, other))

    def elementwise(self, step: Step) -> None:
        """A function of single codes; what alone reads another is part of it."""
        source = self.source(step.sources[0])
        height, width, channels = source.image
        if step.sources[0] in self.pads:
            raise refuse(step, "zeros around an image are not followed by windows")
        fields = {}
        for name, array in settings_of(step).items():
            flat = np.broadcast_to(array, step.out.shape).reshape(-1)[source.order]
            pixels = flat.reshape(height * width, channels)
            if np.ptp(pixels, 0).any():
                raise refuse(step, "its format differs between pixels")
            fields[name] = pixels[0]
        own = replace(step, **fields)
        if (
            isinstance(source, kinds.Pooled)
            and source.largest
            and self.alone(source)
            and rises(own)
        ):
            before = self.nodes[source.sources[0]]  # what is rounded is smaller there
            del self.nodes[source.name]
            self.add_map(before, own, f"{step.out.name}_pooled")
            names = (f"{step.out.name}_pooled",)
            node = replace(source, name=step.out.name, sources=names, limits=step.out.limits)
            self.add(node, step.out.name)
        else:
            self.add_map(source, own, step.out.name)
        self.known[step.out.name] = step.out.name

    def alone(self, source: StreamNode) -> bool:
        """Return True if one step reads a node."""
        return self.readers.get(source.name, 1) == 1

    def add_map(self, source: StreamNode, own: Step, name: str) -> None:
        """Add a node for a step, or make it part of the node before."""
        names: tuple[str, ...] = (source.name,)
        joined: tuple[Step, ...] = (own,)
        logic = isinstance(source, kinds.Mapped) and source.memory is None and not is_memory(own)
        if logic and self.alone(source):
            assert isinstance(source, kinds.Mapped)
            names, joined = source.sources, (*source.steps, own)
            del self.nodes[source.name]
        limits = own.out.limits
        self.add(
            kinds.Mapped(name, own.node, names, source.image, limits, source.order, joined), name
        )


def rises(step: Step) -> bool:
    """Return True if a larger code never gets a smaller result."""
    wraps = isinstance(step, steps.Requantise) and step.overflow == "wrap"
    return isinstance(step, steps.Clamp | steps.Requantise) and not wraps


def is_memory(step: Step) -> bool:
    """Return True for a table that is too large for logic."""
    return isinstance(step, steps.Table) and step.table.shape[1] > LARGEST_CASE


def padding_before(step: steps.Move, source: StreamNode) -> Shape | None:
    """Rows and columns of zeros before an image, if that and what follows it is all that moves."""
    assert step.index is not None
    index = step.index.reshape(step.out.shape)
    height, width, channels = source.image
    if index.ndim != 3 or index.shape[0] != channels:
        return None
    _, rows, columns = np.nonzero(index != PADDING)
    if not len(rows):
        return None
    top, left = int(rows.min()), int(columns.min())
    plain = np.full(index.shape, PADDING)
    if top + height > index.shape[1] or left + width > index.shape[2]:
        return None
    inside = np.arange(source.elements).reshape(channels, height, width)
    plain[:, top : top + height, left : left + width] = inside
    return (top, left) if np.array_equal(plain, index) else None
