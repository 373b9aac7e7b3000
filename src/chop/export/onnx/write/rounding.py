"""Rounding and limits in ONNX, for numbers whose binary point may differ between channels."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from chop.export.onnx.write.code import Array, OnnxCode, code_numbers, power_array
from chop.lowering.program import Codes, Shape


@dataclass(frozen=True)
class RoundingTarget:
    """The format and range that a value is rounded to."""

    frac: Codes
    low: Codes
    high: Codes
    rounding: str
    overflow: str
    shape: Shape
    again: bool = False
    """Whether it was rounded before and only moved since."""
    unknown: bool = False
    """Whether it may be any number, as an input may, and not only one of a finer format."""


def write_limits(code: OnnxCode, x: str, low: Array | None, high: Array | None) -> str:
    """Limit a value; None leaves a side open."""
    if low is not None and high is None and low.ndim == 0 and low == 0:
        return code.node("Relu", x)
    if all(side is None or side.ndim == 0 for side in (low, high)):
        ends = ["" if side is None else code.constant(side) for side in (low, high)]
        return code.node("Clip", x, *ends) if any(ends) else x
    for kind, side in (("Max", low), ("Min", high)):
        x = x if side is None else code.node(kind, x, code.constant(side))
    return x


def write_rounding(code: OnnxCode, x: str, to: RoundingTarget, dtype: Any) -> str:
    """Rounding by multiplication, for all modes: to codes and back."""
    low, high = to.low.astype(dtype), to.high.astype(dtype)
    span = (to.high - to.low + 1).astype(dtype)
    if to.unknown and to.overflow == "saturate":  # before a factor makes it infinite
        x = write_limits(
            code, x, *(code_numbers(side, to.frac, dtype) for side in (to.low, to.high))
        )
    elif to.unknown:  # what is larger has no bits that would be left
        most = span * power_array(np.finfo(dtype).nmant + 1 - to.frac, dtype)
        x = write_limits(code, x, -most, most)
    x = code.scaled(x, power_array(to.frac, dtype))
    if to.rounding == "half_even":
        x = code.node("Round", x)
    elif to.unknown:
        x = write_half_up(code, x, dtype)
    else:
        x = code.node("Floor", code.node("Add", x, code.constant(np.array(0.5, dtype))))
    if to.overflow == "wrap":
        if to.unknown:  # near zero first, where a limit can be subtracted without rounding
            x = write_wrap(code, x, np.zeros_like(low), span)
        x = write_wrap(code, x, low, span)
    elif not to.unknown:
        x = write_limits(code, x, low, high)
    return code.scaled(x, power_array(-to.frac, dtype))


def write_half_up(code: OnnxCode, x: str, dtype: Any) -> str:
    """The nearest whole numbers; adding a half first would be wrong beside a tie, as it rounds."""
    nearest = code.node("Round", x)
    rest = code.scaled(code.node("Sub", x, nearest), np.array(2, dtype))
    return code.node("Add", nearest, code.node("Relu", code.node("Floor", rest)))


def write_wrap(code: OnnxCode, x: str, low: Array, span: Array) -> str:
    """Whole numbers from `low` on, less whole turns."""
    shifted = code.node("Sub", x, code.constant(low)) if low.any() else x
    turns = code.node("Floor", code.node("Div", shifted, code.constant(span)))
    return code.node("Sub", x, code.scaled(turns, span))


def write_half_odd(code: OnnxCode, x: str) -> str:
    """The nearest whole numbers, half-way cases to the odd one."""
    nearest = code.node("Round", x)
    rest = code.node("Abs", code.node("Sub", x, nearest))
    tie = code.node("Equal", rest, code.constant(np.array(0.5)))
    other = code.node("Sub", code.scaled(x, np.array(2.0)), nearest)
    return code.node("Where", tie, other, nearest)
