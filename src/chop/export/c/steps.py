"""An integer program as one C99 file that needs no library and allocates nothing."""

from dataclasses import dataclass
from functools import singledispatch
from math import prod

import numpy as np

from chop.export.c.code import (
    HELPERS,
    Code,
    comment,
    flat,
    literal,
    loops,
    place,
    runs,
    sum_type,
    value_type,
)
from chop.lowering import program as steps
from chop.lowering.program import IntegerProgram, Shape, Step, Value
from chop.lowering.ranges import overflows, reach

FEW_RUNS = 32
"""Copies of consecutive elements that are written as loops; more become a table of places."""
MOST_ON_STACK = 2**14
"""Bytes of buffers that a call may have for itself; more are static, which all calls share."""


@dataclass(frozen=True)
class Writer:
    """The C of the values so far."""

    code: Code
    names: dict[str, str]
    values: dict[str, Value]

    def sources(self, step: Step) -> list[Value]:
        return [self.values[name] for name in step.sources]

    def read(self, value: Value, shape: Shape) -> str:
        """The element of a value within loops over a shape."""
        return f"{self.names[value.name]}[{place(value.shape, shape)}]"

    def result(self, step: Step) -> str:
        """A buffer for the result of a step."""
        name = self.code.buffer(value_type(step.out), step.out.size)
        self.names[step.out.name] = name
        return name

    def elements(self, step: Step, expression: str) -> None:
        """An expression for every element of the result; `{0}`, `{1}` are those of the sources."""
        shape = step.out.shape
        reads = (self.read(source, shape) for source in self.sources(step))
        line = f"{self.result(step)}[{place(shape, shape)}] = {expression.format(*reads)};"
        self.code.add(loops(shape, [line]))


def predict_signature(program: IntegerProgram) -> str:
    """The head of the function: inputs, then outputs, each a row."""
    values = program.values
    inputs = [
        f"const {value_type(each.value)} input{place}[{each.value.size}]"
        for place, each in enumerate(program.inputs)
    ]
    outputs = [
        f"{value_type(values[name])} output{place}[{values[name].size}]"
        for place, name in enumerate(program.outputs)
    ]
    return f"void predict({', '.join([*inputs, *outputs])})"


@dataclass(frozen=True)
class CFile:
    """The text of a file, and what a caller must know of its memory."""

    text: str
    buffer_bytes: int

    @property
    def reentrant(self) -> bool:
        """Whether several threads may call it at once: its buffers are on the stack."""
        return self.buffer_bytes <= MOST_ON_STACK


def c_source(program: IntegerProgram, title: str) -> CFile:
    """The file with the function ``predict``, for one row of codes."""
    code = Code()
    names = {
        each.value.name: code.input(number, value_type(each.value), each.value.size)
        for number, each in enumerate(program.inputs)
    }
    writer = Writer(code, names, program.values)
    for step in program.steps:
        write(step, writer)
        code.finish(f"{step.out}, from {step.node}")
    for number, name in enumerate(program.outputs):
        size, source = writer.values[name].size, names[name]
        code.used.add(source)
        copy = loops((size,), [f"output{number}[i0] = {source}[i0];"])
        code.body += ["", *(f"    {line}" for line in copy)]
    code.body += [f"    (void){name};" for name in names.values() if name not in code.used]
    return with_buffers(code, predict_signature(program), title)


def with_buffers(code: Code, signature: str, title: str) -> CFile:
    """The file, its buffers within the function or static."""
    size, local, shared = code.buffer_bytes, list[str](), list[str]()
    threads = f"Re-entrant: {size} bytes of buffers are on the stack."
    if size > MOST_ON_STACK:
        threads = f"Not for several threads: {size} bytes of buffers are static."
        shared = ["static struct buffers b;"]
    elif size:
        local = ["    struct buffers b;"]
    parts = [
        f"/* {comment(title)}: integer codes in, integer codes out. {threads} */",
        "#include <stdint.h>\n",
        HELPERS,
        *code.functions,
        *code.data,
        code.buffers,
        *shared,
        f"\n{signature};\n",
        f"{signature} {{",
        *local,
        *code.body,
    ]
    return CFile("\n".join([*parts, "}", ""]), size)


@singledispatch
def write(step: Step, writer: Writer) -> None:
    """Write the C of one step."""
    raise NotImplementedError(type(step).__name__)


@write.register
def _(step: steps.Constant, writer: Writer) -> None:
    writer.names[step.out.name] = writer.code.constant(step.codes)


@write.register
def _(step: steps.Product, writer: Writer) -> None:
    (source,) = writer.sources(step)
    wide, x = sum_type(reach(step, [source])), writer.names[source.name]
    weight, bias = writer.code.constant(step.weight), writer.code.constant(step.bias)
    count, size = step.weight.shape
    add = f"sum += ({wide}){weight}[i1 * {size} + k0] * {x}[i0 * {size} + k0];"
    body = [
        f"{wide} sum = {bias}[i1];",
        *loops((size,), [add], "k"),
        f"{writer.result(step)}[i0 * {count} + i1] = sum;",
    ]
    writer.code.add(loops((prod(step.out.shape[:-1]), count), body))


@write.register
def _(step: steps.MatMul, writer: Writer) -> None:
    left, right = writer.sources(step)
    wide, batch = sum_type(reach(step, [left, right])), prod(step.out.shape[:-2])
    rows, size, columns = *left.shape[-2:], right.shape[-1]
    one = f"{writer.names[left.name]}[(i0 * {rows} + i1) * {size} + k0]"
    other = f"{writer.names[right.name]}[(i0 * {size} + k0) * {columns} + i2]"
    body = [
        f"{wide} sum = 0;",
        *loops((size,), [f"sum += ({wide}){one} * {other};"], "k"),
        f"{writer.result(step)}[(i0 * {rows} + i1) * {columns} + i2] = sum;",
    ]
    writer.code.add(loops((batch, rows, columns), body))


@write.register
def _(step: steps.Sum, writer: Writer) -> None:
    wide, shape = sum_type(reach(step, writer.sources(step))), step.out.shape
    terms = [
        f"({wide}){{{number}}} * {writer.code.entry(factor, shape)}"
        for number, factor in enumerate(step.factors)
    ]
    writer.elements(step, " + ".join(terms))


@write.register
def _(step: steps.Multiply, writer: Writer) -> None:
    wide = sum_type(reach(step, writer.sources(step)))
    writer.elements(step, f"({wide}){{0}} * {{1}}")


@write.register
def _(step: steps.Clamp, writer: Writer) -> None:
    low, high = (writer.code.entry(side, step.out.shape) for side in (step.low, step.high))
    writer.elements(step, f"saturate({{0}}, {low}, {high})")


@write.register
def _(step: steps.Requantise, writer: Writer) -> None:
    shape = step.out.shape
    rounded = f"{step.rounding}({{0}}, {writer.code.entry(step.shift, shape)})"
    if overflows(step, *writer.sources(step)):
        low, high = (writer.code.entry(side, shape) for side in (step.low, step.high))
        rounded = f"{step.overflow}({rounded}, {low}, {high})"
    writer.elements(step, rounded)


@write.register
def _(step: steps.Table, writer: Writer) -> None:
    table, width = writer.code.constant(step.table), step.table.shape[1]
    row = writer.code.entry(step.rows, step.out.shape)
    writer.elements(step, f"{table}[{row} * {width} + ({{0}} - ({literal(step.start)}))]")


@write.register
def _(step: steps.Lookup, writer: Writer) -> None:
    (source,) = writer.sources(step)
    table, width = writer.code.constant(step.table), step.table.shape[1]
    read = f"{table}[{writer.names[source.name]}[i0] * {width} + i1]"
    line = f"{writer.result(step)}[i0 * {width} + i1] = {read};"
    writer.code.add(loops((source.size, width), [line]))


@write.register
def _(step: steps.Move, writer: Writer) -> None:
    sources = writer.sources(step)
    if step.index is None:
        writer.names[step.out.name] = writer.names[sources[0].name]
        return
    offsets = np.cumsum([0, *(source.size for source in sources)])[:-1]
    copies = runs(step.index, offsets)
    out = writer.result(step)
    if len(copies) <= FEW_RUNS or len(sources) > 1:
        for source, start, target, length in copies:
            read = "0" if source < 0 else f"{writer.names[sources[source].name]}[{start} + i0]"
            writer.code.add(loops((length,), [f"{out}[{target} + i0] = {read};"]))
        return
    table, x = writer.code.constant(step.index), writer.names[sources[0].name]
    read = f"{x}[{table}[i0]]"
    if (step.index < 0).any():
        read = f"{table}[i0] < 0 ? 0 : {read}"
    writer.code.add(loops((step.index.size,), [f"{out}[i0] = {read};"]))


def window(
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
    return lines, flat(inside, "j")


@write.register
def _(step: steps.Convolution, writer: Writer) -> None:
    (source,) = writer.sources(step)
    wide = sum_type(reach(step, [source]))
    weight, bias = writer.code.constant(step.weight), writer.code.constant(step.bias)
    kernel, inside = step.weight.shape[2:], source.shape[1:]
    each, reads = step.weight.shape[0] // step.groups, step.weight.shape[1]
    lines, index = window(step, kernel, inside)
    x = f"{writer.names[source.name]}[(i0 / {each} * {reads} + m0) * {prod(inside)} + {index}]"
    w = f"{weight}[(i0 * {reads} + m0) * {prod(kernel)} + {flat(kernel, 'k')}]"
    inner = loops(kernel, [*lines, f"sum += ({wide}){w} * {x};"], "k")
    body = [f"{wide} sum = {bias}[i0];", *loops((reads,), inner, "m")]
    body.append(f"{writer.result(step)}[{place(step.out.shape, step.out.shape)}] = sum;")
    writer.code.add(loops(step.out.shape, body))


@write.register
def _(step: steps.Pool, writer: Writer) -> None:
    (source,) = writer.sources(step)
    wide, inside = sum_type(reach(step, [source])), source.shape[1:]
    lines, index = window(step, step.kernel, inside)
    x = f"{writer.names[source.name]}[i0 * {prod(inside)} + {index}]"
    if step.kind == "sum":
        start, lines = "0", [*lines, f"best += {x};"]
    else:
        start = literal(source.limits[0])
        lines = [*lines, f"if ({x} > best) best = {x};"]
    body = [f"{wide} best = {start};", *loops(step.kernel, lines, "k")]
    body.append(f"{writer.result(step)}[{place(step.out.shape, step.out.shape)}] = best;")
    writer.code.add(loops(step.out.shape, body))
