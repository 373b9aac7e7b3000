"""Folding: the share of each layer computed at once, from a number of cycles for an image."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd, prod

from chop.export.verilog.folded.estimate import matrix_luts
from chop.export.verilog.folded.nodes import (
    JoinNode,
    Mapped,
    Matrix,
    Pooled,
    Source,
    StreamNode,
    Viewed,
)
from chop.export.verilog.netlist import CircuitError

MOST_CYCLES = 10**12


@dataclass(frozen=True)
class LayerFold:
    """Elements of a beat that a node reads and gives, and its cycles for an image."""

    reads: int
    gives: int
    cycles: int
    taps: int = 1
    """Taps of a window at once."""


Folds = dict[str, LayerFold]


def divisors(number: int) -> list[int]:
    """All divisors, the smallest first."""
    return [each for each in range(1, number + 1) if number % each == 0]


def matrix_folds(node: Matrix, source: StreamNode) -> Iterable[LayerFold]:
    """All ways to fold a matrix: results at once, channels at once."""
    results, channels, taps = node.weight.shape
    pixels = prod(node.window.result)
    for units in divisors(results):
        for wide in (units,) if node.depthwise else divisors(channels):
            reads = source.elements // wide
            if node.depthwise:
                cycles = pixels * (results // units) * taps
            else:
                cycles = pixels * (results // units) * taps * (channels // wide)
            yield LayerFold(wide, units, max(cycles, reads))
    if node.window.moves:
        for units in (results,) if node.depthwise else divisors(results):
            cycles = node.window.moving_cycles(results // units)
            yield LayerFold(source.image[2], units, cycles, taps)


def fold_matrix(node: Matrix, source: StreamNode, cycles: int, before: int) -> LayerFold:
    """The cheapest way to fold a matrix in so many cycles.

    Args:
        before: elements of a beat that come; a width that fits needs no converter.
    """
    fits = [each for each in matrix_folds(node, source) if each.cycles <= cycles]
    if not fits:
        raise CircuitError(
            f"verilog: {node.layer} takes at least {fastest_matrix(node, source):,} cycles for an "
            f"image, and {cycles:,} are allowed: give more cycles"
        )

    converted = [each for each in fits if source.elements // gcd(each.reads, before) <= cycles]

    def cost(each: LayerFold) -> tuple[float, int, int]:
        misfit = max(each.reads, before) % min(each.reads, before)
        luts = matrix_luts(node, source.bits, each.gives, each.reads, each.taps)
        return luts + 50 * bool(misfit), abs(each.reads - before), -each.gives

    return min(converted or fits, key=cost)


def fastest_matrix(node: Matrix, source: StreamNode) -> int:
    """The fewest cycles of a matrix."""
    return min(each.cycles for each in matrix_folds(node, source))


def fold_pool(node: Pooled, cycles: int) -> LayerFold:
    """The fewest elements at once of windows that overlap: a tap in each cycle, or all of them."""
    channels, shape = node.image[2], node.window
    beats = prod(shape.result) * shape.taps
    fast = shape.moving_cycles(1)
    if shape.moves and beats > cycles >= fast:
        return LayerFold(channels, channels, fast, shape.taps)
    least = min(beats, fast) if shape.moves else beats
    lanes = fitting_lanes(node, beats, channels, cycles, least)
    return LayerFold(lanes, lanes, beats * channels // lanes)


def fold_nodes(nodes: Mapping[str, StreamNode], cycles: int) -> Folds:
    """The widths of all streams for so many cycles an image."""
    folds: Folds = {}
    for name, node in nodes.items():
        if isinstance(node, Source):
            continue
        sources = [nodes[each] for each in node.sources]
        first = folds.get(node.sources[0])
        before = first.gives if first else 1
        channels = node.image[2]
        if isinstance(node, Matrix):
            folds[name] = fold_matrix(node, sources[0], cycles, before)
        elif isinstance(node, Pooled) and not node.side_by_side:
            folds[name] = fold_pool(node, cycles)
        elif isinstance(node, Mapped) and (node.varies or node.memory is not None):
            pixels = prod(node.image[:2])
            lanes = channels if node.varies else fitting_lanes(node, pixels, channels, cycles)
            folds[name] = LayerFold(lanes, lanes, node.elements // lanes)
        elif isinstance(node, JoinNode) and node.factors is None:
            folds[name] = joined_fold(nodes, node, before, cycles)
        else:
            before = gcd(before, channels) if isinstance(node, Viewed) else before
            folds[name] = LayerFold(before, before, sources[0].elements // before)
    return {**source_fold(nodes, folds), **folds}


def joined_fold(
    nodes: Mapping[str, StreamNode], node: JoinNode, before: int, cycles: int
) -> LayerFold:
    """The width of channels that follow each other: one that divides both, or all of both."""
    counts = [nodes[each].image[2] for each in node.sources]
    lanes = max(each for each in divisors(before) if not any(n % each for n in counts))
    if node.elements // lanes > cycles:
        lanes = sum(counts)
    return LayerFold(lanes, lanes, node.elements // lanes)


def fitting_lanes(
    node: StreamNode, beats: int, channels: int, cycles: int, least: int | None = None
) -> int:
    """The fewest elements at once with which so many beats for each element are in time."""
    fits = [each for each in divisors(channels) if beats * channels // each <= cycles]
    if not fits:
        raise CircuitError(
            f"verilog: {node.layer} takes at least {least or beats:,} cycles for an image, and "
            f"{cycles:,} are allowed: give more cycles"
        )
    return fits[0]


def source_fold(nodes: Mapping[str, StreamNode], folds: Folds) -> Folds:
    """The width of the input: that of the first that reads it."""
    (source,) = (node for node in nodes.values() if isinstance(node, Source))
    reads = next(folds[node.name].reads for node in nodes.values() if source.name in node.sources)
    return {source.name: LayerFold(reads, reads, source.elements // reads)}


def fastest(nodes: Mapping[str, StreamNode]) -> int:
    """The fewest cycles that all layers can be folded to."""
    found = [1]
    for node in nodes.values():
        if isinstance(node, Matrix):
            found.append(fastest_matrix(node, nodes[node.sources[0]]))
        elif isinstance(node, Pooled) and not node.side_by_side:
            one_by_one = prod(node.window.result) * node.window.taps
            fast = node.window.moving_cycles(1) if node.window.moves else one_by_one
            found.append(min(one_by_one, fast))
        elif isinstance(node, Pooled):
            found.append(prod(node.window.size))
        elif isinstance(node, Mapped):
            found.append(prod(node.image[:2]))
    return max(found)
