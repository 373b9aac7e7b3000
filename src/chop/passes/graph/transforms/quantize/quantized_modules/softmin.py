"""Every quantised form of `softmin`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("softmin")
