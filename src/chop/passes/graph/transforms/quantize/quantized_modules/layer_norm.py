"""Every quantised form of `layer_norm`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("layer_norm")
