"""Quantisation: the passes, the summary, and quantised modules and functions by name."""

from chop.passes.graph.transforms.quantize.calibrate import calibrate_transform_pass
from chop.passes.graph.transforms.quantize.freeze import freeze_transform_pass
from chop.passes.graph.transforms.quantize.quantize import (
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)

__all__ = [
    "calibrate_transform_pass",
    "freeze_transform_pass",
    "quantize_transform_pass",
    "summarize_quantization_analysis_pass",
]
