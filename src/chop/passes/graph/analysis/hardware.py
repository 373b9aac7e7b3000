"""The circuit that a quantised network would be: its look-up tables and latency."""

import logging
from dataclasses import asdict
from typing import Any

from pydantic import Field
from tabulate import tabulate

from chop.export.verilog.target import Hardware, circuit_cost
from chop.ir.graph.mase_graph import MaseGraph, metadata_of
from chop.lowering import LoweringError, lower
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.report import NODE_COLUMNS, node_cells, show

logger = logging.getLogger("chop")


class HardwareArgs(PassArgs):
    """The places of registers, and the inputs that give shapes.

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
    A network that computes in floating point is not a circuit yet: a warning and `info` name the
    node and what would help, and no node has a part.
    """
    hardware = Hardware(args.stages, args.clock_ns, most_luts=args.most_luts)
    try:
        info = asdict(circuit_cost(lower(graph, args.dummy_in, cut_tail=args.cut_tail), hardware))
    except LoweringError as error:
        logger.warning("No circuit can be estimated: %s", error)
        info = {"nodes": {}, "reason": str(error)}
    luts = info["nodes"]
    for node in graph.nodes:
        share = {"luts": luts[node.name]} if node.name in luts else {}
        metadata_of(node).parameters["hardware"] = share
    return graph, info


@analysis_pass("report_node_hardware_type", requires=("common",))
def report_node_hardware_type_analysis_pass(
    graph: MaseGraph, args: PassArgs
) -> tuple[MaseGraph, Info]:
    """Print the type and operation of every node and the look-up tables of its part of a circuit.

    The last column is empty where a node is part of another and where `add_hardware_metadata` did
    not run.
    """
    luts = {node.name: metadata_of(node).parameters["hardware"].get("luts") for node in graph.nodes}
    rows = [[*node_cells(node), luts[node.name]] for node in graph.nodes]
    show(tabulate(rows, headers=[*NODE_COLUMNS, "LUTs"], tablefmt="orgtbl"))
    return graph, {"luts": {name: count for name, count in luts.items() if count is not None}}
