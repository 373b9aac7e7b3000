"""Every quantised form of `avg_pool1d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("avg_pool1d")
