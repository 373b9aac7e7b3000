"""Every quantised form of `rms_norm`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("rms_norm")
