"""What the tests of circuits share: a netlist computed in NumPy, and which tools there are."""

import shutil
from typing import Any

import numpy as np
import pytest

from chop.export.verilog import netlist as wires

Rows = np.ndarray[Any, np.dtype[np.int64]]


def needs(*tools: str) -> pytest.MarkDecorator:
    """Skip a test where one of these programs is missing, and say which."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def computed(  # noqa: C901  (one case for each kind)
    signal: wires.Signal, x: dict[wires.Signal, Rows], inputs: list[Rows]
) -> Rows:
    """What a signal means."""
    match signal:
        case wires.Port():
            return inputs[signal.number][:, signal.element]
        case wires.Add():
            a, b = (
                x[each] + (1 << each.width - 1) * (signal.raised and each.signed)
                for each in (signal.a, signal.b)
            )
            return a + (b << signal.shift) * (-1 if signal.subtract else 1)
        case wires.Offset():
            return signal.constant + x[signal.source] * (-1 if signal.negative else 1)
        case wires.Shifted():
            return (x[signal.source] << signal.places) + signal.bits
        case wires.Round():
            source = x[signal.source]
            result = source >> signal.drop
            if signal.even:
                result = result - (source % (1 << signal.drop) == 0) * (result & 1)
            if signal.wraps:
                return (result - signal.low) % (signal.high - signal.low + 1) + signal.low
            return np.clip(result, signal.low, signal.high)
        case wires.LookupTable():
            return np.array(signal.entries)[x[signal.source] - signal.source.low]
        case wires.Largest():
            return np.maximum(x[signal.a], x[signal.b])
        case wires.Multiplier():
            return x[signal.a] * x[signal.b]
    raise NotImplementedError(type(signal).__name__)


def outputs_of(net: wires.Netlist, inputs: list[Rows]) -> list[Rows]:
    """Codes of the outputs; every signal is seen to stay within its range."""
    values: dict[wires.Signal, Rows] = {}
    for signal in net.alive():
        values[signal] = computed(signal, values, inputs)
        assert signal.low <= values[signal].min()
        assert values[signal].max() <= signal.high
    rows = len(inputs[0])
    return [
        np.stack([np.full(rows, term.offset) if term.signal is None else values[term.signal]
                  for term in terms], 1)
        for terms in net.outputs
    ]  # fmt: skip
