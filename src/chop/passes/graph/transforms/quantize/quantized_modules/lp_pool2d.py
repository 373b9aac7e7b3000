"""Every quantised form of `lp_pool2d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("lp_pool2d")
