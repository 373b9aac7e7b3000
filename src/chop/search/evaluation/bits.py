"""The average widths of a graph in any configuration, without building it.

What every node reads and stores is found once, by the code of the counting passes; from trial to
trial only the number formats change.
"""

import copy
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import QuantConfig
from chop.numerics import NumberFormat
from chop.passes.graph.analysis.flops.count import NodeCounter
from chop.passes.graph.analysis.flops.operands import (
    average,
    buffers,
    in_effect,
    observe,
    stored_bits,
)
from chop.passes.graph.analysis.metadata_entries import plain_name

Quants = Mapping[str, tuple[Hashable, QuantConfig]]


class Owned(NamedTuple):
    """A parameter of a layer, the role whose format it is stored in, and its bits without one."""

    role: str
    parameter: nn.Parameter
    bits: int


class BitCounter:
    """Average bits of parameters and activations, as `calculate_avg_bits` counts them."""

    def __init__(self, graph: MaseGraph) -> None:
        self.counter = NodeCounter(graph, observe(graph, None))
        counts = self.counter.nodes()
        self.readers = [node for node, count in counts.items() if count.flops != 0]
        self.read = sum(counts[node].input_buffer_size for node in self.readers)
        self.owned = {
            node.name: [
                Owned(plain_name(name), each, stored_bits(None, tuple(each.shape), each.dtype))
                for name, each in use.module.named_parameters()
            ]
            for node, use in self.counter.uses.items()
            if use.module is not None
        }
        self.floats = sum(each.bits for owned in self.owned.values() for each in owned)
        """The bits of all parameters as they are."""
        every = [each.parameter for owned in self.owned.values() for each in owned]
        attributes = any(node.op == "get_attr" for node in self.counter.results)
        self.simple = len(set(every)) == len(every) and not attributes
        """Whether each parameter belongs to one layer, which alone decides on its format."""
        self.elements = sum(parameter.numel() for parameter in every)
        self._bits: dict[tuple[nn.Parameter, NumberFormat], int] = {}

    def parameter_width(self, quants: Quants) -> float:
        """The average width of a parameter."""
        if not self.simple:
            stored = self._with_formats(quants).unique_parameters()
            return average(sum(stored.values()), sum(each.numel() for each in stored))
        total = self.floats
        for name, (_, quant) in quants.items():
            formats = in_effect(quant)
            for role, parameter, bits in self.owned.get(name, ()):
                if role in formats:
                    total += self._stored(parameter, formats[role]) - bits
        return average(total, self.elements)

    def activation_width(self, quants: Quants) -> float:
        """The average width of an activation that arithmetic reads."""
        uses = self._with_formats(quants).uses
        bits = sum(buffers(uses[node])["input_buffer_bits"] for node in self.readers)
        return average(bits, self.read)

    def _stored(self, parameter: nn.Parameter, fmt: NumberFormat) -> int:
        key = (parameter, fmt)
        if key not in self._bits:
            self._bits[key] = stored_bits(fmt, tuple(parameter.shape), parameter.dtype)
        return self._bits[key]

    def _with_formats(self, quants: Quants) -> NodeCounter:
        """The counter of the graph as it would be with these formats."""
        counter = copy.copy(self.counter)
        counter.uses = dict(self.counter.uses)
        for node, use in self.counter.uses.items():
            if node.name in quants:
                counter.uses[node] = replace(use)
                formats = in_effect(quants[node.name][1])
                counter.uses[node].__dict__["formats"] = formats  # its cached property
        return counter
