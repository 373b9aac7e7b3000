"""The operators of a QONNX file in PyTorch: one function for each."""

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from chop.export.onnx.read.graph import (
    FileConstant,
    FileNode,
    FileOperand,
    FileValue,
    bounded_sizes,
)
from chop.export.onnx.read.layers import OPERATORS, add_weighted_layer, reads
from chop.export.onnx.read.roundings import ROUNDINGS
from chop.export.onnx.read.scales import FURTHEST_POINT, exact_format, format_name, is_granular
from chop.nn.quant_config import QuantConfig
from chop.numerics import Integer, NumberFormat

__all__ = ["OPERATORS", "ROUNDINGS"]
INT64 = 7
NEAR = 1e-6

ARITHMETIC = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.truediv,
    "Max": torch.maximum, "Min": torch.minimum,
}  # fmt: skip


@reads(*ARITHMETIC)
def read_arithmetic(call: FileNode) -> FileOperand:
    """Two operands, element by element; a constant of one number is written as the number."""
    sides = [call.operand(0), call.operand(1)]
    if len(call.operands) != 2:
        raise ValueError("has other than two operands")
    if all(isinstance(side, FileConstant) for side in sides):
        raise ValueError("computes with constants only: fold them first")
    tensors = call.kind in ("Max", "Min")
    plain = [
        side.array.reshape(-1)[0].item()
        if isinstance(side, FileConstant) and side.array.size == 1 and not tensors
        else side
        for side in sides
    ]
    result = call.builder.by_element(ARITHMETIC[call.kind], *plain)
    return (
        replace(result, format=scaled_format(sides[0], plain[1])) if call.kind == "Mul" else result
    )


def scaled_format(x: FileOperand | None, factor: Any) -> NumberFormat | None:
    """The format of numbers in fixed point times a power of two."""
    fmt = x.format if isinstance(x, FileValue) else None
    if not isinstance(fmt, Integer) or not isinstance(factor, float) or factor <= 0:
        return None
    if not isinstance(fmt.frac_width, int):
        return None
    fraction, exponent = np.frexp(factor)
    point = fmt.frac_width + 1 - int(exponent)
    known = fraction == 0.5 and abs(point) <= FURTHEST_POINT
    return fmt.model_copy(update={"frac_width": point}) if known else None


UNARY = {
    "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Round": torch.round,
    "Floor": torch.floor, "Ceil": torch.ceil, "Neg": torch.neg, "Abs": torch.abs,
    "Sqrt": torch.sqrt, "Exp": torch.exp, "Erf": torch.erf, "HardSwish": F.hardswish,
    "Softplus": F.softplus, "Mish": F.mish, "Reciprocal": torch.reciprocal,
}  # fmt: skip


@reads(*UNARY)
def read_unary(call: FileNode) -> FileOperand:
    """A function of one element."""
    result = call.builder.by_element(UNARY[call.kind], call.traced())
    return result.in_format_of(call.traced()) if call.kind == "Relu" else result


@reads("LeakyRelu", "Softmax", "Elu", "HardSigmoid", "PRelu")
def read_with_setting(call: FileNode) -> FileOperand:
    """A function with one setting."""
    x, axis = call.traced(), call.attributes.integer("axis", -1)
    if call.kind == "Elu":
        return call.builder.layer(
            nn.ELU(call.attributes.number("alpha", 1.0)), x, shape=x.fake.shape
        )
    if call.kind == "HardSigmoid":
        if abs(call.attributes.number("alpha", 0.2) - 1 / 6) > NEAR:
            raise ValueError("has a slope other than 1/6")
        return call.builder.layer(nn.Hardsigmoid(), x, shape=x.fake.shape)
    if call.kind == "PRelu":
        slopes = call.constant(1).array.reshape(-1).astype(np.float32)
        layer = nn.PReLU(len(slopes))
        layer.weight.data = torch.from_numpy(slopes)
        return call.builder.layer(layer, x, shape=x.fake.shape)
    if call.kind == "LeakyRelu":
        slope = call.attributes.number("alpha", 0.01)
        return call.builder.layer(nn.LeakyReLU(slope), x, shape=x.fake.shape)
    return call.builder.layer(nn.Softmax(axis), x, shape=x.fake.shape)


@reads("Clip")
def read_clip(call: FileNode) -> FileOperand:
    """Limits, which are operands, or attributes in older files."""
    ends = []
    for place, name in ((1, "min"), (2, "max")):
        given = call.operand(place)
        number = call.attributes.number(name, 0.0) if name in call.attributes.by_name else None
        ends.append(number if given is None else float(call.constant(place).array.item()))
    return call.builder.by_element(torch.clamp, call.traced(), *ends)


@reads("Reshape", "Flatten")
def read_reshape(call: FileNode) -> FileOperand:
    """Another shape of each row."""
    if call.kind == "Flatten":
        if call.attributes.integer("axis", 1) != 1:
            raise ValueError("flattens rows of the batch together")
        return call.builder.call(torch.flatten, call.traced(), 1).in_format_of(call.traced())
    source, sizes = call.operand(0), bounded_sizes(call.integers(1, "shape"))
    if isinstance(source, FileConstant):
        return FileConstant(source.array.reshape(sizes), None)
    x = call.traced()
    inner = [x.fake.shape[place] if n == 0 else n for place, n in enumerate(sizes)][1:]
    if sizes[0] not in (-1, 0, 1) or x.fake.reshape(1, *inner).shape[0] != 1:
        raise ValueError(f"to {sizes} mixes rows of the batch")
    whole = list(x.fake.reshape(1, *inner).shape[1:])
    return call.builder.call(torch.reshape, x, [-1, *whole]).in_format_of(x)


@reads("Transpose")
def read_transpose(call: FileNode) -> FileOperand:
    """Dimensions in another order."""
    source = call.operand(0)
    if isinstance(source, FileConstant):
        order = call.attributes.sizes("perm", list(range(source.array.ndim))[::-1])
        if order == [1, 0] or source.target is None or source.target.scale.size == 1:
            target = source.target and source.target.turned
            return FileConstant(np.ascontiguousarray(source.array.transpose(order)), target)
        raise ValueError("moves the channels of constants that have a scale each")
    x = call.traced()
    order = call.attributes.sizes("perm", list(range(x.fake.dim()))[::-1])
    return call.builder.call(torch.permute, x, order).in_format_of(x)


@reads("Concat")
def read_concat(call: FileNode) -> FileOperand:
    """Values one after the other."""
    axis, parts = (
        call.attributes.integer("axis", 1),
        [call.traced(p) for p in range(len(call.operands))],
    )
    shapes = {each.fake.shape[:axis] + each.fake.shape[axis + 1 :] for each in parts}
    if axis < 1 or len(shapes) != 1 or any(each.fake.dim() <= axis for each in parts):
        raise ValueError("joins values of other shapes, or rows of the batch")
    shape = list(parts[0].fake.shape)
    shape[axis] = sum(each.fake.shape[axis] for each in parts)
    return call.builder.call(torch.cat, parts, axis, shape=shape)


@reads("Pad")
def read_pad(call: FileNode) -> FileOperand:
    """Zeros around a row."""
    x, pads = call.traced(), bounded_sizes(call.integers(1, "pads"))
    value = call.operand(2)
    if isinstance(value, FileConstant) and value.array.any():
        raise ValueError("pads with numbers other than 0")
    rank = x.fake.dim()
    if len(pads) != 2 * rank or pads[0] or pads[rank]:
        raise ValueError("pads the batch")
    around = [each for axis in range(rank - 1, 0, -1) for each in (pads[axis], pads[rank + axis])]
    return call.builder.call(F.pad, x, around).in_format_of(x)


@reads("Gather")
def read_gather(call: FileNode) -> FileOperand:
    """Elements at constant places, or entries of a constant table."""
    data, index = call.operand(0), call.operand(1)
    axis = call.attributes.integer("axis", 0)
    if isinstance(data, FileValue):
        places = call.constant(1)
        if places.array.ndim != 1 or axis < 1:
            raise ValueError("takes other than a list of places in a row")
        if not ((places.array >= 0) & (places.array < data.fake.shape[axis])).all():
            raise ValueError("takes places that are not there")
        return call.builder.call(torch.index_select, data, axis, places).in_format_of(data)
    if not isinstance(index, FileValue) or axis != 0 or not 1 <= call.constant(0).array.ndim <= 2:
        raise ValueError("looks up something other than rows of a constant table")
    table = call.constant(0)
    if table.array.ndim == 1:
        column = FileConstant(table.array[:, None])
        found = call.builder.call(F.embedding, index, column, shape=(*index.fake.shape, 1))
        result = call.builder.call(torch.squeeze, found, -1)
        fmt = exact_format(table.array.astype(np.float32), call.builder.binary)
        return replace(result, format=None if is_granular(fmt) else fmt)
    layer = nn.Embedding(*table.array.shape)
    shape = (*index.fake.shape, table.array.shape[1])
    if table.target is not None:
        return add_weighted_layer(call, layer, index, table, None, shape)
    layer.weight.data = table.tensor
    fmt = exact_format(table.array.astype(np.float32), call.builder.binary)
    return call.builder.layer(
        layer, index, QuantConfig(format_name(fmt), {"weight": fmt}), shape=shape
    )


@reads("Cast")
def read_cast(call: FileNode) -> FileOperand:
    """Integers become numbers by themselves; numbers become indices."""
    if call.attributes.integer("to", 1) != INT64:
        return call.traced()
    return call.builder.whole(call.traced())


@reads("ReduceMean", "ReduceSum", "ReduceMax")
def read_reduction(call: FileNode) -> FileOperand:
    """The mean, sum or largest of dimensions of a row."""
    x, axes = call.traced(), call.integers(1, "axes")
    if any(axis % x.fake.dim() == 0 for axis in axes):
        raise ValueError("reduces the batch")
    function = {"ReduceMean": torch.mean, "ReduceSum": torch.sum, "ReduceMax": torch.amax}[
        call.kind
    ]
    return call.builder.call(function, x, axes, bool(call.attributes.integer("keepdims", 1)))


@reads("Squeeze", "Unsqueeze")
def read_squeeze(call: FileNode) -> FileOperand:
    """Dimensions of size 1 taken out or put in."""
    x = call.traced()
    for axis in sorted(call.integers(1, "axes")):
        function = torch.squeeze if call.kind == "Squeeze" else torch.unsqueeze
        x = call.builder.call(function, x, axis)
    return x
