"""Passes that find something out and leave the model as it is.

`add_metadata` fills in what the others read (`metadata_entries` says what that is), `verify` checks
it and `report` prints it. The folders count operations and bits (`flops`), zeros (`pruning`) and
statistics of tensors (`statistical_profiler`).
"""

from chop.passes.graph.analysis import report
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.analysis.exactness import exactness_analysis_pass
from chop.passes.graph.analysis.flops import (
    count_operations_analysis_pass,
)
from chop.passes.graph.analysis.hardware import (
    add_hardware_metadata_analysis_pass,
    report_node_hardware_type_analysis_pass,
)
from chop.passes.graph.analysis.parameters import report_trainable_parameters_analysis_pass
from chop.passes.graph.analysis.pruning import (
    add_natural_sparsity_metadata_analysis_pass,
    add_pruning_metadata_analysis_pass,
    hook_inspection_analysis_pass,
)
from chop.passes.graph.analysis.quantization import (
    calculate_avg_bits_mg_analysis_pass,
)
from chop.passes.graph.analysis.report import (
    report_graph_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)
from chop.passes.graph.analysis.statistical_profiler import (
    profile_statistics_analysis_pass,
)
from chop.passes.graph.analysis.verify import (
    verify_common_metadata_analysis_pass,
    verify_hardware_metadata_analysis_pass,
    verify_metadata_analysis_pass,
    verify_software_metadata_analysis_pass,
)

__all__ = [
    "add_common_metadata_analysis_pass",
    "add_hardware_metadata_analysis_pass",
    "add_natural_sparsity_metadata_analysis_pass",
    "add_pruning_metadata_analysis_pass",
    "add_software_metadata_analysis_pass",
    "calculate_avg_bits_mg_analysis_pass",
    "count_operations_analysis_pass",
    "exactness_analysis_pass",
    "hook_inspection_analysis_pass",
    "init_metadata_analysis_pass",
    "profile_statistics_analysis_pass",
    "report",
    "report_graph_analysis_pass",
    "report_node_hardware_type_analysis_pass",
    "report_node_meta_param_analysis_pass",
    "report_node_shape_analysis_pass",
    "report_node_type_analysis_pass",
    "report_trainable_parameters_analysis_pass",
    "verify_common_metadata_analysis_pass",
    "verify_hardware_metadata_analysis_pass",
    "verify_metadata_analysis_pass",
    "verify_software_metadata_analysis_pass",
]
