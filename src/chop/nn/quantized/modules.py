"""Another path to the quantised modules: ``chop.nn.quantized.modules.linear.LinearInteger``."""

from chop.nn.quantized.generic import modules_of_classes

globals().update(modules_of_classes(__name__))
