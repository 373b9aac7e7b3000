"""Another path to `chop.models.toys.toy_custom_fn`."""

from chop.models.toys.toy_custom_fn import ToyCustomFnNet

__all__ = ["ToyCustomFnNet"]
