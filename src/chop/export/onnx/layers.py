"""The layers of a QONNX file: products, pools, normalisation, and where data is rounded."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from chop.export.onnx.code import Array
from chop.export.onnx.reading import Call, Constant, Operand, Traced, exact_format
from chop.nn.quant_config import QuantConfig
from chop.numerics import FORMATS, Integer, NumberFormat

Operator = Callable[[Call], Operand]
OPERATORS: dict[str, Operator] = {}
CONVOLUTIONS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAX_POOLS: tuple[Any, ...] = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE_POOLS: tuple[Any, ...] = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
NORMS: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
ROUNDINGS = {"ROUND": "half_even", "HALF_EVEN": "half_even"}
MOST_BITS = 32


def reads(*names: str) -> Callable[[Operator], Operator]:
    """Decorator for what reads operators of these names."""

    def add(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return add


@reads("Constant", "Identity")
def identity(call: Call) -> Operand:
    """What is read, as it is."""
    found = call.operand(0)
    assert found is not None
    return found


@reads("Quant", "IntQuant")
def quant(call: Call) -> Operand:
    """A constant in a format, or a place where data is rounded."""
    scale, zero, width = (call.constant(place).array for place in (1, 2, 3))
    mode = call.attributes.text("rounding_mode", "ROUND").upper()
    signed = bool(call.attributes.integer("signed", 1))
    if zero.any():
        raise ValueError("has a zero point, which no number format has")
    if width.size != 1 or not 2 <= float(width.reshape(-1)[0]) <= MOST_BITS or width % 1:
        raise ValueError(f"has {width!s:.40} bits: one whole number from 2 to {MOST_BITS} is read")
    if mode not in ROUNDINGS:
        raise ValueError(f"rounds {mode!r:.20}, and only ROUND is read")
    if not (scale > 0).all():
        raise ValueError("has a scale that is not positive")
    bits_ = int(width.reshape(-1)[0])
    narrow = bool(call.attributes.integer("narrow", 0))
    low, high = (-(2 ** (bits_ - 1)), 2 ** (bits_ - 1) - 1) if signed else (0, 2**bits_ - 1)
    low, high = (low + narrow, high) if signed else (low, high - narrow)
    fmt = format_of(bits_, scale, signed)
    source = call.operand(0)
    if isinstance(source, Constant):
        array = source.array.astype(np.float32)
        rounded = np.round(np.clip(array / scale.astype(np.float32), low, high))
        return Constant((rounded * scale).astype(np.float32), fmt)
    return rounded_data(call, call.traced(), fmt, (low, high), scale)


def format_of(width: int, scale: Array, signed: bool) -> NumberFormat:
    """The number format of a width and a scale: fixed point where it is a power of two."""
    fraction, exponent = np.frexp(scale.astype(np.float64))
    if (fraction == 0.5).all():
        frac = 1 - exponent
        plain = frac.reshape(-1)[0] if (frac == frac.reshape(-1)[0]).all() else None
        if plain is None:
            raise ValueError("has a scale for each channel, which this version does not read")
        return Integer(width=width, frac_width=int(plain), signed=signed)
    raise ValueError("has a scale that is no power of two, which this version does not read")


def rounded_data(
    call: Call, x: Traced, fmt: NumberFormat, codes: tuple[int, int], scale: Array
) -> Traced:
    """Data in a format: limits that its numbers are within anyway, computed on rounded data."""
    low, high = (float(code * scale.max()) for code in codes)
    quant = QuantConfig(name_of(fmt), {"data_in": fmt})
    limits = nn.Hardtanh(low, high)
    return replace(call.builder.layer(limits, x, quant, shape=x.fake.shape), format=fmt)


def name_of(fmt: NumberFormat) -> str:
    """The registered name of a format."""
    return next(name for name, kind in FORMATS.items() if kind is type(fmt))


def with_weights(
    call: Call, module: Any, x: Traced, weight: Constant, bias: Array | None
) -> Traced:
    """A layer that multiplies by constants; quantised if they are."""
    module.weight.data = weight.tensor.clone()
    if bias is not None:
        module.bias.data = torch.from_numpy(bias.astype(np.float32))
    if weight.format is None:
        return call.builder.layer(module, x)
    formats = {"weight": weight.format}
    if bias is not None:
        formats["bias"] = exact_format(bias.astype(np.float32))
    if type(x.format) is type(weight.format):  # which rounds nothing that is not rounded yet
        formats["data_in"] = x.format
    return call.builder.layer(module, x, QuantConfig(name_of(weight.format), formats))


def bias_of(call: Call, place: int) -> Array | None:
    """The bias of a layer, if it has one."""
    return None if call.operand(place) is None else call.constant(place).array.reshape(-1)


@reads("Gemm")
def gemm(call: Call) -> Operand:
    """A linear layer."""
    settings = call.attributes
    if (settings.number("alpha", 1), settings.number("beta", 1)) != (1, 1):
        raise ValueError("has an alpha or beta other than 1")
    if settings.integer("transA", 0):
        raise ValueError("multiplies rows of the batch with each other")
    weight = call.constant(1)
    return linear(
        call, weight if settings.integer("transB", 0) else turned(weight), bias_of(call, 2)
    )


def turned(weight: Constant) -> Constant:
    """A matrix with rows and columns exchanged; one scale for all stays what it is."""
    return Constant(np.ascontiguousarray(weight.array.T), weight.format)


def linear(call: Call, weight: Constant, bias: Array | None) -> Traced:
    """Products with the rows of a matrix."""
    rows, columns = weight.array.shape
    layer = nn.Linear(columns, rows, bias=bias is not None)
    return with_weights(call, layer, call.traced(), weight, bias)


@reads("MatMul")
def matmul(call: Call) -> Operand:
    """A linear layer without bias, or a product of two values."""
    right = call.operand(1)
    if isinstance(right, Constant) and right.array.ndim == 2:
        return linear(call, turned(right), None)
    return call.builder.call(torch.matmul, call.operand(0), right)


@reads("Conv")
def conv(call: Call) -> Operand:
    """A convolution; zeros that are not the same on both sides are put around before."""
    weight, x, settings = call.constant(1), call.traced(), call.attributes
    kernel = list(weight.array.shape[2:])
    dims = len(kernel)
    if not 1 <= dims <= 3 or settings.text("auto_pad", "NOTSET") != "NOTSET":
        raise ValueError("has auto_pad or more than three dimensions")
    pads = settings.sizes("pads", [0] * (2 * dims))
    before, after = pads[:dims], pads[dims:]
    if before != after:
        around = [each for pair in reversed(list(zip(before, after, strict=True))) for each in pair]
        x, before = call.builder.call(F.pad, x, around).in_format_of(x), [0] * dims
    groups, bias = settings.integer("group", 1), bias_of(call, 2)
    how = {
        "stride": tuple(settings.sizes("strides", [1] * dims)),
        "dilation": tuple(settings.sizes("dilations", [1] * dims)),
        "padding": tuple(before),
    }
    out, each = weight.array.shape[:2]
    layer = CONVOLUTIONS[dims - 1](
        each * groups, out, tuple(kernel), groups=groups, bias=bias is not None, **how
    )
    return with_weights(call, layer, x, weight, bias)


@reads("BatchNormalization")
def batch_norm(call: Call) -> Operand:
    """Batch normalisation with the statistics of the file."""
    x = call.traced()
    scale, shift, mean, variance = (call.constant(place).tensor for place in (1, 2, 3, 4))
    layer = NORMS[x.fake.dim()](len(scale), eps=call.attributes.number("epsilon", 1e-5))
    layer.weight.data, layer.bias.data = scale, shift
    layer.running_mean, layer.running_var = mean, variance
    if {len(each) for each in (scale, shift, mean, variance)} != {x.fake.shape[1]}:
        raise ValueError("has other numbers of channels than what it reads")
    return call.builder.layer(layer, x, shape=x.fake.shape)


@reads("MaxPool", "AveragePool")
def pool(call: Call) -> Operand:
    """The largest element of each window, or the mean."""
    x, settings = call.traced(), call.attributes
    kernel = settings.sizes("kernel_shape", [])
    dims = len(kernel)
    if not 1 <= dims <= 3 or settings.text("auto_pad", "NOTSET") != "NOTSET":
        raise ValueError("has auto_pad or no kernel_shape")
    stride, dilation = (
        settings.sizes("strides", [1] * dims),
        settings.sizes("dilations", [1] * dims),
    )
    pads = settings.sizes("pads", [0] * (2 * dims))
    how: dict[str, Any] = {"stride": tuple(stride), "padding": tuple(pads[:dims])}
    how["ceil_mode"] = bool(settings.integer("ceil_mode", 0))
    if call.kind == "MaxPool":
        layer: nn.Module = MAX_POOLS[dims - 1](tuple(kernel), dilation=tuple(dilation), **how)
    else:
        counted = bool(settings.integer("count_include_pad", 0))
        layer = AVERAGE_POOLS[dims - 1](tuple(kernel), count_include_pad=counted, **how)
    result = call.builder.layer(layer, x)
    if call.kind == "MaxPool":
        result = result.in_format_of(x)
    if pads[:dims] != pads[dims:]:  # the same if no window begins in what is beyond
        sizes = zip(x.fake.shape[2:], pads, pads[dims:], kernel, stride, dilation, strict=False)
        wanted = [(n + a + b - d * (k - 1) - 1) // s + 1 for n, a, b, k, s, d in sizes]
        if list(result.fake.shape[2:]) != wanted or call.kind == "AveragePool":
            raise ValueError(f"has pads {pads}, which differ between the sides")
    return result


@reads("GlobalAveragePool")
def global_pool(call: Call) -> Operand:
    """The mean of all places of a channel."""
    x = call.traced()
    dims = x.fake.dim() - 2
    layers: tuple[Any, ...] = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
    if not 1 <= dims <= len(layers):
        raise ValueError(f"has {dims} dimensions")
    return call.builder.layer(layers[dims - 1](1), x, shape=(*x.fake.shape[:2], *[1] * dims))
