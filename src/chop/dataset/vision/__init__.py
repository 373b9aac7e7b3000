"""Data sets of images: published ones from their original files, and a user's own pictures."""

from chop.dataset.vision import cifar, digits, folder, mnist

__all__ = ["cifar", "digits", "folder", "mnist"]
