"""Another path to the toy networks, which live in `chop.models.toys`."""

from chop.models.toys import ToyConvNet, ToyCustomFnNet, ToyNet, ToyTiny

__all__ = ["ToyConvNet", "ToyCustomFnNet", "ToyNet", "ToyTiny"]
