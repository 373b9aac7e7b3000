"""The layers of a QONNX file: products, pools, normalisation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from chop.export.onnx.read.graph import FileConstant, FileNode, FileOperand, FileValue
from chop.export.onnx.read.scales import exact_format, format_name
from chop.nn.quant_config import QuantConfig

Operator = Callable[[FileNode], FileOperand]
OPERATORS: dict[str, Operator] = {}
CONVOLUTIONS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAX_POOLS: tuple[Any, ...] = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE_POOLS: tuple[Any, ...] = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
NORMS: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def reads(*names: str) -> Callable[[Operator], Operator]:
    """Decorator for what reads operators of these names."""

    def add(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return add


@reads("Constant", "Identity")
def read_identity(call: FileNode) -> FileOperand:
    """Return the operand as it is."""
    found = call.operand(0)
    if found is None:
        raise ValueError("reads nothing")
    return found


def add_weighted_layer(
    call: FileNode,
    module: Any,
    x: FileValue,
    weight: FileConstant,
    bias: FileConstant | None,
    shape: Sequence[int],
) -> FileValue:
    """A layer that multiplies by constants; quantised if they are."""
    module.weight.data = weight.tensor.clone()
    if bias is not None:
        module.bias.data = torch.from_numpy(bias.array.astype(np.float32))
    if weight.target is None:
        return call.builder.layer(module, x, shape=shape)
    fmt = weight.target.format(call.builder.binary, constant=True)
    formats = {"weight": fmt}
    if bias is not None:
        formats["bias"] = (
            exact_format(bias.array.astype(np.float32), call.builder.binary)
            if bias.target is None or call.builder.binary
            else bias.target.format(False, constant=True)
        )
    if x.format is not None:  # which rounds nothing that is not rounded yet
        formats["data_in"] = x.format
    return call.builder.layer(module, x, QuantConfig(format_name(fmt), formats), shape=shape)


def optional_bias(call: FileNode, place: int) -> FileConstant | None:
    """The bias of a layer, if it has one."""
    found = None if call.operand(place) is None else call.constant(place)
    return None if found is None else replace(found, array=found.array.reshape(-1))


@reads("Gemm")
def read_gemm(call: FileNode) -> FileOperand:
    """A linear layer."""
    settings = call.attributes
    if (settings.number("alpha", 1), settings.number("beta", 1)) != (1, 1):
        raise ValueError("has an alpha or beta other than 1")
    if settings.integer("transA", 0):
        raise ValueError("multiplies rows of the batch with each other")
    weight = call.constant(1)
    return add_linear(
        call,
        weight if settings.integer("transB", 0) else transposed_weight(weight),
        optional_bias(call, 2),
    )


def transposed_weight(weight: FileConstant) -> FileConstant:
    """A matrix with rows and columns exchanged."""
    target = weight.target and weight.target.turned
    return FileConstant(np.ascontiguousarray(weight.array.T), target)


def add_linear(call: FileNode, weight: FileConstant, bias: FileConstant | None) -> FileValue:
    """Products with the rows of a matrix."""
    (rows, columns), x = weight.array.shape, call.traced()
    if x.fake.shape[-1] != columns or (bias is not None and len(bias.array) != rows):
        raise ValueError(f"has weights {rows} x {columns} for {x.fake.shape[-1]} numbers")
    layer = nn.Linear(columns, rows, bias=bias is not None)
    return add_weighted_layer(call, layer, x, weight, bias, (*x.fake.shape[:-1], rows))


@reads("MatMul")
def read_matmul(call: FileNode) -> FileOperand:
    """A linear layer without bias, or a product of two values."""
    right = call.operand(1)
    if isinstance(right, FileConstant) and right.array.ndim == 2:
        return add_linear(call, transposed_weight(right), None)
    return call.builder.call(torch.matmul, call.operand(0), right)


@reads("Conv")
def read_conv(call: FileNode) -> FileOperand:
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
    groups, bias = settings.integer("group", 1), optional_bias(call, 2)
    how = {
        "stride": tuple(settings.sizes("strides", [1] * dims)),
        "dilation": tuple(settings.sizes("dilations", [1] * dims)),
        "padding": tuple(before),
    }
    (out, each), inside = weight.array.shape[:2], x.fake.shape
    if len(inside) != dims + 2 or inside[1] != each * groups or out % groups or 0 in how["stride"]:
        raise ValueError(f"has weights {list(weight.array.shape)} for {list(inside[1:])}")
    layer = CONVOLUTIONS[dims - 1](
        each * groups, out, tuple(kernel), groups=groups, bias=bias is not None, **how
    )
    sizes = zip(inside[2:], kernel, *how.values(), strict=True)
    places = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, d, p in sizes]
    if min(places) < 1 or (bias is not None and len(bias.array) != out):
        raise ValueError(f"has a kernel {kernel} that is larger than what it reads")
    return add_weighted_layer(call, layer, x, weight, bias, (inside[0], out, *places))


@reads("BatchNormalization")
def read_batch_norm(call: FileNode) -> FileOperand:
    """Batch normalisation with the statistics of the file."""
    x = call.traced()
    scale, shift, mean, variance = (call.constant(place).tensor for place in (1, 2, 3, 4))
    if x.fake.dim() not in NORMS:
        raise ValueError(f"normalises {x.fake.dim()} dimensions")
    layer = NORMS[x.fake.dim()](len(scale), eps=call.attributes.number("epsilon", 1e-5))
    layer.weight.data, layer.bias.data = scale, shift
    layer.running_mean, layer.running_var = mean, variance
    if {len(each) for each in (scale, shift, mean, variance)} != {x.fake.shape[1]}:
        raise ValueError("has other numbers of channels than what it reads")
    return call.builder.layer(layer, x, shape=x.fake.shape)


@reads("MaxPool", "AveragePool")
def read_pool(call: FileNode) -> FileOperand:
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
def read_global_pool(call: FileNode) -> FileOperand:
    """The mean of all places of a channel."""
    x = call.traced()
    dims = x.fake.dim() - 2
    layers: tuple[Any, ...] = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
    if not 1 <= dims <= len(layers):
        raise ValueError(f"has {dims} dimensions")
    return call.builder.layer(layers[dims - 1](1), x, shape=(*x.fake.shape[:2], *[1] * dims))
