"""Forms of layers: other resolutions, windows, and what is put around."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.lowering.builder import LARGEST_TABLE
from chop.passes.graph.transforms.fusion import recorded_result_shape
from chop.passes.graph.transforms.writing.nodes import (
    NotCovered,
    Rewriting,
    map_dimension,
    written_as,
)

NEAR = 1e-4


@written_as("interpolate", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def write_resized(of: Rewriting) -> Any:
    """A linear map of each dimension in turn, which a run of the node on unit vectors shows."""
    assert of.call.op is not None
    sizes, wanted = of.shape[2:], list(recorded_result_shape(of.call.node) or ())[2:]
    resizes = of.call.op.name == "interpolate"
    if not resizes and not any(a % b for a, b in zip(sizes, wanted, strict=True)):
        return by_dimension(of, [a // b for a, b in zip(sizes, wanted, strict=True)])
    run: Callable[[Tensor], Tensor] = of.run
    if resizes and len(of.call.node.all_input_nodes) > 1:  # another node gives the size
        how = {"mode": of.setting("mode", "nearest"), "align_corners": of.setting("align_corners")}
        run = partial(F.interpolate, size=wanted, **how)
    total, check, x = run(torch.ones(1, 1, *sizes))[0, 0], torch.randn(2, 1, *sizes), of.proxy()
    found = check
    for axis, size in enumerate(sizes):
        place = axis - len(sizes)
        ones = [size if n == axis else 1 for n in range(len(sizes))]
        units = torch.eye(size).reshape(size, 1, *ones).expand(-1, 1, *sizes).contiguous()
        shown = run(units)[:, 0].movedim(axis + 1, -1).reshape(size, -1, wanted[axis])
        matrix = (shown[:, 0] / total.flatten()[0]).T.contiguous()
        x = map_dimension(of, x, place, matrix)
        found = F.linear(found.transpose(place, -1), matrix).transpose(place, -1)
    if not torch.allclose(found * total, run(check), NEAR, NEAR):
        raise NotCovered
    return x


def needs_parts(of: Rewriting, kernel: Sequence[int]) -> bool:
    """Return True for a mean of so many elements that its sums are too many for a table."""
    count = prod(kernel)
    return len(kernel) > 1 and count & (count - 1) != 0 and count << of.bits > LARGEST_TABLE


def by_dimension(of: Rewriting, kernel: list[int]) -> Any:
    """Means of windows that do not overlap, of one dimension after the other."""
    if not needs_parts(of, kernel):
        raise NotCovered
    pool, x = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1], of.proxy()
    for axis, size in enumerate(kernel):
        x = pool(x, [size if place == axis else 1 for place in range(len(kernel))])
    return x


@written_as("mean")
def write_mean(of: Rewriting) -> Any:
    """Means of one dimension after the other, where there are many elements."""
    dims = of.setting("dim")
    if not isinstance(dims, list | tuple) or not needs_parts(of, [of.shape[dim] for dim in dims]):
        raise NotCovered
    rank, x = len(of.shape), of.proxy()
    kept = bool(of.setting("keepdim", False) or (*of.call.node.args, False, False, False)[2])
    for dim in sorted((dim % rank for dim in dims), reverse=True):
        x = x.mean(dim, kept)
    return x


@written_as("avg_pool1d", "avg_pool2d", "avg_pool3d")
def write_average_pool(of: Rewriting) -> Any:
    """A pool of windows of one size, times what their sizes differ by."""
    counts = of.setting("count_include_pad", True) and not of.setting("divisor_override")
    if counts and not of.setting("ceil_mode", False):
        raise NotCovered
    sizes, wanted = of.shape[2:], list(recorded_result_shape(of.call.node) or ())[2:]
    dims = len(sizes)

    def each(name: str, default: Any) -> list[int]:
        value = of.setting(name) or default
        return (
            list(value) * (dims // len(value))
            if isinstance(value, list | tuple)
            else [value] * dims
        )

    kernel, padding = each("kernel_size", 1), each("padding", 0)
    stride = each("stride", kernel)
    after = [(out - 1) * s + k - n - p for out, s, k, n, p in
             zip(wanted, stride, kernel, sizes, padding, strict=True)]  # fmt: skip
    around = [e for pair in reversed(list(zip(padding, after, strict=True))) for e in pair]
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    ones = torch.ones(1, 1, *sizes)
    share = of.run(ones) / pool(F.pad(ones, around), kernel, stride)
    x = F.pad(of.proxy(), around) if any(around) else of.proxy()
    pooled = pool(x, kernel, stride)
    return pooled if bool((share == 1).all()) else pooled * of.constant(share)


@written_as("ReflectionPad", "ReplicationPad", "ConstantPad", "ZeroPad", "CircularPad")
def write_padding(of: Rewriting) -> Any:
    """The function that puts around what a layer does."""
    layer: Any = of.call.module
    source: Any = of.call.node.args[0]
    x: Any = fx.Proxy(source, of.tracer)
    around = list(layer.padding)
    kind = type(layer).__name__
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    mode = next((mode for name, mode in modes.items() if kind.startswith(name)), "constant")
    return F.pad(x, around, mode, getattr(layer, "value", 0.0) if mode == "constant" else None)


@written_as("conv1d", "conv2d", "conv3d")
def write_convolution(of: Rewriting) -> Any:
    """A border first, where it is not zeros or not the same on both sides."""
    layer: Any = of.call.layer
    if layer is None or (layer.padding_mode == "zeros" and not isinstance(layer.padding, str)):
        raise NotCovered
    around = list(layer._reversed_padding_repeated_twice)
    if layer.padding_mode == "zeros" and around[::2] == around[1::2]:
        raise NotCovered
    plain = copy.copy(layer)
    plain.padding, plain.padding_mode = (0,) * len(layer.kernel_size), "zeros"
    plain._reversed_padding_repeated_twice = [0] * len(around)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return of.layer(plain, F.pad(of.proxy(), around, mode))
