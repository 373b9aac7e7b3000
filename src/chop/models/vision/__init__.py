"""Networks for images."""

from chop.models.vision import resnet, small, tiny, vgg7

__all__ = ["resnet", "small", "tiny", "vgg7"]
