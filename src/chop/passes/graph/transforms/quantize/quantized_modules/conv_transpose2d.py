"""Every quantised form of `conv_transpose2d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("conv_transpose2d")
