"""Every quantised form of `mish`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("mish")
