"""Every quantised form of `adaptive_avg_pool3d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("adaptive_avg_pool3d")
