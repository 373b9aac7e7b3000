"""Every quantised form of `log_softmax`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("log_softmax")
