"""Runs integer programs on rows of codes.

In ``arithmetic="int64"`` every step is plain 64-bit integer arithmetic. The default computes a
step in float32 or float64 where its ranges prove that all partial sums are integers which the type
holds, because matrix products of floating-point numbers are many times faster.
"""

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chop.errors import DataError
from chop.lowering import program as steps
from chop.lowering.program import PADDING, Codes, Input, IntegerProgram, Step, Value
from chop.lowering.ranges import FURTHEST, reach
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.arithmetic import divide_codes, power_of_two
from chop.validation import parse

Arithmetic = Literal["fast", "int64"]
Kernel = Callable[..., Tensor]
CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
SPARE = 1
"""Bits left over: rounding adds a half, and differences of two codes need one more."""


class Engine:
    """A program made ready to run.

    Args:
        arithmetic: ``"fast"``, or ``"int64"`` to use nothing but integers.
    """

    def __init__(self, program: IntegerProgram, arithmetic: Arithmetic = "fast") -> None:
        self.program = program
        values = program.values
        self._kernels: list[tuple[Step, torch.dtype, Kernel]] = []
        for step in program.steps:
            dtype = torch.int64
            if arithmetic == "fast":
                dtype = step_dtype(step, [values[name] for name in step.sources])
            self._kernels.append((step, dtype, kernel(step, dtype)))
        self._formats = {each.value.name: input_format(each) for each in program.inputs}
        self._last_use = {
            name: place for place, step in enumerate(program.steps) for name in step.sources
        }

    def quantise(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The codes of the inputs, by the names of the program's input values."""
        return {
            each.value.name: input_codes(each, self._formats[each.value.name], inputs)
            for each in self.program.inputs
        }

    def run(self, codes: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Codes of the outputs, as int64, from codes of the inputs: one row for each row."""
        state = {
            each.value.name: _checked(each.value, codes.get(each.value.name))
            for each in self.program.inputs
        }
        rows = {len(tensor) for tensor in state.values()}
        if len(rows) != 1:
            raise DataError(f"inputs must have equally many rows, not {sorted(rows)}")
        (count,) = rows
        for place, (step, dtype, compute) in enumerate(self._kernels):
            sources = [state[name].to(dtype) for name in step.sources]
            result = compute(*sources) if sources else compute(count)
            if tuple(result.shape[1:]) != step.out.shape:
                raise DataError(f"{step.out.name!r} is not of the shape {list(step.out.shape)}")
            state[step.out.name] = result
            for name in step.sources:  # a value that nothing reads again makes room
                if self._last_use[name] == place and name not in self.program.outputs:
                    state.pop(name, None)
        return tuple(state[name].to(torch.int64) for name in self.program.outputs)

    def numbers(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The numbers that the codes of outputs stand for, as float64."""
        values = self.program.values
        return tuple(
            codes.double() * torch.from_numpy(values[name].unit)
            for name, codes in zip(self.program.outputs, outputs, strict=True)
        )

    def __call__(self, *args: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Numbers out for numbers in; positional inputs in the order of the program's."""
        names = list(dict.fromkeys(each.placeholder for each in self.program.inputs))
        given = dict(zip(names, args, strict=False)) | inputs
        return self.numbers(self.run(self.quantise(given)))


def different_codes(found: Tensor, exact: Tensor, value: Value) -> Tensor:
    """The places at which a simulation has not the numbers of codes; a scale has nearest codes."""
    numbers = found.cpu().double()
    if not value.is_scaled:
        return numbers != exact
    unit = torch.from_numpy(value.unit)
    return (numbers / unit).round() != (exact / unit).round()


def input_format(each: Input) -> NumberFormat | None:
    """The number format that an input is rounded to; None where the network takes integers."""
    if each.format is None:
        return None
    settings = dict(each.format)
    return parse(FORMATS[settings.pop("name")], settings, f"input {each.placeholder!r}")


def input_codes(each: Input, fmt: NumberFormat | None, inputs: Mapping[str, Any]) -> Tensor:
    """The codes of one input of the network."""
    given = inputs.get(each.placeholder)
    if not isinstance(given, Tensor):
        raise DataError(f"the input {each.placeholder!r} is missing: give a tensor")
    if fmt is None:
        return given.to(torch.int64)
    rounded = fmt.round_to(given.detach()).double()
    if rounded.isnan().any():
        raise DataError(f"the input {each.placeholder!r} holds NaN, which has no code")
    return (rounded / torch.from_numpy(each.value.unit)).round_().to(torch.int64)


def _checked(value: Value, codes: Tensor | None) -> Tensor:
    if codes is None:
        raise DataError(f"the codes of {value.name!r} are missing")
    if tuple(codes.shape[1:]) != value.shape:
        raise DataError(
            f"{value.name!r} has rows of {list(value.shape)}, not {list(codes.shape[1:])}"
        )
    low, high = value.limits
    if codes.numel() and not (low <= int(codes.min()) and int(codes.max()) <= high):
        raise DataError(f"codes of {value.name!r} must lie between {low} and {high}")
    return codes


def step_dtype(step: Step, sources: list[Value]) -> torch.dtype:
    """The fastest type in which a step is exact."""
    widest = max([reach(step, sources), *(max(map(abs, each.limits)) for each in sources)])
    for dtype, most in ((torch.float32, 24), (torch.float64, 53)):
        if widest <= 2 ** (most - SPARE):
            return dtype
    return torch.int64


@singledispatch
def kernel(step: Step, dtype: torch.dtype) -> Kernel:
    """The computation of a step on tensors of one type."""
    raise NotImplementedError(type(step).__name__)


def tensor(array: Codes, dtype: torch.dtype, rank: int | None = None) -> Tensor:
    """An array as a tensor; with `rank`, so that it broadcasts to rows of so many dimensions."""
    if rank is not None and array.ndim:
        array = array.reshape((1,) * (rank + 1 - array.ndim) + array.shape)
    return torch.from_numpy(np.array(array)).to(dtype)


@kernel.register
def _(step: steps.Constant, dtype: torch.dtype) -> Kernel:
    codes = tensor(step.codes, dtype)
    return lambda rows: codes.expand(rows, *codes.shape)


@kernel.register
def _(step: steps.Product, dtype: torch.dtype) -> Kernel:
    weight, bias = tensor(step.weight, dtype), tensor(step.bias, dtype)
    if dtype is torch.int64:
        return lambda x: x @ weight.T + bias
    return lambda x: F.linear(x, weight, bias)


@kernel.register
def _(step: steps.Convolution, dtype: torch.dtype) -> Kernel:
    weight, bias = tensor(step.weight, dtype), tensor(step.bias, dtype)
    convolve = CONVOLUTIONS[weight.dim() - 3]
    settings = (step.stride, step.padding, step.dilation, step.groups)
    return lambda x: convolve(x, weight, bias, *settings)


@kernel.register
def _(step: steps.MatMul, dtype: torch.dtype) -> Kernel:
    return torch.matmul


@kernel.register
def _(step: steps.Sum, dtype: torch.dtype) -> Kernel:
    rank = len(step.out.shape)
    factors = [tensor(factor, dtype, rank) for factor in step.factors]

    def add(*sources: Tensor) -> Tensor:
        terms = (
            source if (factor == 1).all() else source * factor
            for source, factor in zip(sources, factors, strict=True)
        )
        total = next(terms)
        for term in terms:
            total = total + term
        return total

    return add


@kernel.register
def _(step: steps.Multiply, dtype: torch.dtype) -> Kernel:
    return torch.mul


@kernel.register
def _(step: steps.Clamp, dtype: torch.dtype) -> Kernel:
    rank = len(step.out.shape)
    low, high = tensor(step.low, dtype, rank), tensor(step.high, dtype, rank)
    if not low.dim() and not high.dim():
        ends = low.item(), high.item()
        return lambda x: x.clamp(*ends)
    return lambda x: torch.minimum(torch.maximum(x, low), high)


@kernel.register
def _(step: steps.Pool, dtype: torch.dtype) -> Kernel:
    fill = 0 if step.kind == "sum" else -(2**62) if dtype is torch.int64 else float("-inf")
    sizes = step.out.shape[1:]
    reach = [
        (out - 1) * stride + dilation * (kernel - 1) + 1
        for out, stride, dilation, kernel in zip(
            sizes, step.stride, step.dilation, step.kernel, strict=True
        )
    ]

    def pool(x: Tensor) -> Tensor:
        around: list[int] = []
        for size, before, needed in reversed(
            list(zip(x.shape[2:], step.padding, reach, strict=True))
        ):
            around += [before, needed - size - before]
        x = F.pad(x, around, value=fill) if any(around) else x
        result = None
        for offset in np.ndindex(*step.kernel):
            cuts = [
                slice(o * d, o * d + (size - 1) * s + 1, s)
                for o, d, s, size in zip(offset, step.dilation, step.stride, sizes, strict=True)
            ]
            part = x[(slice(None), slice(None), *cuts)]
            if result is None:
                result = part
            else:
                result = result + part if step.kind == "sum" else torch.maximum(result, part)
        assert result is not None
        return result

    return pool


@kernel.register
def _(step: steps.Move, dtype: torch.dtype) -> Kernel:
    shape = step.out.shape
    if step.index is None:
        return lambda x: x.reshape(len(x), *shape)
    index = torch.from_numpy(step.index)
    padded = bool((index == PADDING).any())

    def move(*sources: Tensor) -> Tensor:
        flat = [source.reshape(len(source), -1) for source in sources]
        if padded:
            flat.append(torch.zeros((len(flat[0]), 1), dtype=dtype))
        together = torch.cat(flat, 1) if len(flat) > 1 else flat[0]
        places = index % together.shape[1] if padded else index
        return together.index_select(1, places).reshape(len(together), *shape)

    return move


@kernel.register
def _(step: steps.Table, dtype: torch.dtype) -> Kernel:
    entries = tensor(step.table.reshape(-1), dtype)
    width = step.table.shape[1]
    offset = tensor(step.rows * width - step.start, torch.int64, len(step.out.shape))
    return lambda x: entries[x.to(torch.int64) + offset]


@kernel.register
def _(step: steps.Lookup, dtype: torch.dtype) -> Kernel:
    table = tensor(step.table, dtype)
    return lambda x: table[x.to(torch.int64)]


@kernel.register
def _(step: steps.Requantise, dtype: torch.dtype) -> Kernel:
    rank = len(step.out.shape)
    low, high, shift = (tensor(a, torch.int64, rank) for a in (step.low, step.high, step.shift))
    rounding = integer_rounding if dtype is torch.int64 else float_rounding
    divide = rounding(shift, step.rounding, dtype)
    if step.overflow == "wrap":
        span, base = (high - low + 1).to(dtype), low.to(dtype)
        return lambda x: wrap(divide(x), base, span)
    if not low.dim() and not high.dim():
        ends = low.item(), high.item()
        return lambda x: divide(x).clamp_(*ends)
    return lambda x: torch.minimum(torch.maximum(divide(x), low.to(dtype)), high.to(dtype))


@kernel.register
def _(step: steps.Rescale, dtype: torch.dtype) -> Kernel:
    multiplier = tensor(step.multiplier, dtype, len(step.out.shape))
    factor: Any = multiplier if multiplier.dim() else multiplier.item()
    divide = kernel(step.division, dtype)
    return lambda x: divide(x * factor)


def wrap(x: Tensor, base: Tensor, span: Tensor) -> Tensor:
    """Codes with their high bits cut off."""
    return x - torch.div(x - base, span, rounding_mode="floor") * span


def integer_rounding(shift: Tensor, rounding: str, dtype: torch.dtype) -> Kernel:
    """Division by a power of two in integers."""
    right, left = shift.clamp(0, FURTHEST), (-shift).clamp(0)

    def divide(x: Tensor) -> Tensor:
        return torch.where(shift > FURTHEST, 0, divide_codes(x << left, right, rounding))

    return divide


def float_rounding(shift: Tensor, rounding: str, dtype: torch.dtype) -> Kernel:
    """The same in floating point, where a code times a power of two is exact."""
    scale = power_of_two(-shift).to(dtype)
    factor: Any = scale if scale.dim() else scale.item()
    if rounding == "half_even":
        return lambda x: (x * factor).round_()
    return lambda x: torch.floor(x * factor + 0.5)
