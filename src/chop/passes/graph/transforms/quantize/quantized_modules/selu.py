"""Every quantised form of `selu`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("selu")
