"""The rows that every export is checked on, whatever its form.

They are numbers as a user feeds them, because rounding them is part of what is checked: real rows
where there are any, and made ones off the grid of the input's format, half-way between two codes
and right beside that, at the limits, beyond them, and at zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chop.errors import DataError
from chop.lowering.comparing import batches_of_rows
from chop.lowering.engine import Engine, input_format
from chop.lowering.program import Input, IntegerProgram

Numbers = NDArray[Any]
SEED = 0
REAL = "real"
MOST_MADE = 1000
"""Rows that are made although there are enough real ones; of few rows, half."""
SAMPLED = 2**14
"""Numbers from which those of a format that is not fixed point are found."""
FLOAT32_CODES = 2**24
EVENLY_SPACED = ("integer", "integer_scaled")


@dataclass(frozen=True)
class CheckedRows:
    """Rows for a network, and the codes that the engine makes of them."""

    program: IntegerProgram
    numbers: dict[str, Tensor]
    """By the names of the network's inputs."""
    codes: dict[str, Tensor]
    """The same by the names of the program's inputs, as the engine rounds them."""
    outputs: tuple[Tensor, ...]
    """Codes that the engine gives."""
    kinds: dict[str, int]
    """How many rows are real, off the grid, and so on."""

    def __len__(self) -> int:
        return sum(self.kinds.values())

    @property
    def flat_codes(self) -> NDArray[np.int64]:
        """The codes of all inputs side by side."""
        return side_by_side(self.codes.values())

    @property
    def flat_outputs(self) -> NDArray[np.int64]:
        """The codes of all outputs side by side."""
        return side_by_side(self.outputs)

    @property
    def distinct_outputs(self) -> int:
        """The number of different results."""
        return len(np.unique(self.flat_outputs, axis=0))


def side_by_side(tensors: Any) -> NDArray[np.int64]:
    """Rows of several tensors as rows of one matrix."""
    return np.concatenate([each.reshape(len(each), -1).numpy() for each in tensors], axis=1)


def checked_rows(
    program: IntegerProgram, count: int, given: Mapping[str, Tensor] | None = None
) -> CheckedRows:
    """So many rows to check a program with, and what the engine makes of them.

    Args:
        given: real rows by the names of the network's inputs; one for the only input may have any
            name. If there are more than are wanted, some are made nevertheless.
    """
    engine, types = Engine(program), input_types(program)
    real = real_rows(program, given) if given else {}
    there = min(map(len, real.values()), default=0)
    there = min(there, count - min(count // 2, MOST_MADE))
    generator = np.random.default_rng(SEED)
    numbers = {}
    for name, dtype in types.items():
        each = [one for one in program.inputs if one.placeholder == name]
        made = made_rows(each, count - there, dtype, generator)
        first = real[name][:there].numpy().astype(dtype) if real else made[:0]
        numbers[name] = torch.from_numpy(np.concatenate([first, made]))
    codes = engine.quantise(numbers)
    kinds = {REAL: there} | {
        kind: len(range(place, count - there, len(KINDS))) for place, kind in enumerate(KINDS)
    }
    outputs = [engine.run(part) for part in batches_of_rows(codes)]
    joined = tuple(map(torch.cat, zip(*outputs, strict=True)))
    return CheckedRows(program, numbers, codes, joined, {kind: n for kind, n in kinds.items() if n})


def real_rows(program: IntegerProgram, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows that were given, by the names of the network's inputs."""
    shapes = {each.placeholder: each.value.shape for each in program.inputs}
    if len(shapes) == len(given) == 1:
        given = dict(zip(shapes, given.values(), strict=True))
    for name, shape in shapes.items():
        rows = given.get(name)
        if not isinstance(rows, Tensor):
            raise DataError(f"the input {name!r} is missing: give a tensor")
        if tuple(rows.shape[1:]) != shape:
            raise DataError(f"{name!r} has rows of {list(shape)}, not {list(rows.shape[1:])}")
    return {name: given[name].detach().cpu() for name in shapes}


def input_types(program: IntegerProgram) -> dict[str, Any]:
    """The type of each input of a network, which holds all its codes however it is rounded."""
    found: dict[str, Any] = {}
    for each in program.inputs:
        if each.format is None:
            found.setdefault(each.placeholder, np.int64)
        elif max(map(abs, each.value.limits)) > FLOAT32_CODES:
            found[each.placeholder] = np.float64
        elif found.get(each.placeholder, np.int64) is np.int64:
            found[each.placeholder] = np.float32
    return found


class FixedPoint:
    """Numbers around the codes of an input in fixed point, of one binary point or of many."""

    def __init__(self, each: Input) -> None:
        value = each.value
        self.shape, self.unit = value.shape, value.unit
        self.low, self.high = value.low.astype(float), value.high.astype(float)

    def codes(self, count: int, generator: np.random.Generator) -> Numbers:
        """Numbers that have a code."""
        return self._numbers(self._whole(count, generator))

    def ties(self, count: int, generator: np.random.Generator) -> Numbers:
        """Numbers half-way between two codes, and between the last and what is beyond."""
        codes = self._whole(count, generator)
        return self._numbers(codes + generator.choice((-0.5, 0.5), codes.shape))

    def between(self, count: int, generator: np.random.Generator) -> Numbers:
        """Any numbers of the range and somewhat beyond, large and small ones."""
        share = generator.uniform(-1 / 8, 9 / 8, (count, *self.shape))
        codes = self.low + share * (self.high - self.low)
        smaller = generator.integers(0, 12, codes.shape) * generator.integers(0, 2, codes.shape)
        return self._numbers(np.ldexp(codes, -smaller))

    @property
    def edges(self) -> list[Numbers]:
        """Zero, the smallest and the largest code, half a code and more beyond them."""
        span = self.high - self.low + 1
        zero = np.zeros_like(self.low)
        ends = [zero, self.high, self.low]
        ends += [self.high + 1, self.low - 1, self.high + 0.5, self.low - 0.5]
        ends += [self.high + 100 * span + 3, self.low - 100 * span - 3, -zero]
        return [self._numbers(each) for each in ends]

    def _whole(self, count: int, generator: np.random.Generator) -> Numbers:
        low, high = self.low.astype(np.int64), self.high.astype(np.int64)
        return generator.integers(low, high, (count, *self.shape), endpoint=True).astype(float)

    def _numbers(self, codes: Numbers) -> Numbers:
        return codes * self.unit


class Levels:
    """The same for a format whose numbers are not evenly spaced, as far as a sample shows them."""

    def __init__(self, each: Input) -> None:
        fmt = input_format(each)
        assert fmt is not None
        value, generator = each.value, np.random.default_rng(SEED)
        self.shape = value.shape
        ends = [float(side) * float(value.unit.min()) for side in value.limits]
        sample = max(map(abs, ends)) * 2.0 ** -generator.uniform(-1, 40, SAMPLED)
        sample = np.concatenate([sample, -sample, ends, [0.0]])
        rounded = fmt.round_to(torch.from_numpy(sample)).numpy()
        self.levels = np.unique(rounded[np.isfinite(rounded)])

    def codes(self, count: int, generator: np.random.Generator) -> Numbers:
        """Numbers of the format."""
        return generator.choice(self.levels, (count, *self.shape))

    def ties(self, count: int, generator: np.random.Generator) -> Numbers:
        """Numbers half-way between two of the format."""
        middles = (self.levels[1:] + self.levels[:-1]) / 2
        return generator.choice(middles if len(middles) else self.levels, (count, *self.shape))

    def between(self, count: int, generator: np.random.Generator) -> Numbers:
        """Any numbers near those of the format."""
        return self.codes(count, generator) * generator.uniform(0.5, 1.5, (count, *self.shape))

    @property
    def edges(self) -> list[Numbers]:
        """Zero, the smallest and the largest number, and what is beyond them."""
        ends = self.levels[[-1, 0]]
        return [np.zeros(()), *ends, *(ends * 1.01), *(ends * 100)]


Source = FixedPoint | Levels
Draw = Callable[[Source, int, np.random.Generator, Any], Numbers]


def beside_ties(source: Source, count: int, generator: np.random.Generator, dtype: Any) -> Numbers:
    """The last number before a tie, or the first after it."""
    ties = source.ties(count, generator).astype(dtype)
    towards = generator.choice((-np.inf, np.inf), ties.shape).astype(dtype)
    found: Numbers = np.nextafter(ties, towards)
    return found


def at_edges(source: Source, count: int, generator: np.random.Generator, dtype: Any) -> Numbers:
    """Rows that are all zero, all the largest code and so on, then rows of all these together."""
    most = np.full(source.shape, np.finfo(dtype).max)
    rows = np.array(np.broadcast_arrays(*source.edges, most, -most))
    chosen = generator.integers(0, len(rows), (max(count - len(rows), 0), *source.shape))
    return np.concatenate([rows[:count], np.take_along_axis(rows, chosen, 0)])


KINDS: dict[str, Draw] = {
    "off the grid": lambda source, count, generator, _: source.between(count, generator),
    "ties": lambda source, count, generator, _: source.ties(count, generator),
    "limits and zeros": at_edges,
    "beside ties": beside_ties,
    "codes": lambda source, count, generator, _: source.codes(count, generator),
}
"""Made rows in turn, so that few rows are of all kinds, too."""


def made_rows(
    inputs: list[Input], count: int, dtype: Any, generator: np.random.Generator
) -> Numbers:
    """Rows of every kind for one input of a network.

    Args:
        inputs: how it is rounded; of several ways each has its rows.
    """
    rows = np.empty((count, *inputs[0].value.shape), dtype)
    for turn, each in enumerate(inputs):
        is_fixed = each.format is None or each.format["name"] in EVENLY_SPACED
        source = FixedPoint(each) if is_fixed else Levels(each)
        for place, draw in enumerate(KINDS.values()):
            wanted = rows[place + turn * len(KINDS) :: len(KINDS) * len(inputs)]
            kind = np.float64 if dtype is np.int64 else dtype
            drawn = draw(source, len(wanted), generator, kind)
            if each.format is None:  # an index, which has neither fractions nor anything beyond
                drawn = np.clip(np.rint(drawn), each.value.low, each.value.high)
            with np.errstate(over="ignore"):
                wanted[:] = drawn
    return rows
