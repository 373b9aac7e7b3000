"""Passes on plain modules, which need no graph."""

from chop.passes.module.analysis import (
    calculate_avg_bits_module_analysis_pass,
    report_trainable_parameters_analysis_pass,
)

__all__ = ["calculate_avg_bits_module_analysis_pass", "report_trainable_parameters_analysis_pass"]
