"""Networks small enough to read at a glance."""

from chop.models.toys.toy import ToyConvNet, ToyMLP, ToyNet, ToyTiny
from chop.models.toys.toy_custom_fn import ToyCustomFnNet

__all__ = ["ToyConvNet", "ToyCustomFnNet", "ToyMLP", "ToyNet", "ToyTiny"]
