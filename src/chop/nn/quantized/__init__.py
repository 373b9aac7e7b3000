"""Modules and functions computed in a number format."""

from chop.nn.function import quantized_function
from chop.nn.quantized.generic import (
    QuantizedModule,
    module_class,
    named_classes,
    quantize_module,
)

__all__ = [
    "QuantizedModule",
    "module_class",
    "named_classes",
    "quantize_module",
    "quantized_function",
]
