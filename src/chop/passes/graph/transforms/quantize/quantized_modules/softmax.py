"""Every quantised form of `softmax`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("softmax")
