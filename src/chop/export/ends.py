"""Ends of a circuit, before and after a network: raw features in, the class out.

Both are steps of the integer program, so that every kind of circuit has them; what they must give
is computed without these steps, from the features in float32 and the scores of the engine.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.errors import ConfigError, GraphError
from chop.export.rows import CheckedRows
from chop.lowering import program as steps
from chop.lowering.engine import Engine
from chop.lowering.program import Codes, Input, IntegerProgram, Shape, Step, Value
from chop.preprocessing import Preprocessing

MOST_BITS = 10
"""Bits of raw features: scaling is a table of all of them for each feature or channel."""
RAW = "raw"


@dataclass(frozen=True)
class RawFormat:
    """Whole numbers of so many bits, some of them behind the binary point."""

    signed: bool
    width: int
    frac: int

    @classmethod
    def parse(cls, text: str) -> "RawFormat":
        """The format that a text such as ``u8`` or ``s10.4`` means."""
        found = re.fullmatch(r"([us])(\d{1,2})(?:\.(\d{1,2}))?", text)
        if found is None or not 1 <= int(found[2]) <= MOST_BITS:
            raise ConfigError(
                f"verilog: raw is u or s, the bits of a feature (at most {MOST_BITS}) and those "
                f"behind its point, such as u8 or s10.4, not {text!r}"
            )
        return cls(found[1] == "s", int(found[2]), int(found[3] or 0))

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest code."""
        low = -(1 << (self.width - 1)) if self.signed else 0
        return low, low + (1 << self.width) - 1


def constants(scaling: Preprocessing, shape: Shape) -> tuple[Tensor, Tensor]:
    """Mean and scale in the shape of rows."""
    sides = (len(scaling.mean), *(1 for _ in shape[1:]))
    if len(scaling.mean) != shape[0]:
        raise GraphError(
            f"verilog: rows of the shape {list(shape)} do not have {len(scaling.mean)} "
            f"{scaling.kind} to be scaled"
        )
    mean, scale = (torch.tensor(each).reshape(sides) for each in (scaling.mean, scaling.scale))
    return mean, scale


def numbers_of_raw(codes: Tensor, raw: RawFormat, scaling: Preprocessing) -> Tensor:
    """Raw codes as the numbers that a network was trained on, each step in float32."""
    mean, scale = constants(scaling, tuple(codes.shape[1:]))
    return (codes.float() * 2.0**-raw.frac / scaling.divisor - mean) / scale


def with_scaling(program: IntegerProgram, raw: RawFormat, scaling: Preprocessing) -> IntegerProgram:
    """A program whose input is raw features, with a table for each feature or channel."""
    if len(program.inputs) != 1:
        raise GraphError("verilog: raw features are for a network with one input")
    (given,) = program.inputs
    value, (low, high) = given.value, raw.limits
    every = torch.arange(low, high + 1).reshape(-1, *(1 for _ in value.shape))
    numbers = numbers_of_raw(every.expand(-1, *value.shape), raw, scaling)
    codes = Engine(program).quantise({given.placeholder: numbers})[value.name].numpy()
    columns = codes.reshape(len(codes), value.shape[0], -1)
    if np.ptp(columns, 2).any():
        raise GraphError("verilog: raw features need a format that is the same for all pixels")
    rows = np.arange(value.shape[0]).reshape(-1, *(1 for _ in value.shape[1:]))
    ends = (np.array(each) for each in (raw.frac, low, high))
    source = Value(RAW, value.shape, *ends)
    table = columns[:, :, 0].T.astype(np.int64)
    scale = steps.Table("scaling", (RAW,), value, table, rows, low, stable=True)
    asked = Input(source, given.placeholder, None)
    return replace(program, inputs=(asked,), steps=(scale, *program.steps))


def with_class(program: IntegerProgram) -> IntegerProgram:
    """A program that gives the first of the largest scores.

    The number of each score, in reverse, is put behind its lowest bit, so that the largest of all
    has the class in its last bits.
    """
    scores = program.values[program.outputs[0]]
    count = scores.size
    if len(program.outputs) != 1 or count < 2 or count != scores.shape[-1]:
        raise GraphError(
            f"verilog: the class needs a row of two scores or more, not {list(scores.shape)}"
        )
    bits = (count - 1).bit_length()
    frac, low, high = (
        np.broadcast_to(each, scores.shape).reshape(-1)
        for each in (scores.frac, scores.low, scores.high)
    )
    factors = (1 << bits) * 2 ** (frac.max() - frac)
    behind = (1 << bits) - 1 - np.arange(count)
    ends = low * factors + behind, high * factors + behind
    made: list[Step] = []

    def add(step: type[Step], shape: Shape, least: Codes, most: Codes, **more: Any) -> None:
        source = made[-1].out.name if made else scores.name
        out = Value(f"class_{len(made)}", shape, np.array(0), least, most)
        made.append(step("class", (source,), out, **more))

    square: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    column, line = (count, 1, 1), (1, 1, count)
    add(steps.Move, column, low.reshape(column), high.reshape(column), index=None)
    add(
        steps.Convolution, column, *(each.reshape(column) for each in ends), bias=behind,
        weight=factors.reshape(-1, 1, 1, 1), groups=count, **square,
    )  # fmt: skip
    add(steps.Move, line, *(each.reshape(line) for each in ends), index=None)
    largest = (np.array([[[each.max()]]]) for each in ends)
    kernel: dict[str, Any] = {"kernel": (1, count), **square, "stride": (1, count)}
    add(steps.Pool, (1, 1, 1), *largest, kind="max", **kernel)
    zero, all_ones, last = np.array(0), np.array((1 << bits) - 1), np.array(count - 1)
    add(
        steps.Requantise, (1, 1, 1), zero, all_ones, shift=zero, low=zero, high=all_ones,
        rounding="half_up", overflow="wrap",
    )  # fmt: skip
    table = np.minimum(all_ones - np.arange(1 << bits), last)[None]
    add(
        steps.Table, (1, 1, 1), zero, last, table=table, rows=np.array(0), start=0, stable=True
    )  # fmt: skip
    add(steps.Move, (1,), zero, last, index=None)
    return replace(program, steps=(*program.steps, *made), outputs=(made[-1].out.name,))


def rows_with_ends(
    rows: CheckedRows, program: IntegerProgram, raw: RawFormat | None,
    scaling: Preprocessing | None, argmax: bool,
) -> CheckedRows:  # fmt: skip
    """Rows for a program with other ends, and what it must give by the program without them."""
    codes, outputs = rows.codes, rows.outputs
    if raw is not None and scaling is not None:
        (numbers,) = rows.numbers.values()
        mean, scale = constants(scaling, tuple(numbers.shape[1:]))
        measured = (numbers.double() * scale + mean) * scaling.divisor * 2.0**raw.frac
        given = measured.round().clamp(*raw.limits).long()
        engine, name = Engine(rows.program), next(iter(rows.numbers))
        outputs = engine.run(engine.quantise({name: numbers_of_raw(given, raw, scaling)}))
        codes = {RAW: given}
    if argmax:
        scores = Engine(rows.program).numbers(outputs)[0].reshape(len(rows), -1).numpy()
        outputs = (torch.from_numpy(scores.argmax(1)).reshape(-1, 1),)
    return replace(rows, program=program, codes=codes, outputs=outputs)
