"""Times at which rows of images come and go, and so the rows that windows and queues hold.

Images follow each other, one in as many cycles as the slowest layer takes. A layer begins a row of
its result when the rows of its windows are there. With memories for what then waits, nothing holds
up the slowest layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.export.verilog.folded import nodes as kinds
from chop.export.verilog.folded.folding import Folds
from chop.export.verilog.folded.nodes import StreamNode

IMAGES = 4
"""Of the last two, when all is as it stays, the rows are counted."""
PIPELINE = 12
"""Cycles from the last operand of a sum to its result."""
FUNCTION = 3
"""Cycles of functions of codes, and of a sum of two."""
Times = NDArray[Any]


@dataclass
class RowTimes:
    """The cycles in which the first and the last pixel of each row comes."""

    begins: Times
    ends: Times


def later(times: RowTimes) -> RowTimes:
    """The times of rows behind a few registers."""
    return RowTimes(times.begins + FUNCTION, times.ends + FUNCTION)


def counted(times: RowTimes, at: Times) -> Times:
    """Rows, and parts of one, that have come by some cycles."""
    cycles = np.stack([times.begins, times.ends], 1).reshape(-1)
    rows = np.arange(len(cycles)) // 2 + np.arange(len(cycles)) % 2
    found: Times = np.interp(at, np.maximum.accumulate(cycles), rows.astype(float), left=0.0)
    return found


@dataclass
class StreamTiming:
    """Follows the rows of some images through nodes."""

    nodes: Mapping[str, StreamNode]
    folds: Folds
    rows: dict[str, RowTimes] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    """Rows that the windows of a node have to hold."""
    waiting: dict[tuple[str, int], float] = field(default_factory=dict)
    """Rows that wait for the other source of a node, by node and place among its sources."""

    def __post_init__(self) -> None:
        self.period = max(fold.cycles for fold in self.folds.values())
        for name, node in self.nodes.items():
            self.rows[name] = self.follow(node)

    def follow(self, node: StreamNode) -> RowTimes:
        """The times of a node's rows."""
        sources = [self.rows[name] for name in node.sources]
        match node:
            case kinds.Source():
                times = np.arange(IMAGES * node.image[0] + 1) * self.period / node.image[0]
                return RowTimes(times[:-1], times[1:])
            case kinds.Matrix() | kinds.Pooled():
                return self.windows(node, sources[0])
            case kinds.JoinNode():
                return later(self.join(node, sources))
            case kinds.Mapped():
                return later(sources[0])
            case kinds.Viewed() if node.image[0] != self.nodes[node.sources[0]].image[0]:
                return per_image(sources[0], node.image[0])
        return sources[0]

    def join(self, node: StreamNode, sources: list[RowTimes]) -> RowTimes:
        """Rows of which both sources are there; those of one wait for the other."""
        both = RowTimes(
            np.max([each.begins for each in sources], 0), np.max([each.ends for each in sources], 0)
        )
        at = np.concatenate([both.begins, both.ends])
        for place, each in enumerate(sources):
            self.waiting[node.name, place] = float((counted(each, at) - counted(both, at)).max())
        return both

    def windows(self, node: kinds.Matrix | kinds.Pooled, source: RowTimes) -> RowTimes:
        """Rows of sums or pools, one after the other."""
        shape, fold = node.window, self.folds[node.name]
        came = self.nodes[node.sources[0]].image[0]
        if came != shape.size[0]:  # all of an image is one vector
            source = per_image(source, shape.size[0])
        if isinstance(node, kinds.Pooled) and node.side_by_side:
            last = self.last_rows(node, IMAGES)
            return RowTimes(source.begins[last] + 1, source.ends[last] + 1)
        each = fold.cycles / shape.result[0]
        straight = shape.taps == 1 and shape.stride[0] == 1
        begins, ends, end = [], [], 0.0
        for row in self.last_rows(node, IMAGES):
            begin = max(end, source.begins[row] if straight else source.ends[row])
            end = max(begin + each, source.ends[row])
            begins.append(begin)
            ends.append(end)
        self.held[node.name] = rows_held(node.window, source, np.array(ends))
        return RowTimes(np.array(begins) + PIPELINE, np.array(ends) + PIPELINE)

    def last_rows(self, node: kinds.Matrix | kinds.Pooled, images: int) -> Times:
        """The last row of the image that each row of the result needs, over some images."""
        shape = node.window
        own = [shape.rows_before(row + 1) - 1 for row in range(shape.result[0])]
        return np.concatenate([np.array(own) + image * shape.size[0] for image in range(images)])


def per_image(times: RowTimes, rows: int) -> RowTimes:
    """Images as another number of rows, all of which come when the whole image has."""
    of_image = len(times.ends) // IMAGES
    begins, ends = (np.repeat(each, rows) for each in (
        times.begins[::of_image], times.ends[of_image - 1 :: of_image]
    ))  # fmt: skip
    return RowTimes(begins, ends)


def rows_held(shape: kinds.WindowShape, source: RowTimes, ends: Times) -> int:
    """Rows that are there at once, from where each begins to come to the last window over it."""
    rows, results = shape.size[0], shape.result[0]
    last = [min((row + shape.padding[0]) // shape.stride[0], results - 1) for row in range(rows)]
    freed = np.concatenate([ends[np.array(last) + image * results] for image in range(IMAGES)])
    begins = source.begins[-2 * rows :]
    there = [int((freed[: len(freed) - 2 * rows + at] > begin + 0.5).sum()) + 1
             for at, begin in enumerate(begins)]  # fmt: skip
    return max(there)


def queue_beats(rows: float, of_row: float) -> int:
    """Beats of a queue for so many rows."""
    return ceil(rows * of_row - 0.01)
