"""Scales of any size in a network that is whole in integers: each result is rounded once.

Results that are added or joined share a scale, so that their codes can be; a bias has the scale of
the sums that it is added to. Afterwards every format is told the grid of what it rounds, and the
simulation computes the integers themselves.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.lowering.from_graph import Lowering
from chop.nn.quant_config import OUTPUT, QuantConfig
from chop.numerics import DoubleTensor, FloatTensor, Integer, IntegerScaled, NumberFormat
from chop.ops.op import Op
from chop.passes.graph.transforms.quantize.plan import Plan
from chop.passes.graph.transforms.quantize.quantize import apply_plan

SCALED = "integer_scaled"
BIAS_BITS = 32
SAMPLE = 2**16
"""Numbers of a result by which its scale is chosen."""
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Ranges that are tried, as shares of the largest magnitude."""


def set_free_scales(graph: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Give a network in fixed point scales of any size; the scale of each rounded result."""
    free = FreeScales(graph)
    free.observe(batches)
    apply_plan(graph, free.plan())
    settle_scales(graph)
    return {node.name: free.scale(node)[0] for node in free.members}


def settle_scales(graph: MaseGraph, inputs: Mapping[str, Tensor] | None = None) -> None:
    """Tell each format with a scale the grid of what it rounds, as lowering the graph finds it."""
    lowering = Lowering(graph, inputs or {})
    lowering.program(cut_tail=True)
    plan: Plan = {}
    for node in graph.nodes:
        quant = NodeCall.of(node, graph.modules).quant if node.op.startswith("call_") else None
        if quant is None:
            continue
        changed = {
            role: fmt.model_copy(update={"grid": grid_field(lowering.grids[node.name, role])})
            for role, fmt in quant.operands.items()
            if isinstance(fmt, IntegerScaled) and (node.name, role) in lowering.grids
        }
        if changed:
            operands = {role: fresh(fmt) for role, fmt in {**quant.operands, **changed}.items()}
            plan[node] = replace(quant, operands=operands)
    if plan:
        apply_plan(graph, plan)


def grid_field(unit: Any) -> float | DoubleTensor:
    """A unit of rows as the field of a format."""
    return DoubleTensor(unit) if unit.size > 1 else float(unit.reshape(()))


def fresh(fmt: NumberFormat) -> NumberFormat:
    """The same format without what it has worked out of other settings."""
    return type(fmt)(**fmt.model_dump()) if isinstance(fmt, IntegerScaled) else fmt


class FreeScales:
    """The places at which results of a graph are rounded, and their scales."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        self.calls = {
            node: NodeCall.of(node, graph.modules)
            for node in graph.nodes
            if node.op.startswith("call_")
        }
        self.formats: dict[fx.Node, Mapping[str, NumberFormat]] = {
            node: call.quant.operands for node, call in self.calls.items() if call.quant
        }
        self._group: dict[fx.Node, fx.Node] = {}
        self.members: list[fx.Node] = []
        self.widths: dict[fx.Node, int] = {}
        self.seen: dict[fx.Node, list[Tensor]] = {}
        self._scales: dict[fx.Node, tuple[float, bool]] = {}
        for node in self.formats:
            self._add(node)

    def _add(self, node: fx.Node) -> None:
        """Find where what a node reads is rounded; what it adds has one scale."""
        call, fmt = self.calls[node], self.formats[node].get("data_in")
        op = call.op
        assert op is not None
        if op.inner:
            raise ConfigError(
                f"scales='free': {node.name} ({op.name}) has several products, whose scales must "
                "be powers of two"
            )
        if not isinstance(fmt, Integer):
            return
        places = [[*self.places(source)] for source in call.node.all_input_nodes]
        for found in places if op.multiplies else [[p for each in places for p in each]]:
            for place in found:
                if place not in self.members:
                    self.members.append(place)
                self.widths[place] = max(int(fmt.element_bits), self.widths.get(place, 0))
                self._group[self.root(place)] = self.root(found[0])

    def root(self, node: fx.Node) -> fx.Node:
        """The node that stands for all that share a scale with this one."""
        while self._group.get(node, node) is not node:
            node = self._group[node]
        return node

    def places(self, source: fx.Node) -> Iterator[fx.Node]:
        """The nodes at which what a source gives is rounded: inputs, or the ends of sums."""
        if source.op == "get_attr":
            return
        if source.op == "placeholder" or source in self.formats:
            yield self.last_limit(source)
            return
        call = self.calls.get(source)
        if call is not None and is_limit(call.op) and len(source.all_input_nodes) == 1:
            (before,) = source.all_input_nodes
            if before in self.formats and len(before.users) == 1:
                yield self.last_limit(source)
                return
        for each in source.all_input_nodes:
            yield from self.places(each)

    def last_limit(self, node: fx.Node) -> fx.Node:
        """The last of the limits that alone read a node, one after the other."""
        while node.op != "placeholder" and len(node.users) == 1:
            (user,) = node.users
            call = self.calls.get(user)
            if call is None or not is_limit(call.op) or user in self.formats:
                break
            node = user
        return node

    def observe(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Keep some of the numbers that each rounded result has on batches."""
        wanted = {*self.members}

        def keep(node: fx.Node, result: Any) -> None:
            if node in wanted:
                flat = result.detach().reshape(-1).float()
                ends = torch.stack([flat.min(), flat.max()])
                step = max(1, len(flat) // SAMPLE)
                self.seen.setdefault(node, []).append(torch.cat([flat[::step], ends]))

        for batch in batches:
            run_graph(self.graph, batch, after=keep)

    def scale(self, node: fx.Node) -> tuple[float, bool]:
        """The scale of a result, and whether it has a sign."""
        root = self.root(node)
        if root not in self._scales:
            group = [each for each in self.members if self.root(each) is root]
            numbers = torch.cat([part for each in group for part in self.seen[each]])
            self._scales[root] = best_scale(numbers, max(self.widths[each] for each in group))
        return self._scales[root]

    def format(self, node: fx.Node) -> IntegerScaled:
        """The format of a result."""
        root = self.root(node)
        width = max(self.widths[each] for each in self.members if self.root(each) is root)
        scale, signed = self.scale(node)
        return IntegerScaled(width=width, scale=scale, signed=signed)

    def plan(self) -> Plan:
        """The formats of all nodes."""
        plan: Plan = {}
        for node, old in self.formats.items():
            operands: dict[str, NumberFormat] = {}
            places = [each for source in node.all_input_nodes for each in self.places(source)]
            raw = [each for each in places if each.op == "placeholder"]
            if raw and isinstance(old.get("data_in"), Integer):
                operands["data_in"] = self.format(raw[0])
            operands |= self._parameters(node, old, places)
            if node in self.members:
                operands[OUTPUT] = self.format(node)
            plan[node] = QuantConfig(SCALED, operands) if operands else None
        for node in self.members:
            if node not in plan and node.op != "placeholder":
                plan[node] = QuantConfig(SCALED, {OUTPUT: self.format(node)})
        return plan

    def _parameters(
        self, node: fx.Node, old: Mapping[str, NumberFormat], places: list[fx.Node]
    ) -> dict[str, NumberFormat]:
        """Formats of weights and bias; other roles are data, which is rounded where it is made."""
        call, weight = self.calls[node], old.get("weight")
        values = {role: layer_parameter(call, role) for role in ("weight", "bias")}
        if values["weight"] is None or not isinstance(weight, Integer):
            return {}
        fmt = weight_format(values["weight"], weight)
        found: dict[str, NumberFormat] = {"weight": fmt}
        if values["bias"] is not None and places:
            unit = np.float64(self.scale(places[0])[0]) * fmt.scales.reshape(-1)
            scale = FloatTensor(unit) if unit.size > 1 else float(unit[0])
            found["bias"] = IntegerScaled(width=BIAS_BITS, scale=scale)
        return found


def is_limit(op: Op | None) -> bool:
    """True for an operation that only limits numbers and can be rounded itself."""
    return op is not None and op.quantizable and op.limits


def layer_parameter(call: NodeCall, role: str) -> Tensor | None:
    """A parameter of the layer that a node calls."""
    found = getattr(call.module, role, None) if call.module is not None else None
    return found.detach() if isinstance(found, Tensor) else None


def weight_format(weight: Tensor, old: Integer) -> IntegerScaled:
    """The format of weights: a scale for each channel where there was a binary point for each."""
    high = 2 ** (int(old.element_bits) - 1) - 1
    by_channel = old.granular and weight.dim() > 1
    dims = tuple(range(1, weight.dim())) if by_channel else tuple(range(weight.dim()))
    largest = weight.abs().amax(dims, keepdim=by_channel).double()
    scale = torch.where(largest > 0, largest, 1.0) / max(high, 1)
    given = FloatTensor(scale) if by_channel else float(scale)
    return IntegerScaled(width=int(old.element_bits), scale=given, narrow=high > 0)


def best_scale(numbers: Tensor, width: int) -> tuple[float, bool]:
    """The scale with the least squared error for some numbers, and whether they have a sign."""
    signed = bool((numbers < 0).any())
    largest = float(numbers.abs().max()) or 1.0
    high = 2 ** (width - 1) - 1 if signed else 2**width - 1
    found = [share * largest / max(high, 1) for share in SHARES]
    errors = [
        float(
            (IntegerScaled(width=width, scale=each, signed=signed)(numbers) - numbers)
            .square()
            .mean()
        )
        for each in found
    ]
    return found[int(np.argmin(errors))], signed
