"""Operations, bits and buffers of a graph, counted from shapes.

`operands` finds what each operation works on, `count` counts with it and holds the pass, `rounding`
measures which products are rounded as they run, `node_count` is what one node costs, `table` shows
the counts; `module` counts a single module, as the labs do. `ebops` counts effective bit
operations on given rows: `products` are what is multiplied, `liveness` is what is read.
"""

from chop.passes.graph.analysis.flops.count import (
    Counts,
    count,
    count_operations_analysis_pass,
)
from chop.passes.graph.analysis.flops.module import calculate_flops_pass
from chop.passes.graph.analysis.flops.node_count import NodeCount
from chop.passes.graph.analysis.flops.table import report_counts

__all__ = [
    "Counts",
    "NodeCount",
    "calculate_flops_pass",
    "count",
    "count_operations_analysis_pass",
    "report_counts",
]
