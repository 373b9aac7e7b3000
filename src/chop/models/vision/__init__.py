"""Networks for images."""

from chop.models.vision import resnet, vgg7

__all__ = ["resnet", "vgg7"]
