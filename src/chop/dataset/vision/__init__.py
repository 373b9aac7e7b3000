"""Data sets of images, read from their original archives."""

from chop.dataset.vision import cifar, mnist

__all__ = ["cifar", "mnist"]
