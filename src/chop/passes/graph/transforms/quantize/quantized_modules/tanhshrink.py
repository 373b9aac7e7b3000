"""Every quantised form of `tanhshrink`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("tanhshrink")
