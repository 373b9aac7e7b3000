"""Every quantised form of `conv3d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("conv3d")
