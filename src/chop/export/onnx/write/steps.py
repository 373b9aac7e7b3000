"""Integer programs as ONNX: what is computed from numbers, exactly, in floating point.

A value is a tensor of numbers, not of codes, so that scales are where others look for them. Every
step is computed in a type that holds all its partial sums, as its ranges prove; therefore no
optimiser can change a result by summing in another order. How numbers are rounded, and how weights
are stored, is the business of a `Style`.
"""

from functools import singledispatch
from math import prod
from typing import Any, Protocol

import numpy as np
import torch

from chop.errors import GraphError
from chop.export.onnx.write.code import (
    Array,
    ModelEdge,
    OnnxCode,
    are_float32,
    code_numbers,
    onnx_type,
    power_array,
)
from chop.export.onnx.write.rounding import (
    RoundingTarget,
    write_half_odd,
    write_half_up,
    write_limits,
    write_rounding,
)
from chop.export.onnx.write.windows import Weights, step_weights, window_index, window_settings
from chop.export.rows import input_types
from chop.lowering import program as steps
from chop.lowering.engine import step_dtype
from chop.lowering.exactness import EXACT, rounded_before
from chop.lowering.program import Codes, Input, IntegerProgram, Shape, Step, Value

DTYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


class Style(Protocol):
    """A kind of ONNX file: its way to round numbers and to store weights."""

    most_bits: int
    only_gemm: bool
    """Of floating point in which a step may be computed."""

    def rounded(self, code: OnnxCode, x: str, to: RoundingTarget, dtype: Any) -> str:
        """Numbers of a format."""

    def weights(self, code: OnnxCode, weights: Weights, dtype: Any) -> str:
        """Constants of a product."""


class OnnxWriter:
    """The ONNX of the values so far."""

    def __init__(self, program: IntegerProgram, style: Style) -> None:
        self.code, self.style, self.program = OnnxCode(), style, program
        self.values = program.values
        self.makers = {step.out.name: step for step in program.steps}
        self.constants: dict[str, Codes] = {}
        """The codes of values that are the same for every row."""
        self._made: dict[tuple[str, Any], str] = {}
        self.dtypes: dict[str, Any] = {}
        """The type in which each value was computed."""

    def sources(self, step: Step) -> list[Value]:
        return [self.values[name] for name in step.sources]

    def dtype(self, step: Step) -> Any:
        """The type in which a step is exact; refused where the form has none."""
        found = step_dtype(step, self.sources(step))
        if isinstance(step, steps.Table) and are_float32(step.table, step.out.frac):
            found = torch.float32  # its entries are only looked up
        fracs = [value.frac for value in (step.out, *self.sources(step))]
        _, least, finest = EXACT["float32"]
        within = all(least <= int(f.min()) and int(f.max()) <= finest for f in fracs)
        dtype = DTYPES.get(found if within else torch.float64)
        if dtype is None or np.finfo(dtype).nmant + 1 > self.style.most_bits:
            raise GraphError(
                f"export: {step.node} needs more than {self.style.most_bits - 1} bits, which "
                "this form has no exact arithmetic for: take narrower formats, or export to C"
            )
        return dtype

    def add(self, value: Value, name: str, dtype: Any) -> None:
        """Take note of where a value is."""
        self._made[value.name, dtype] = name
        self.dtypes.setdefault(value.name, dtype)

    def read(self, value: Value, dtype: Any) -> str:
        """A value in a type; that holds all its numbers, as the one who asks has made sure."""
        key = (value.name, dtype)
        if key not in self._made:
            given = self._made[value.name, self.dtypes[value.name]]
            kind = onnx_type(dtype)
            self._made[key] = self.code.node("Cast", given, to=kind)
        return self._made[key]

    def flat(self, value: Value, dtype: Any) -> str:
        """A value as rows of its elements."""
        name = self.read(value, dtype)
        return name if len(value.shape) == 1 else self.shaped(name, (value.size,))

    def shaped(self, x: str, shape: Shape) -> str:
        """Rows in another shape."""
        return self.code.node("Reshape", x, self.code.constant(np.array([-1, *shape], np.int64)))


def onnx_model(program: IntegerProgram, style: Style, notes: str, batch: int | str) -> Any:
    """The protocol buffer of a program."""
    writer = OnnxWriter(program, style)
    types = input_types(program)
    inputs = {
        each.placeholder: ModelEdge(each.placeholder, each.value.shape, types[each.placeholder])
        for each in program.inputs
    }
    names = output_names(program)
    for name in (*inputs, *names):
        writer.code.name(name)  # nothing else may have it
    for each in program.inputs:
        write_input(each, writer, types[each.placeholder])
    for step in program.steps:
        dtype = writer.dtype(step)
        writer.add(step.out, write_onnx_step(step, writer, dtype), dtype)
    outputs = []
    for name, source in zip(names, program.outputs, strict=True):
        value, dtype = program.values[source], writer.dtypes[source]
        number = writer.read(value, dtype)
        if value.is_scaled:
            dtype = np.float64
            number = writer.code.scaled(writer.read(value, dtype), value.scale)
        writer.code.renamed(number, name)
        outputs.append(ModelEdge(name, value.shape, dtype))
    return writer.code.model(list(inputs.values()), outputs, notes, batch)


def output_names(program: IntegerProgram) -> list[str]:
    """The names of the outputs of the file, which are not those of inputs."""
    taken = {each.placeholder for each in program.inputs}
    only = len(program.outputs) == 1
    names = ["output" if only else f"output{place}" for place in range(len(program.outputs))]
    return [f"{name}_" if name in taken else name for name in names]


def write_input(each: Input, writer: OnnxWriter, dtype: Any) -> None:
    """Round an input as the network does."""
    value = each.value
    if each.format is None:
        writer.add(value, each.placeholder, dtype)
        return
    if each.format["name"] == "integer_scaled":
        writer.add(value, write_scaled_input(each, writer), np.float64)
        return
    if each.format["name"] != "integer":
        raise GraphError(
            f"export: the input {each.placeholder!r} is rounded to {each.format['name']!r}, which "
            "ONNX has no operator for: quantise the layers that read it to 'integer'"
        )
    refuse_wide(f"the input {each.placeholder!r}", dtype, writer.style.most_bits)
    to = RoundingTarget(
        value.frac, value.low, value.high, each.format["rounding"], each.format["overflow"],
        value.shape, unknown=True,
    )  # fmt: skip
    writer.add(value, writer.style.rounded(writer.code, each.placeholder, to, dtype), dtype)


def write_scaled_input(each: Input, writer: OnnxWriter) -> str:
    """Round an input with a scale: to the nearest of the exact quotients, as the format does."""
    code, value, settings = writer.code, each.value, each.format
    assert settings is not None
    dtype = np.float64
    refuse_wide(f"the input {each.placeholder!r}", np.float64, writer.style.most_bits)
    x = code.node("Cast", each.placeholder, to=onnx_type(np.float64))
    x = code.node("Div", x, code.constant(value.unit.astype(dtype)))
    if settings["rounding"] == "half_up":
        x = write_half_up(code, x, dtype)
    elif settings["rounding"] == "half_even" and settings["zero_point"] % 2:
        x = write_half_odd(code, x)
    else:
        x = code.node("Round", x)
    x = write_limits(code, x, *(side.astype(dtype) for side in (value.low, value.high)))
    return code.scaled(x, power_array(-value.frac, dtype))


def refuse_wide(what: str, dtype: Any, most: int) -> None:
    """Raise where a form has no arithmetic of so many bits."""
    if np.finfo(dtype).nmant + 1 > most:
        raise GraphError(f"export: {what} is too wide for this form")


@singledispatch
def write_onnx_step(step: Step, writer: OnnxWriter, dtype: Any) -> str:
    """Write the nodes of one step; the name of its result."""
    raise NotImplementedError(type(step).__name__)


@write_onnx_step.register
def _(step: steps.Constant, writer: OnnxWriter, dtype: Any) -> str:
    return write_constant(step, step.codes, writer, dtype)


def write_constant(step: Step, codes: Codes, writer: OnnxWriter, dtype: Any) -> str:
    """The same codes for every row."""
    writer.constants[step.out.name] = codes
    return writer.code.constant(code_numbers(codes, step.out.frac, dtype)[None])


@write_onnx_step.register
def _(step: steps.Product, writer: OnnxWriter, dtype: Any) -> str:
    (source,), code = writer.sources(step), writer.code
    stored = writer.style.weights(code, step_weights(step, source), dtype)
    more = bias_inputs(writer, step, step.bias, dtype)
    x = writer.read(source, dtype)
    if len(source.shape) == 1 and source.name not in writer.constants:
        return code.node("Gemm", x, stored, *more, transB=1)
    if writer.style.only_gemm:
        rows = code.node("Reshape", x, code.constant(np.array([-1, source.shape[-1]])))
        return writer.shaped(code.node("Gemm", rows, stored, *more, transB=1), step.out.shape)
    x = code.node("MatMul", x, code.node("Transpose", stored, perm=[1, 0]))
    return code.node("Add", x, *more) if more else x


def bias_inputs(writer: OnnxWriter, step: Step, bias: Codes, dtype: Any) -> list[str]:
    """The bias of a step, if it has one."""
    values = code_numbers(bias, step.out.frac, dtype)
    return [writer.code.constant(values, f"{step.node}.bias")] if bias.any() else []


@write_onnx_step.register
def _(step: steps.Convolution, writer: OnnxWriter, dtype: Any) -> str:
    return sum_windows(writer, step, dtype)


def sum_windows(writer: OnnxWriter, step: steps.Convolution | steps.Pool, dtype: Any) -> str:
    """Sums of windows times weights; onnxruntime convolves in float32 only."""
    (source,), code = writer.sources(step), writer.code
    weights = step_weights(step, source)
    groups = source.shape[0] // weights.codes.shape[1]
    if dtype is np.float64:
        total = gather_windows(writer, step, weights.numbers(dtype), groups)
        wide = weights.bias.reshape((-1,) + (1,) * (len(source.shape) - 1))
        more = bias_inputs(writer, step, wide, dtype)
        return code.node("Add", total, *more) if more else total
    stored = writer.style.weights(code, weights, dtype)
    more = bias_inputs(writer, step, weights.bias, dtype)
    settings = window_settings(step, weights.codes.shape[2:], source)
    return code.node("Conv", writer.read(source, dtype), stored, *more, group=groups, **settings)


def gather_windows(
    writer: OnnxWriter, step: steps.Convolution | steps.Pool, weight: Array, groups: int
) -> str:
    """The same in float64: the elements of all windows, then products of matrices."""
    (source,), code = writer.sources(step), writer.code
    index = window_index(step, weight.shape[2:], source.shape).reshape(groups, -1, 1)
    index = index.reshape(groups, prod(weight.shape[1:]), -1)
    zeros = code.constant(np.array([0, 0, 0, 1], np.int64))
    padded = code.node("Pad", writer.flat(source, np.float64), zeros)
    parts = code.node("Gather", padded, code.constant(index), axis=1)
    matrices = weight.reshape(groups, len(weight) // groups, -1)
    return writer.shaped(code.node("MatMul", code.constant(matrices), parts), step.out.shape)


@write_onnx_step.register
def _(step: steps.Pool, writer: OnnxWriter, dtype: Any) -> str:
    (source,), code = writer.sources(step), writer.code
    if step.kind == "max":
        settings = window_settings(step, step.kernel, source)
        return code.node("MaxPool", writer.read(source, dtype), **settings)
    return sum_windows(writer, step, dtype)


@write_onnx_step.register
def _(step: steps.MatMul, writer: OnnxWriter, dtype: Any) -> str:
    return writer.code.node("MatMul", *(writer.read(each, dtype) for each in writer.sources(step)))


@write_onnx_step.register
def _(step: steps.Multiply, writer: OnnxWriter, dtype: Any) -> str:
    return writer.code.node("Mul", *(writer.read(each, dtype) for each in writer.sources(step)))


@write_onnx_step.register
def _(step: steps.Sum, writer: OnnxWriter, dtype: Any) -> str:
    total = ""
    for source, factor in zip(writer.sources(step), step.factors, strict=True):
        weight = code_numbers(factor, step.out.frac - source.frac, dtype)
        term = writer.code.scaled(writer.read(source, dtype), weight)
        total = writer.code.node("Add", total, term) if total else term
    return total


@write_onnx_step.register
def _(step: steps.Clamp, writer: OnnxWriter, dtype: Any) -> str:
    (source,) = writer.sources(step)
    low = code_numbers(step.low, source.frac, dtype) if (source.low < step.low).any() else None
    high = code_numbers(step.high, source.frac, dtype) if (source.high > step.high).any() else None
    return write_limits(writer.code, writer.read(source, dtype), low, high)


@write_onnx_step.register
def _(step: steps.Requantise, writer: OnnxWriter, dtype: Any) -> str:
    (source,) = writer.sources(step)
    frac = source.frac - step.shift
    shape = step.out.shape
    again = rounded_before(step.sources[0], writer.makers, writer.program) is not None
    to = RoundingTarget(frac, step.low, step.high, step.rounding, step.overflow, shape, again)
    return writer.style.rounded(writer.code, writer.read(source, dtype), to, dtype)


@write_onnx_step.register
def _(step: steps.Rescale, writer: OnnxWriter, dtype: Any) -> str:
    (source,), code = writer.sources(step), writer.code
    x = code.scaled(writer.read(source, dtype), power_array(source.frac, dtype))
    x = code.scaled(x, step.multiplier.astype(dtype))
    whole = np.zeros((), np.int64)
    to = RoundingTarget(whole, step.low, step.high, step.rounding, "saturate", step.out.shape)
    x = write_rounding(code, code.scaled(x, power_array(-step.shift, dtype)), to, dtype)
    return code.scaled(x, power_array(-step.out.frac, dtype))


@write_onnx_step.register
def _(step: steps.Move, writer: OnnxWriter, dtype: Any) -> str:
    sources, code, shape = writer.sources(step), writer.code, step.out.shape
    sizes = [source.size for source in sources]
    index = np.arange(sum(sizes)) if step.index is None else step.index.reshape(-1)
    fixed = [writer.constants.get(source.name) for source in sources]
    # What is constant, or a zero that comes from nowhere, is added to a zero behind all others.
    known = [np.zeros(n, np.int64) if c is None else c for n, c in zip(sizes, fixed, strict=True)]
    offset = np.append(np.concatenate([each.reshape(-1) for each in known]), 0)[index]
    if all(codes is not None for codes in fixed):
        return write_constant(step, offset.reshape(shape), writer, dtype)
    varies = np.repeat([codes is None for codes in fixed], sizes)
    total = int(varies.sum())
    places = np.append(np.where(varies, np.cumsum(varies) - 1, total), total)[index]
    parts = [
        writer.flat(source, dtype)
        for source, codes in zip(sources, fixed, strict=True)
        if codes is None
    ]
    x = code.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    if (places == total).any():
        x = code.node("Pad", x, code.constant(np.array([0, 0, 0, 1], np.int64)))
    if step.index is not None:
        x = code.node("Gather", x, code.constant(places), axis=1)
    x = x if len(shape) == 1 and step.index is not None else writer.shaped(x, shape)
    row = code_numbers(offset.reshape(shape), step.out.frac, dtype)
    return code.node("Add", x, code.constant(row)) if row.any() else x


@write_onnx_step.register
def _(step: steps.Table, writer: OnnxWriter, dtype: Any) -> str:
    (source,), code = writer.sources(step), writer.code
    x = code.scaled(writer.read(source, dtype), power_array(source.frac, dtype))
    place = code.node("Cast", x, to=onnx_type(np.int64))
    offset = step.rows * step.table.shape[1] - step.start
    if offset.any():
        place = code.node("Add", place, code.constant(offset))
    entries = code.constant(step.table.reshape(-1).astype(dtype))
    found = code.node("Gather", entries, place, axis=0)
    return code.scaled(found, power_array(-step.out.frac, dtype))


@write_onnx_step.register
def _(step: steps.Lookup, writer: OnnxWriter, dtype: Any) -> str:
    (source,) = writer.sources(step)
    table = writer.code.constant(code_numbers(step.table, step.out.frac, dtype))
    return writer.code.node("Gather", table, writer.read(source, np.int64), axis=0)
