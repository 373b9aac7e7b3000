"""Every quantised form of `fractional_max_pool2d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("fractional_max_pool2d")
