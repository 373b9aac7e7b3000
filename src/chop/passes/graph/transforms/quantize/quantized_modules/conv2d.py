"""Every quantised form of `conv2d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("conv2d")
