"""Every quantised module, under a Python module for each operation: ``linear.LinearInteger``."""

from chop.nn.quantized.generic import modules_of_classes

globals().update(modules_of_classes(__name__))
