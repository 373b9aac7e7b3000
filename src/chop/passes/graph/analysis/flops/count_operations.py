"""The pass that counts operations, bits and elements."""

from pathlib import Path
from typing import Any

from chop.files import write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.flops.count import as_info, count, report_counts
from chop.passes.graph.analysis.report.output import show


class CountOperationsArgs(PassArgs):
    """What to count and where to put it.

    Args:
        backward: count the backward pass of training too.
        dummy_in: inputs by name, of which only shapes and dtypes matter. Without it the shapes
            that `add_common_metadata` recorded are used.
        report: print the table.
        save_path: a file to save the table in.
    """

    backward: bool = False
    dummy_in: dict[str, Any] | None = None
    report: bool = True
    save_path: Path | None = None


@analysis_pass("count_operations", "calculate_flops")
def count_operations_analysis_pass(
    graph: MaseGraph, args: CountOperationsArgs
) -> tuple[MaseGraph, Info]:
    """Count MACs, FLOPs, bit operations, parameters and buffers of each node, per sample."""
    info = as_info(count(graph, args.dummy_in), args.backward)
    if args.report:
        show(report_counts(info))
    if args.save_path is not None:
        write_text(args.save_path, f"{report_counts(info)}\n")
    return graph, info
