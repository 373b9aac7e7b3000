"""Every quantised form of `leaky_relu`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("leaky_relu")
