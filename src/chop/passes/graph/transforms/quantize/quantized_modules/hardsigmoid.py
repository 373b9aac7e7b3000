"""Every quantised form of `hardsigmoid`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("hardsigmoid")
