"""Analyses of sparsity: zeros in weights and activations, and the hooks that mask them."""

from chop.passes.graph.analysis.pruning.calculate_natural_sparsity import (
    add_natural_sparsity_metadata_analysis_pass,
)
from chop.passes.graph.analysis.pruning.calculate_sparsity import (
    add_pruning_metadata_analysis_pass,
)
from chop.passes.graph.analysis.pruning.hook_inspector import hook_inspection_analysis_pass

__all__ = [
    "add_natural_sparsity_metadata_analysis_pass",
    "add_pruning_metadata_analysis_pass",
    "hook_inspection_analysis_pass",
]
