"""Every quantised form of `batch_norm2d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("batch_norm2d")
