"""The C of each kind of layer."""

from collections.abc import Sequence
from functools import singledispatch
from math import prod

import numpy as np

from chop.export.c.code import (
    flat_index,
    literal,
    loops,
    runs,
    sum_type,
)
from chop.export.c.matrix import write_matrix
from chop.export.c.plan import (
    Floor,
    Layer,
    Stored,
    as_matrix,
    channels_last,
)
from chop.export.c.writer import LayerWriter, row_loops
from chop.lowering import program as steps
from chop.lowering.program import Codes, Shape, Step
from chop.lowering.ranges import reach

FEW_RUNS = 32
"""Copies of consecutive elements that are written as loops; more become a table of places."""


@singledispatch
def write_layer(step: Step, layer: Layer, writer: LayerWriter) -> None:
    """Write the C of a layer by the kind of its head."""
    raise NotImplementedError(type(step).__name__)


@write_layer.register
def _(step: steps.Constant, layer: Layer, writer: LayerWriter) -> None:
    name = writer.text.constant(step.codes)
    inner = step.out.shape[-1] if step.out.shape else 1
    writer.stored[step.out.name] = Stored(name, step.out, None, inner)


@write_layer.register(steps.Sum)
@write_layer.register(steps.Multiply)
@write_layer.register(steps.Clamp)
@write_layer.register(steps.Requantise)
@write_layer.register(steps.Rescale)
@write_layer.register(steps.Table)
@write_layer.register(Floor)
def write_elementwise(step: Step, layer: Layer, writer: LayerWriter) -> None:
    """Write a layer that computes every element from elements at the same place."""
    sources = [writer.stored[name] for name in step.sources]
    main = next((each for each in sources if each.value.size == step.out.size), None)
    order = None if main is None else main.order
    inner = main.inner if main is not None else (step.out.shape[-1] if step.out.shape else 1)
    to = writer.elements(order, inner)
    to.add(step, [writer.values[name] for name in step.sources])
    out = writer.result(layer, order, inner)
    body = writer.chain(layer, to, out)
    size, text = step.out.size, "\n".join(body)
    if "i0" not in text and "[q]" not in text:
        lines = ["for (int p = 0; p < n; p++) {", *(f"    {line}" for line in body), "}"]
        writer.text.call(lines, layer.remark, [("n", size)])
        return
    lines = ["int p = 0;", *row_loops("rows", "inner", [*body, "p++;"])]
    writer.text.call(lines, layer.remark, [("rows", size // inner), ("inner", inner)])


@write_layer.register
def _(step: steps.Product, layer: Layer, writer: LayerWriter) -> None:
    source = writer.source(step)
    count, size = step.weight.shape
    weight = step.weight
    if prod(step.out.shape[:-1]) == 1 and source.order is not None:
        weight = weight[:, source.order]
    else:
        source = writer.in_order(source)
    if as_matrix(step, source.value):
        pixels = prod(step.out.shape[:-1])
        geometry = (1, size, pixels, 1, 1, 1, 1, 1, 0, 0, 1, 1, pixels, 1)
        write_matrix(layer, writer, source, weight, step.bias, geometry)
        return
    wide = sum_type(reach(step, [source.value]))
    out, to = writer.result(layer, None, count), writer.elements(None, count)
    names = writer.text.constant(weight), writer.text.constant(step.bias)
    add = f"sum += ({wide}){names[0]}[i0 * {size} + k0] * {source.name}[q * {size} + k0];"
    to.lines += [f"{wide} sum = {names[1]}[i0];", *loops((size,), [add], "k")]
    to.assign(step.out, "sum", reach(step, [source.value]))
    body = ["const int p = q * inner + i0;", *writer.chain(layer, to, out)]
    rows = prod(step.out.shape[:-1])
    lines = row_loops("rows", "inner", body)
    writer.text.call(lines, layer.remark, [("rows", rows), ("inner", count)])


@write_layer.register
def _(step: steps.Convolution, layer: Layer, writer: LayerWriter) -> None:
    source = writer.source(step)
    if not source.is_channels_last:
        source = writer.in_order(source)
    if not as_matrix(step, source.value):
        write_direct(step, layer, writer, source)
        return
    fill = (1, 1, 1, 0, 1, 1) if len(step.stride) == 1 else ()
    sides = (
        source.value.shape[1:], step.weight.shape[2:], step.stride, step.padding, step.dilation,
        step.out.shape[1:],
    )  # fmt: skip
    sizes = [(*fill[at : at + 1], *side) for at, side in enumerate(sides)]
    channels, last = source.value.shape[0], source.is_channels_last
    weight = step.weight.reshape(*step.weight.shape[:2], *sizes[1])
    if not last and channels > 1 and prod(sizes[1]) > 1:
        source, last = writer.in_fours(source), True
        more = -channels % 4
        weight, channels = np.pad(weight, ((0, 0), (0, more), (0, 0), (0, 0))), channels + more
    weight = weight.transpose((0, 2, 3, 1)) if last else weight
    planes = (1, channels) if last else (channels, 1)
    geometry = (*planes, *(each for side in sizes for each in side))
    write_matrix(layer, writer, source, weight.reshape(len(weight), -1), step.bias, geometry)


def window_lines(
    step: steps.Convolution | steps.Pool, kernel: Shape, inside: Shape
) -> tuple[list[str], str]:
    """Lines that find the place j0, j1, … a window reads, and skip what lies outside; its index."""
    lines, tests = [], []
    for axis, size in enumerate(inside):
        lines.append(
            f"const int j{axis} = i{axis + 1} * {step.stride[axis]} + "
            f"k{axis} * {step.dilation[axis]} - {step.padding[axis]};"
        )
        last = (step.out.shape[axis + 1] - 1) * step.stride[axis] - step.padding[axis]
        last += (kernel[axis] - 1) * step.dilation[axis]
        tests += [f"j{axis} < 0"] if step.padding[axis] else []
        tests += [f"j{axis} >= {size}"] if last >= size else []
    if tests:
        lines.append(f"if ({' || '.join(tests)}) continue;")
    return lines, flat_index(inside, "j")


def write_windows(
    step: steps.Convolution | steps.Pool, layer: Layer, writer: LayerWriter, head: list[str],
    magnitude: int,
) -> None:  # fmt: skip
    """Write loops over the pixels ``q`` of a result and its channels ``i0``.

    Args:
        head: statements that compute ``sum`` of an element.
    """
    count, places = step.out.shape[0], step.out.shape[1:]
    order = channels_last(step.out.shape)
    out, to = writer.result(layer, order, count), writer.elements(order, count)
    to.lines += head
    to.assign(step.out, "sum", magnitude)
    element = [f"const int p = q * {count} + i0;", *writer.chain(layer, to, out)]
    pixel = "i1"
    for axis, size in enumerate(places[1:], 2):
        pixel = f"({pixel}) * {size} + i{axis}"
    body = [f"const int q = {pixel};", *loops((count,), element)]
    for axis in range(len(places), 0, -1):
        opening = f"for (int i{axis} = 0; i{axis} < {places[axis - 1]}; i{axis}++) {{"
        body = [opening, *(f"    {line}" for line in body), "}"]
    writer.text.call(body, layer.remark)


def element_of(source: Stored, channel: str, index: str) -> str:
    """The element of a channel at a place of a map."""
    if source.is_channels_last:
        return f"{source.name}[({index}) * {source.value.shape[0]} + {channel}]"
    return f"{source.name}[({channel}) * {prod(source.value.shape[1:])} + {index}]"


def write_direct(
    step: steps.Convolution, layer: Layer, writer: LayerWriter, source: Stored
) -> None:
    """Write a convolution in groups, in three dimensions or of wide numbers."""
    magnitude = reach(step, [source.value])
    wide, kernel, inside = sum_type(magnitude), step.weight.shape[2:], source.value.shape[1:]
    each, reads = step.weight.shape[0] // step.groups, step.weight.shape[1]
    weight, bias = writer.text.constant(step.weight), writer.text.constant(step.bias)
    lines, index = window_lines(step, kernel, inside)
    x = element_of(source, f"i0 / {each} * {reads} + m0", index)
    w = f"{weight}[(i0 * {reads} + m0) * {prod(kernel)} + {flat_index(kernel, 'k')}]"
    inner = list(loops(kernel, [*lines, f"sum += ({wide}){w} * {x};"], "k"))
    head = [f"{wide} sum = {bias}[i0];", *loops((reads,), inner, "m")]
    write_windows(step, layer, writer, head, magnitude)


@write_layer.register
def _(step: steps.Pool, layer: Layer, writer: LayerWriter) -> None:
    source = writer.source(step)
    source = source if source.is_channels_last else writer.in_order(source)
    magnitude = reach(step, [source.value])
    add = "sum += {0};" if step.kind == "sum" else "if ({0} > sum) sum = {0};"
    start = "0" if step.kind == "sum" else literal(source.value.limits[0])
    lines, index = window_lines(step, step.kernel, source.value.shape[1:])
    each = add.format(element_of(source, "i0", index))
    inside = loops(step.kernel, [*lines, each], "k")
    head = [f"{sum_type(magnitude)} sum = {start};", *inside]
    write_windows(step, layer, writer, head, magnitude)


@write_layer.register
def _(step: steps.MatMul, layer: Layer, writer: LayerWriter) -> None:
    left, right = (writer.in_order(writer.source(step, place)) for place in (0, 1))
    magnitude = reach(step, [left.value, right.value])
    wide, batch = sum_type(magnitude), prod(step.out.shape[:-2])
    rows, size, columns = *left.value.shape[-2:], right.value.shape[-1]
    one = f"{left.name}[q * {size} + k0]"
    other = f"{right.name}[(q / {rows} * {size} + k0) * {columns} + i0]"
    out, to = writer.result(layer, None, columns), writer.elements(None, columns)
    to.lines += [f"{wide} sum = 0;", *loops((size,), [f"sum += ({wide}){one} * {other};"], "k")]
    to.assign(step.out, "sum", magnitude)
    body = [f"const int p = q * {columns} + i0;", *writer.chain(layer, to, out)]
    writer.text.call(row_loops(str(batch * rows), str(columns), body), layer.remark)


@write_layer.register
def _(step: steps.Lookup, layer: Layer, writer: LayerWriter) -> None:
    source = writer.in_order(writer.source(step))
    table, width = writer.text.constant(step.table), step.table.shape[1]
    out = writer.result(layer, None, width)
    line = f"{out.name}[q * {width} + i0] = {table}[(int32_t){source.name}[q] * {width} + i0];"
    writer.text.call(row_loops(str(source.value.size), str(width), [line]), layer.remark)


@write_layer.register
def _(step: steps.Move, layer: Layer, writer: LayerWriter) -> None:
    sources = [writer.stored[name] for name in step.sources]
    offsets = np.cumsum([0, *(source.value.size for source in sources)])
    places = np.concatenate(
        [start + each.places for start, each in zip(offsets, sources, strict=False)]
    )
    assert step.index is not None
    flat = step.index.reshape(-1)
    index = np.where(flat < 0, flat, places[flat])
    copies = runs(index, offsets[:-1])
    shape = step.out.shape
    out = writer.result(layer, None, prod(shape[1:]) if len(shape) > 2 else shape[-1])
    lines: list[str] = []
    if len(copies) <= FEW_RUNS:
        for source, start, target, length in copies:
            read = "0" if source < 0 else f"{sources[source].name}[{start} + i0]"
            lines += loops((length,), [f"{out.name}[{target} + i0] = {read};"])
        writer.text.call(lines, layer.remark)
    elif len(sources) > 1:
        lines = gather(index, offsets, sources, out.name, writer)
        writer.text.call(lines, layer.remark, writes={out.name})
    else:
        table = writer.text.constant(index)
        read = f"{sources[0].name}[{table}[i0]]"
        if (index < 0).any():
            read = f"{table}[i0] < 0 ? 0 : {read}"
        writer.text.call(loops((index.size,), [f"{out.name}[i0] = {read};"]), layer.remark)


def gather(
    index: Codes, offsets: Codes, sources: Sequence[Stored], out: str, writer: LayerWriter
) -> list[str]:
    """Return a loop for each source that puts its elements where tables say, and one for zeros."""
    lines: list[str] = []
    for number in range(-1, len(sources)):
        first, end = (0, 0) if number < 0 else (offsets[number], offsets[number + 1])
        (places,) = np.nonzero(index < 0 if number < 0 else (index >= first) & (index < end))
        if not places.size:
            continue
        wanted, read = index[places] - first, "0"
        if number >= 0:
            is_whole = bool((np.diff(wanted) == 1).all())
            place = f"{wanted[0]} + i0" if is_whole else f"{writer.text.constant(wanted)}[i0]"
            read = f"{sources[number].name}[{place}]"
        to = writer.text.constant(places)
        lines += loops((places.size,), [f"{out}[{to}[i0]] = {read};"])
    return lines
