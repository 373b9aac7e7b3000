"""Widths of quantised graphs; `calculate_flops_pass` is here because the labs import it so."""

from chop.passes.graph.analysis.flops.module import calculate_flops_pass
from chop.passes.graph.analysis.quantization.avg_bits import calculate_avg_bits_mg_analysis_pass

__all__ = ["calculate_avg_bits_mg_analysis_pass", "calculate_flops_pass"]
