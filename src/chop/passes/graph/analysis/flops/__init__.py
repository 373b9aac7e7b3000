"""Operations, bits and buffers, counted from shapes."""

from chop.passes.graph.analysis.flops.count import Counts, NodeCount, count, report_counts
from chop.passes.graph.analysis.flops.count_operations import count_operations_analysis_pass
from chop.passes.graph.analysis.flops.module import calculate_flops_pass

__all__ = [
    "Counts",
    "NodeCount",
    "calculate_flops_pass",
    "count",
    "count_operations_analysis_pass",
    "report_counts",
]
