"""Every quantised form of `instance_norm3d`, found by name."""

from chop.nn.quantized import named_classes

__getattr__ = named_classes("instance_norm3d")
