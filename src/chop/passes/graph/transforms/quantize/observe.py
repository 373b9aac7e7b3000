"""Values that reach the operands of a graph in floating point, on batches of rows.

The float network is observed, not the quantised one: what reaches an operand then depends on
weights and rows alone, so that all operands are fitted at once, in any order, and a search fits
each width once for all of its trials.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError, DataError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_batches
from chop.nn.quant_config import QuantConfig
from chop.numerics import NumberFormat
from chop.ops.op import Op
from chop.passes.base import take_rows
from chop.passes.graph.transforms.quantize.ranges import Calibration, Fit, OperandTally

logger = logging.getLogger("chop")
WHERE = "calibrate"
LISTED = 5
Operand = tuple[str, str]
"""The name of a node and the role of an operand."""
Fits = dict[tuple[str, str, NumberFormat], Fit]
"""What was observed of each operand in each format."""
Wanted = Mapping[fx.Node, tuple[QuantConfig, Mapping[str, Collection[NumberFormat]]]]
"""Nodes, a configuration of each and the formats of its operands to fit."""


class Watch:
    """Counts what reaches the operands of a graph, in each format that is asked for."""

    def __init__(self, graph: MaseGraph, wanted: Wanted, settings: Calibration) -> None:
        self.graph, self.settings = graph, settings
        self.formats: dict[Operand, list[NumberFormat]] = {}
        self.tallies: dict[Operand, list[OperandTally]] = {}
        self.again = self.parameters_seen = False
        self.calls = self._calls(wanted)

    def run(self, batches: list[dict[str, Any]]) -> Fits:
        """Look at all batches, twice where scales are to be chosen."""
        self._pass_over(batches)
        choices = [each for found in self.tallies.values() for each in found if each.needs_scales]
        if choices:
            for tally in choices:
                tally.prepare()
            self.again = True
            self._pass_over(batches)
        return {
            (*operand, tally.fmt): tally.fit()
            for operand, tallies in self.tallies.items()
            for tally in tallies
        }

    def _pass_over(self, batches: list[dict[str, Any]]) -> None:
        self.parameters_seen = False
        for _ in run_batches(self.graph, batches, self.calls):
            self.parameters_seen = True

    def _calls(self, wanted: Wanted) -> dict[fx.Node, Callable[..., Any]]:
        """A function for each quantised node that computes it in floating point and looks on."""
        modules = self.graph.modules
        owners: dict[nn.Module, fx.Node] = {}
        calls: dict[fx.Node, Callable[..., Any]] = {}
        for node in self.graph.nodes:
            call = NodeCall.of(node, modules)
            op, module = call.op, call.module
            if op is None or (call.quant is None and node not in wanted):
                continue
            if module is not None and owners.setdefault(module, node) is not node:
                calls[node] = calls[owners[module]]  # one layer, called by several nodes
                continue
            quant, formats = wanted.get(node, (call.quant, {}))
            looks = {role: self._look(node, op, role, formats[role]) for role in formats}
            calls[node] = call.rounded_by(looks, quant)
        return calls

    def _look(
        self, node: fx.Node, op: Op, role: str, formats: Collection[NumberFormat]
    ) -> Callable[[Tensor], Tensor]:
        operand = (node.name, role)
        self.formats[operand] = [each for each in formats if each.is_open or each.saturation]
        is_parameter = node.op == "call_module" and role in op.params

        def look(x: Tensor) -> Tensor:
            done = is_parameter and self.parameters_seen
            if x.is_floating_point() and x.numel() and not done:
                self._take(operand, op, finite(x.detach(), operand))
            return x

        return look

    def _take(self, operand: Operand, op: Op, x: Tensor) -> None:
        if operand not in self.tallies:
            by_channel = self.settings.by_channel(operand[1])
            shape = op.channel_shape(operand[1], tuple(x.shape)) if by_channel else ()
            self.tallies[operand] = [
                OperandTally(fmt, self.settings, shape, floor_of(op, operand[1], fmt))
                for fmt in self.formats[operand]
            ]
        for tally in self.tallies[operand]:
            (tally.look_again if self.again else tally.look)(x)


def finite(x: Tensor, operand: Operand) -> Tensor:
    """The values with zeros for infinite ones, which have no scale; NaN is an error."""
    low, high = torch.aminmax(x)  # of which NaN makes both NaN
    if bool(low.isnan()):
        node, role = operand
        raise DataError(
            f"{WHERE}: {role} of node {node!r} is NaN for some of the rows: look at the weights of "
            "the network and at the batches"
        )
    wide = x if x.dtype.itemsize >= 4 else x.float()
    return wide if bool((high - low).isfinite()) else wide.masked_fill(wide.isinf(), 0.0)


def floor_of(op: Op, role: str, fmt: NumberFormat) -> float:
    """Zero where an operation takes its operand without a sign and so does the format."""
    return 0.0 if role in op.unsigned and getattr(fmt, "signed", True) is False else -inf


def first_callers(graph: MaseGraph) -> dict[str, str]:
    """For each node the first one that calls the same layer, which is itself for most."""
    modules = graph.modules
    owners: dict[Any, str] = {}
    return {
        node.name: owners.setdefault(
            modules[str(node.target)] if node.op == "call_module" else node, node.name
        )
        for node in graph.nodes
    }


def fits_of(
    graph: MaseGraph,
    wanted: Wanted,
    batches: Iterable[Mapping[str, Any]] | None,
    settings: Calibration,
) -> tuple[Fits, int]:
    """The observations of each operand in each format, and the number of rows.

    Of nodes that call one layer, it is under the name of the first.
    """
    if batches is None:
        raise ConfigError(
            f"{WHERE}: there are no batches to observe: give input_generator, dictionaries of "
            "inputs such as [{'x': rows}]"
        )
    most = float("inf") if settings.num_samples is None else settings.num_samples
    cut = list(take_rows(batches, most, WHERE))
    rows = sum(size for _, size in cut)
    if not rows:
        raise ConfigError(f"{WHERE}: input_generator gives no rows")
    taken = [batch for batch, _ in cut]
    for line in unseen_channels(taken, rows):
        logger.warning("%s: %s", WHERE, line)
    return Watch(graph, wanted, settings).run(taken), rows


def unseen_channels(batches: list[dict[str, Any]], rows: int) -> Iterator[str]:
    """Say which channels of the inputs are zero throughout, and the range they get."""
    for name, first in batches[0].items() if rows > 1 else ():
        if not (isinstance(first, Tensor) and first.is_floating_point() and first.dim() > 1):
            continue
        limits = [torch.aminmax(e[name].transpose(0, 1).flatten(1), dim=1) for e in batches]
        low = torch.stack([each.min for each in limits]).amin(0)
        high = torch.stack([each.max for each in limits]).amax(0)
        (unseen,) = torch.nonzero((low == 0) & (high == 0), as_tuple=True)
        if 0 < len(unseen) < len(low):
            shown = ", ".join(map(str, unseen[:LISTED].tolist()))
            more = ", …" if len(unseen) > LISTED else ""
            yield (
                f"{len(unseen)} of {len(low)} channels of input {name!r} are zero in all "
                f"{rows} rows ({shown}{more}): they get the range of the others, "
                f"{float(low.min()):.4g} to {float(high.max()):.4g}"
            )


def with_scales(quant: QuantConfig, node: str, fits: Fits) -> QuantConfig:
    """A configuration with the scales that were chosen; what no value reached has the default."""
    operands = {}
    for role, fmt in quant.operands.items():
        fit = fits.get((node, role, fmt))
        operands[role] = fit.fmt if fit else fmt.with_scale(None) if fmt.is_open else fmt
    return replace(quant, operands=operands)
