"""Modules and functions computed in a number format."""

from chop.nn.function import quantized_function
from chop.nn.quantized.calls import QuantizedCall, quantized_call
from chop.nn.quantized.generic import (
    QuantizedModule,
    float_module,
    module_class,
    named_classes,
    own_shell,
    quantize_module,
)

__all__ = [
    "QuantizedCall",
    "QuantizedModule",
    "float_module",
    "module_class",
    "named_classes",
    "own_shell",
    "quantize_module",
    "quantized_call",
    "quantized_function",
]
