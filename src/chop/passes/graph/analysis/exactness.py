"""Analysis of where a simulation in floating point computes what integers would."""

from dataclasses import asdict
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import analyse, lower
from chop.passes.base import Info, PassArgs, analysis_pass


class ExactnessArgs(PassArgs):
    """The inputs that give shapes, and a flag for floating point at the end.

    Args:
        dummy_in: inputs by name, for their shapes; by default those that metadata recorded.
        cut_tail: leave out floating-point operations at the end, such as a softmax.
    """

    dummy_in: dict[str, Any] | None = None
    cut_tail: bool = True


@analysis_pass("exactness")
def exactness_analysis_pass(graph: MaseGraph, args: ExactnessArgs) -> tuple[MaseGraph, Info]:
    """Find accumulator bits, and where float32 or float64 is exact in any order of summation.

    For each node, `info` also says whether it can saturate. It lists pairs of roundings that make
    ties, the first one bit finer than the second. Nothing is run; the results hold for all inputs.
    A graph without an integer program is refused; the error names the node.
    """
    found = analyse(lower(graph, args.dummy_in, cut_tail=args.cut_tail))
    return graph, {
        "accumulator_bits": found.accumulator_bits,
        "float32": found.exact("float32"),
        "float64": found.exact("float64"),
        "ties": [list(pair) for pair in found.ties],
        "nodes": {each.node: asdict(each) for each in found.nodes},
    }
