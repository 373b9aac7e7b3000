"""The same program with less to do: roundings before maxima, no clamps, short constants."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np

from chop.export.c.plan import Floor, is_reshape, uses_of
from chop.lowering import program as steps
from chop.lowering.program import Codes, IntegerProgram, Step, Value
from chop.lowering.ranges import rounded_shift, trailing_zeros

MOST_SHIFT, WIDEST_SUM = 30, 2**30


Exchange = Callable[[Step, steps.Requantise, Value], list[Step]]
"""Two steps, the second of which alone reads the first, as others; none if nothing is gained."""


def simplified(program: IntegerProgram) -> IntegerProgram:
    """Return a program that gives the same codes with less to do."""
    found = [_over_whole_map(step, program.values) for step in program.steps]
    program = _round_once(replace(program, steps=tuple(found)))
    for exchange in (_rounding_first, _without_clamp, _short_rows, _rounding_in_bias):
        program = _exchange_all(program, exchange)
    return program


def _over_whole_map(step: Step, values: Mapping[str, Value]) -> Step:
    """Return a convolution that gives one pixel as one whose window is the whole map.

    So its column is its source as it stands, whatever lies beside the window or around the map.
    """
    if not isinstance(step, steps.Convolution) or prod(step.out.shape[1:]) > 1 or step.groups > 1:
        return step
    sides, given = values[step.sources[0]].shape[1:], step.weight
    for axis, size in enumerate(sides, 2):
        places = np.arange(given.shape[axis]) * step.dilation[axis - 2] - step.padding[axis - 2]
        inside = (places >= 0) & (places < size)
        weight = np.zeros((*given.shape[:axis], size, *given.shape[axis + 1 :]), given.dtype)
        np.moveaxis(weight, axis, 0)[places[inside]] = np.moveaxis(given, axis, 0)[inside]
        given = weight
    ones = (1,) * len(sides)
    return replace(step, weight=given, stride=ones, padding=(0,) * len(sides), dilation=ones)


def _round_once(program: IntegerProgram) -> IntegerProgram:
    """Round what several steps round alike once, to the widest of their limits; others limit that.

    So the codes of a sum that two layers read are stored in the bits that layers read.
    """
    groups: dict[tuple[object, ...], list[steps.Requantise]] = {}
    for step in program.steps:
        if isinstance(step, steps.Requantise) and step.overflow == "saturate":
            key = (step.sources, step.rounding, step.shift.shape, step.shift.tobytes())
            groups.setdefault(key, []).append(step)
    new: dict[str, Step] = {}
    for members in groups.values():
        if len(members) > 1:
            new |= _rounded_together(members, program.values[members[0].sources[0]])
    return replace(program, steps=tuple(new.get(step.out.name, step) for step in program.steps))


def _rounded_together(members: list[steps.Requantise], source: Value) -> dict[str, Step]:
    """Limits of the first of some roundings in place of the others, if its own are the widest."""
    first = members[0]
    ends = [rounded_shift(side, first.shift, first.rounding) for side in (source.low, source.high)]
    # Limits of one member may be those of all channels, and of another those of each.
    low = reduce(np.minimum, [np.maximum(each.low, ends[0]) for each in members])
    high = reduce(np.maximum, [np.minimum(each.high, ends[1]) for each in members])
    if (np.maximum(first.low, ends[0]) > low).any() or (
        np.minimum(first.high, ends[1]) < high
    ).any():
        return {}
    return {
        each.out.name: steps.Clamp(each.node, (first.out.name,), each.out, each.low, each.high)
        for each in members[1:]
    }


def _exchange_all(program: IntegerProgram, exchange: Exchange) -> IntegerProgram:
    """Exchange a step and a rounding of what it gives, until there are no more of them."""
    found, changed = list(program.steps), True
    inputs = {each.value.name: each.value for each in program.inputs}
    while changed:
        changed = False
        uses, makers = uses_of(found, program.outputs), {step.out.name: step for step in found}
        for place, step in enumerate(found):
            before = makers.get(step.sources[0]) if step.sources else None
            if before is None or not isinstance(step, steps.Requantise) or not before.sources:
                continue
            if step.overflow != "saturate" or uses[before.out.name] != 1:
                continue
            source = makers[before.sources[0]].out if before.sources[0] in makers else None
            new = exchange(before, step, source or inputs[before.sources[0]])
            if new:
                found[place : place + 1] = []
                at = next(n for n, each in enumerate(found) if each is before)
                found[at : at + 1] = new
                changed = True
                break
    return replace(program, steps=tuple(found))


def _rounding_first(before: Step, rounding: steps.Requantise, source: Value) -> list[Step]:
    """Round before taking maxima and moving; the result keeps the rounding's name.

    Rounding keeps the order of numbers, so that the largest of rounded numbers is the rounded
    largest one; then no map of sums is stored.
    """
    if any(array.size > 1 for array in (rounding.shift, rounding.low, rounding.high)):
        return []
    if not is_reshape(before) and not (isinstance(before, steps.Pool) and before.kind == "max"):
        return []
    last = rounding.out
    middle = Value(f"{last.name} early", source.shape, last.frac, last.low, last.high)
    if any(array.size > 1 for array in (last.frac, last.low, last.high)):
        low, high = (np.array(side) for side in last.limits)
        middle = replace(middle, frac=np.array(int(last.frac.max())), low=low, high=high)
    first = replace(rounding, sources=(source.name,), out=middle)
    return [first, replace(before, sources=(middle.name,), out=last)]


def _without_clamp(before: Step, rounding: steps.Requantise, source: Value) -> list[Step]:
    """Limit what was rounded, where a clamp limits what is rounded."""
    if not isinstance(before, steps.Clamp):
        return []
    least, most = source.limits
    if (before.low > most).any() or (before.high < least).any():
        return []
    sides = np.maximum(before.low, least), np.minimum(before.high, most)
    ends = [rounded_shift(side, rounding.shift, rounding.rounding) for side in sides]
    low, high = np.maximum(rounding.low, ends[0]), np.minimum(rounding.high, ends[1])
    if (low > high).any():
        return []
    return [replace(rounding, sources=before.sources, low=low, high=high)]


def _row_shifts(before: Step, rounding: steps.Requantise) -> Codes | None:
    """The shift of each row of constants, if it is the same for all that a row gives."""
    if not isinstance(before, steps.Product | steps.Convolution):
        return None
    shape, rows = before.out.shape, len(before.weight)
    if isinstance(before, steps.Convolution):
        wanted: tuple[int, ...] = (rows, *[1] * (len(shape) - 1))
    else:
        wanted = (*[1] * (len(shape) - 1), rows)
    given = rounding.shift.reshape((1,) * (len(shape) - rounding.shift.ndim) + rounding.shift.shape)
    if any(a not in (1, b) for a, b in zip(given.shape, wanted, strict=True)):
        return None
    return np.broadcast_to(given, wanted)


def _short_rows(before: Step, rounding: steps.Requantise, source: Value) -> list[Step]:
    """Take zeros at the end of all numbers of a row away, and shift by less."""
    shifts = _row_shifts(before, rounding)
    if shifts is None:
        return []
    assert isinstance(before, steps.Product | steps.Convolution)
    zeros = trailing_zeros(before.weight, before.bias)
    less = np.clip(zeros.reshape(shifts.shape), 0, np.maximum(shifts, 0))
    if rounding.shift.size == 1:
        less = np.full_like(less, less.min())
    if not less.any():
        return []
    rows = less.reshape(-1)
    weight = before.weight >> rows.reshape(-1, *[1] * (before.weight.ndim - 1))
    given = before.out
    out = replace(given, frac=given.frac - less, low=given.low >> less, high=given.high >> less)
    shift = rounding.shift - (less if rounding.shift.size > 1 else less.reshape(-1)[0])
    first = replace(before, weight=weight, bias=before.bias >> rows, out=out)
    return [first, replace(rounding, shift=shift)]


def _rounding_in_bias(before: Step, rounding: steps.Requantise, source: Value) -> list[Step]:
    """Add the half that rounding up adds to the bias."""
    shifts = _row_shifts(before, rounding)
    if shifts is None or rounding.rounding != "half_up":
        return []
    assert isinstance(before, steps.Product | steps.Convolution)
    if (shifts < 0).any() or (shifts > MOST_SHIFT).any():
        return []
    if max(map(abs, before.out.limits)) >= WIDEST_SUM:
        return []
    half = np.left_shift(1, shifts) >> 1
    given = before.out
    out = replace(given, low=given.low + half, high=given.high + half)
    first = replace(before, bias=before.bias + half.reshape(-1), out=out)
    last = rounding
    return [first, Floor(last.node, last.sources, last.out, last.shift, last.low, last.high)]
