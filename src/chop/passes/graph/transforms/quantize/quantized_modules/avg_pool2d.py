"""Every quantised form of `avg_pool2d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("avg_pool2d")
