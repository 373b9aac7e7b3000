"""Nodes of a stream: what each needs to know, in the order of its pixels.

Pixels come row by row, the channels of a pixel together. A value keeps that order through a change
of its shape: `order` has the place in the program's value of each element of the stream.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from chop.export.verilog.netlist import code_bits
from chop.lowering import program as steps
from chop.lowering.program import Codes, Shape, Step, Table

LARGEST_CASE = 1024
"""Entries of a function of one code that is logic; larger ones are memories."""


@dataclass(frozen=True)
class WindowShape:
    """The layout of windows over an image: its size, that of the result, kernel and stride."""

    size: Shape
    result: Shape
    kernel: Shape
    stride: Shape = (1, 1)
    padding: Shape = (0, 0)
    """Rows above and columns to the left; those on the other sides follow from the result."""
    dilation: Shape = (1, 1)

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    def rows(self, wanted: int) -> int:
        """Rows that are held: at least those of a window, and those that come while it is read."""
        least = min(self.span[0], self.size[0]) + self.stride[0]
        # Up to a power of two they cost nothing, and let a slow layer fall behind for a while.
        return 1 << (max(least, wanted) - 1).bit_length()

    @property
    def span(self) -> Shape:
        """Rows and columns from the first tap of a window to the last."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def scanned(self) -> Shape:
        """Rows and columns that a window moves over: the image and what is around it."""
        sides = zip(self.result, self.stride, self.span, self.padding, self.size, strict=True)
        return tuple(max((o - 1) * s + k, p + n) for o, s, k, p, n in sides)

    @property
    def moves(self) -> bool:
        """True if all taps can be there at once; rows of one place have no memory for them."""
        return self.taps > 1 and (self.span[0] == 1 or self.scanned[1] > 1)

    @property
    def parameters(self) -> dict[str, int]:
        """The same as parameters of a block."""
        names = {"": self.size, "O": self.result, "K": self.kernel, "S": self.stride,
                 "P": self.padding, "D": self.dilation}  # fmt: skip
        return {
            f"{prefix}{axis}": size
            for prefix, sizes in names.items()
            for axis, size in zip("HW", sizes, strict=True)
        }

    def moving_cycles(self, repeats: int) -> int:
        """Cycles of a window with all taps at once, which is given so many times at each place."""
        return prod(self.scanned) + prod(self.result) * (repeats - 1)

    def rows_before(self, row: int) -> int:
        """Rows of the image that must be there before a row of the result (from 1) is."""
        last = (row - 1) * self.stride[0] - self.padding[0]
        last += (self.kernel[0] - 1) * self.dilation[0] + 1
        return min(max(last, 1), self.size[0])


@dataclass(frozen=True, eq=False)
class StreamNode:
    """The source of a value: pixels of so many channels, with codes of a range."""

    name: str
    """That of the program's value."""
    layer: str
    sources: tuple[str, ...]
    image: Shape
    """Height, width and channels."""
    limits: tuple[int, int]
    order: Codes

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return code_bits(*self.limits)

    @property
    def signed(self) -> bool:
        return self.limits[0] < 0

    @property
    def elements(self) -> int:
        return prod(self.image)


@dataclass(frozen=True, eq=False)
class Source(StreamNode):
    """The input of the network."""


@dataclass(frozen=True, eq=False)
class Matrix(StreamNode):
    """Sums of products with constants over windows: of all channels, or of each by itself."""

    weight: Codes
    """Results, channels and taps."""
    bias: Codes
    window: WindowShape
    depthwise: bool

    @property
    def weight_bits(self) -> int:
        """Bits of a weight, with a sign."""
        low, high = min(int(self.weight.min()), -1), int(self.weight.max())
        return code_bits(low, high)

    @property
    def macs(self) -> int:
        return prod(self.window.result) * self.weight.size


@dataclass(frozen=True, eq=False)
class Pooled(StreamNode):
    """The largest or the sum of the codes of each window, channel by channel."""

    largest: bool
    window: WindowShape

    @property
    def side_by_side(self) -> bool:
        """True if no two windows share a pixel, and none reaches over the edge."""
        shape = self.window
        fits = all(
            size // kernel == result
            for size, kernel, result in zip(shape.size, shape.kernel, shape.result, strict=True)
        )
        plain = shape.padding == (0, 0) and shape.dilation == (1, 1)
        return fits and plain and shape.stride == shape.kernel


@dataclass(frozen=True, eq=False)
class Mapped(StreamNode):
    """Functions of single codes, one after the other."""

    steps: tuple[Step, ...]
    """Their settings are one number for each channel."""

    @property
    def varies(self) -> bool:
        """True if channels have different functions."""
        return any(np.ptp(each) for step in self.steps for each in settings_of(step).values())

    @property
    def memory(self) -> Table | None:
        """The table, if it is too large for logic."""
        only = self.steps[0]
        if len(self.steps) == 1 and isinstance(only, steps.Table):
            return only if only.table.shape[1] > LARGEST_CASE else None
        return None


@dataclass(frozen=True, eq=False)
class JoinNode(StreamNode):
    """Two streams, added with factors, or the channels of one after those of the other."""

    factors: tuple[int, int] | None
    """None if channels follow each other."""


@dataclass(frozen=True, eq=False)
class Viewed(StreamNode):
    """The same elements in the same order as pixels of another number of channels."""


def settings_of(step: Step) -> dict[str, Codes]:
    """The settings of an elementwise step that may differ between elements."""
    names = ("rows",) if isinstance(step, steps.Table) else ("shift", "low", "high")
    return {name: getattr(step, name) for name in names if hasattr(step, name)}
