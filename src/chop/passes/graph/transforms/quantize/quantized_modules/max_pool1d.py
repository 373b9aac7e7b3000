"""Every quantised form of `max_pool1d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("max_pool1d")
