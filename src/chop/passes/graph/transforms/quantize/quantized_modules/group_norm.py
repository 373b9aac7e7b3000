"""Every quantised form of `group_norm`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("group_norm")
