"""The constants of steps that add products up, and the windows of convolutions and pools."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from chop.export.onnx.write.code import Array, code_numbers
from chop.lowering import program as steps
from chop.lowering.program import Codes, Shape, Value
from chop.lowering.ranges import along, compact


@dataclass(frozen=True)
class Weights:
    """Constants with a row for each output: ``codes * 2**-frac`` are the numbers."""

    codes: Codes
    frac: Codes
    bias: Codes
    name: str

    def numbers(self, dtype: Any) -> Array:
        return code_numbers(self.codes, self.frac, dtype)


def step_weights(step: steps.Product | steps.Convolution | steps.Pool, source: Value) -> Weights:
    """The constants of a step that adds products up."""
    name = f"{step.node}.weight"
    if isinstance(step, steps.Product):
        columns = along(source.frac, source.shape, -1, np.max)
        return Weights(step.weight, compact(step.out.frac - columns, (1, columns.size)),
                       step.bias, name)  # fmt: skip
    fracs = along(source.frac, source.shape, 0, np.max)
    if isinstance(step, steps.Pool):
        ones = np.ones((len(fracs), 1, *step.kernel), np.int64)
        shift = along(step.out.frac, step.out.shape, 0, np.max) - fracs
        per_row = shift.reshape((-1,) + (1,) * (ones.ndim - 1))
        return Weights(ones, compact(per_row, ones.shape), np.zeros(len(ones), np.int64), name)
    rows = np.repeat(fracs.reshape(step.groups, -1), len(step.weight) // step.groups, axis=0)
    rows = rows.reshape(rows.shape + (1,) * (step.weight.ndim - 2))
    return Weights(step.weight, compact(step.out.frac - rows, step.weight.shape), step.bias, name)


def window_index(step: steps.Convolution | steps.Pool, kernel: Shape, shape: Shape) -> Codes:
    """Channel, place in the kernel, place in the result: which element is read, the last for 0."""
    found = np.arange(shape[0]).reshape(-1, *(1,) * (2 * len(kernel)))
    inside = np.ones((), bool)
    for axis, size in enumerate(shape[1:]):
        taps = np.arange(kernel[axis]) * step.dilation[axis] - step.padding[axis]
        places = np.arange(step.out.shape[axis + 1]) * step.stride[axis]
        spread = [1] * (2 * len(kernel) + 1)
        spread[1 + axis], spread[1 + len(kernel) + axis] = len(taps), len(places)
        place = (taps[:, None] + places[None, :]).reshape(spread)
        found, inside = found * size + place, inside & (place >= 0) & (place < size)
    return np.where(inside, found, prod(shape))


def window_settings(
    step: steps.Convolution | steps.Pool, kernel: Shape, source: Value
) -> dict[str, Any]:
    """The attributes of a convolution or pool; nothing is read beyond what the result needs."""
    ends = []
    for axis, size in enumerate(source.shape[1:]):
        last = (step.out.shape[axis + 1] - 1) * step.stride[axis]
        last += (kernel[axis] - 1) * step.dilation[axis] + 1
        ends.append(max(last - size - step.padding[axis], 0))
    return {
        "kernel_shape": list(kernel),
        "strides": list(step.stride),
        "dilations": list(step.dilation),
        "pads": [*step.padding, *ends],
    }
