"""Every quantised form of `max_pool3d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("max_pool3d")
