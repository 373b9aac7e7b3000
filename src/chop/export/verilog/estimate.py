"""The number of look-up tables of a circuit, estimated from its netlist without any tool.

The rules follow what Yosys makes of each kind of signal for devices with look-up tables of six
inputs and carry chains. An adder needs one for each bit in which both operands can differ; a bit
that only hands on the carry needs none.
"""

from functools import singledispatch

import numpy as np

from chop.export.verilog.netlist import (
    Add,
    Largest,
    LookupTable,
    Multiplier,
    Netlist,
    Offset,
    Round,
    Signal,
)
from chop.lowering import program as steps
from chop.lowering.program import IntegerProgram

LUT_INPUTS = 6


@singledispatch
def luts(signal: Signal) -> float:
    """Look-up tables that drive a signal."""
    return 0.0


@luts.register
def _(signal: Add) -> float:
    return float(signal.full_adders)


@luts.register
def _(signal: Offset) -> float:
    return 0.0


@luts.register
def _(signal: Round) -> float:
    low, high = signal.before
    under, over = low < signal.low, high > signal.high
    if signal.wraps or not (under or over):
        return float(signal.even)
    read = signal.source.width - (0 if signal.even else signal.drop)
    if read <= LUT_INPUTS:
        return float(signal.width)
    # Whether a code is too high takes one, whether it is too low as well unless the sign says it.
    return signal.width + over + (under and signal.low != 0) + signal.even


@luts.register
def _(signal: LookupTable) -> float:
    source = signal.source
    codes = range(source.low, source.high + 1)
    wires = {tuple(code >> place & 1 for code in codes) for place in range(source.width)}
    made = {tuple(entry >> place & 1 for entry in signal.entries) for place in range(signal.width)}
    functions = {each for each in made - wires if len(set(each)) > 1}  # equal bits are one function
    return float(len(functions) * (1 << max(source.width - LUT_INPUTS, 0)))


@luts.register
def _(signal: Largest) -> float:
    return 1.5 * signal.width


@luts.register
def _(signal: Multiplier) -> float:
    return float(signal.a.width * signal.b.width)


def estimated_luts(net: Netlist) -> int:
    """Look-up tables of a whole circuit."""
    return round(sum(luts(signal) for signal in net.alive()))


def least_luts(program: IntegerProgram) -> int:
    """A rough number of look-up tables that is surely too low, to refuse large networks at once.

    Every weight that is not 0 is one adder of several bits, for each place of the result; shared
    sums have not been seen to save more than half of them.
    """
    needed = 0
    for step in program.steps:
        if isinstance(step, steps.Product | steps.Convolution):
            places = step.out.size // max(len(step.weight), 1)
            needed += places * int(np.count_nonzero(step.weight))
        elif isinstance(step, steps.MatMul | steps.Multiply):
            needed += step.out.size
    return needed // 2
