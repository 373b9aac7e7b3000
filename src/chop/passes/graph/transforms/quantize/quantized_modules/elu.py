"""Every quantised form of `elu`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("elu")
