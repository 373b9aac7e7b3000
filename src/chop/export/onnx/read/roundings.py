"""Roundings of a file: ``Quant`` of QONNX, and ``QuantizeLinear`` with ``DequantizeLinear``."""

import operator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from chop.export.onnx.read.graph import FileConstant, FileNode, FileOperand, FileValue
from chop.export.onnx.read.layers import reads
from chop.export.onnx.read.scales import MOST_BITS, ScaledCodes, format_name
from chop.export.onnx.write.code import Array
from chop.nn.quant_config import QuantConfig
from chop.numerics import Binary

ROUNDINGS = ("ROUND", "HALF_EVEN")
CODE_TYPES = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32"}
"""The types of codes by their numbers in ONNX."""


def rounding_layer(call: FileNode, x: FileValue, target: ScaledCodes) -> FileValue:
    """Return data that is rounded here."""
    fmt = target.format(call.builder.binary)
    # Limits that no number of the format is beyond, computed on rounded data.
    limits = nn.Hardtanh(*target.limits)
    quant = QuantConfig(format_name(fmt), {"data_in": fmt})
    return replace(call.builder.layer(limits, x, quant, shape=x.fake.shape), format=fmt)


@reads("Quant", "IntQuant")
def read_quant(call: FileNode) -> FileOperand:
    """A constant in a format, or a place where data is rounded."""
    target = read_rounding(call)
    source = call.operand(0)
    if isinstance(source, FileConstant):
        return FileConstant(target.rounded(source.array), target)
    return rounding_layer(call, call.traced(), target)


def read_rounding(call: FileNode) -> ScaledCodes:
    """Return the codes and the scale that a node rounds to."""
    scale, zero, width = (call.constant(place).array for place in (1, 2, 3))
    mode = call.attributes.text("rounding_mode", "ROUND").upper()
    if zero.size != 1 or float(zero.reshape(-1)[0]) % 1:
        raise ValueError("has a zero point that is not one whole number")
    bits = float(width.reshape(-1)[0]) if width.size == 1 else 0.5
    if not 2 <= bits <= MOST_BITS or bits % 1:
        raise ValueError(f"has {width!s:.40} bits: one whole number from 2 to {MOST_BITS} is read")
    if mode not in ROUNDINGS:
        raise ValueError(f"rounds {mode!r:.20}, and only ROUND is read")
    signed, narrow = (bool(call.attributes.integer(name, 0)) for name in ("signed", "narrow"))
    return ScaledCodes(int(bits), positive(scale), int(zero.reshape(-1)[0]), signed, narrow)


def positive(scale: Array) -> Array:
    """Return scales; refuse those that are none."""
    if not (scale > 0).all():
        raise ValueError("has a scale that is not positive")
    return scale


@reads("BipolarQuant")
def read_bipolar(call: FileNode) -> FileOperand:
    """One scale with the sign of each number; zero is positive."""
    scale = positive(call.constant(1).array)
    target = ScaledCodes(2, scale, 0, True, True)
    source = call.operand(0)
    if isinstance(source, FileConstant):
        return FileConstant(np.where(source.array >= 0, scale, -scale).astype(np.float32), target)
    if scale.size != 1:
        raise ValueError("has several scales for data")
    x, fmt = call.traced(), Binary(bipolar=True)
    quant = QuantConfig("binary", {"data_in": fmt})
    signs = call.builder.layer(nn.Hardtanh(), x, quant, shape=x.fake.shape)
    number = float(scale.reshape(()))
    found = signs if number == 1 else call.builder.by_element(operator.mul, signs, number)
    return replace(found, format=target.format(call.builder.binary))


def type_of_codes(call: FileNode) -> np.dtype[Any]:
    """Return the type of codes: that of the zero point, or what the node says."""
    if call.operand(2) is not None:
        found = call.constant(2).array.dtype
    else:
        found = np.dtype(CODE_TYPES.get(call.attributes.integer("output_dtype", 2), "uint8"))
    if found.name not in CODE_TYPES.values():
        raise ValueError(f"has codes of the type {found.name}, not of 8, 16 or 32 bits")
    return found


def linear_codes(call: FileNode, kind: np.dtype[Any], rank: int) -> ScaledCodes:
    """Return the codes and scale of a pair of nodes; of several scales, along their dimension."""
    scale = positive(call.constant(1).array)
    if call.attributes.integer("block_size", 0):
        raise ValueError("has a scale for each block, not for a tensor or a channel")
    zeros = call.constant(2).array if call.operand(2) is not None else np.zeros(1, kind)
    if len(np.unique(zeros)) != 1:
        raise ValueError("has zero points that differ between channels")
    if scale.size > 1:
        axis = call.attributes.integer("axis", 1) % rank
        scale = scale.reshape([-1 if place == axis else 1 for place in range(rank)])
    zero, bits = int(zeros.reshape(-1)[0]), 8 * kind.itemsize
    return ScaledCodes(bits, scale, zero, kind.kind == "i", False, "half_even_steps")


@reads("QuantizeLinear")
def read_quantize_linear(call: FileNode) -> FileOperand:
    """Codes of a constant, or of data, which a ``DequantizeLinear`` reads."""
    source, kind = call.operand(0), type_of_codes(call)
    if isinstance(source, FileConstant):
        target = linear_codes(call, kind, source.array.ndim)
        steps = np.rint(source.array.astype(np.float32) / target.scale.astype(np.float32))
        return FileConstant(np.clip(steps + target.zero, *target.codes).astype(kind))
    x = call.traced()
    target = linear_codes(call, kind, x.fake.dim())
    return replace(rounding_layer(call, x, target), stored=target)


@reads("DequantizeLinear")
def read_dequantize_linear(call: FileNode) -> FileOperand:
    """The numbers of codes."""
    source = call.operand(0)
    if isinstance(source, FileConstant):
        kind = source.array.dtype
        if kind.name not in CODE_TYPES.values():
            raise ValueError(f"has codes of the type {kind.name}, not of 8, 16 or 32 bits")
        target = linear_codes(call, kind, source.array.ndim)
        steps = source.array.astype(np.int64) - target.zero
        numbers = steps.astype(np.float32) * target.scale.astype(np.float32)
        return FileConstant(numbers, target)
    x = call.traced()
    if x.stored is None:
        raise ValueError("reads numbers that no QuantizeLinear made codes of")
    target = linear_codes(call, np.dtype(x.stored.type_name), x.fake.dim())
    if not target.same_as(x.stored):
        raise ValueError("reads codes of another scale or zero point")
    return replace(x, stored=None)
