"""Operations, bits and buffers of a graph, counted from shapes.

`operands` finds what each operation works on, `count` counts with it and holds the pass; `module`
counts a single module, as the labs do.
"""

from chop.passes.graph.analysis.flops.count import (
    Counts,
    NodeCount,
    count,
    count_operations_analysis_pass,
    report_counts,
)
from chop.passes.graph.analysis.flops.module import calculate_flops_pass

__all__ = [
    "Counts",
    "NodeCount",
    "calculate_flops_pass",
    "count",
    "count_operations_analysis_pass",
    "report_counts",
]
