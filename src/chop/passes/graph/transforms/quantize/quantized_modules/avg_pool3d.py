"""Every quantised form of `avg_pool3d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("avg_pool3d")
