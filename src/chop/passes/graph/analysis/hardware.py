"""What a quantised network would take as a circuit."""

from dataclasses import asdict
from typing import Any

from pydantic import Field

from chop.export.verilog.target import Hardware, cost_of
from chop.ir.graph.mase_graph import MaseGraph, metadata_of
from chop.lowering import lower
from chop.passes.base import Info, PassArgs, analysis_pass


class HardwareArgs(PassArgs):
    """Where to put registers, and how to find shapes.

    Args:
        stages: pipeline registers from the inputs to the outputs; by default one for each layer
            with sums, 0 for none.
        clock_ns: instead of `stages`: place registers for this clock period.
        most_luts: refuse circuits with a larger estimate of look-up tables.
        dummy_in: inputs by name, for their shapes; by default those that metadata recorded.
        cut_tail: leave out floating-point operations at the end, such as a softmax.
    """

    stages: int | None = Field(None, ge=0)
    clock_ns: float | None = Field(None, gt=0)
    most_luts: int = Field(200_000, ge=1)
    dummy_in: dict[str, Any] | None = None
    cut_tail: bool = True


@analysis_pass("add_hardware_metadata")
def add_hardware_metadata_analysis_pass(
    graph: MaseGraph, args: HardwareArgs
) -> tuple[MaseGraph, Info]:
    """Estimate the look-up tables and the latency of the graph as a circuit, node by node.

    No tool is run. `info` has the totals; the part of each node is in its metadata, under
    ``hardware``. A node without one is part of another: a ReLU is part of the layer before it.
    """
    hardware = Hardware(args.stages, args.clock_ns, most_luts=args.most_luts)
    cost = cost_of(lower(graph, args.dummy_in, cut_tail=args.cut_tail), hardware)
    for node in graph.nodes:
        share = {"luts": cost.nodes[node.name]} if node.name in cost.nodes else {}
        metadata_of(node).parameters["hardware"] = share
    return graph, asdict(cost)
