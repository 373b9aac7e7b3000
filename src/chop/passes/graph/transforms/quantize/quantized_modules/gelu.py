"""Every quantised form of `gelu`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("gelu")
