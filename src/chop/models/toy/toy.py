"""Another path to `chop.models.toys.toy`."""

from chop.models.toys.toy import ToyConvNet, ToyNet, ToyTiny

__all__ = ["ToyConvNet", "ToyNet", "ToyTiny"]
