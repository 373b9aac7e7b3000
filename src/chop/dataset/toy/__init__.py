"""Data sets that the package makes itself, small enough to understand: random images, sentences."""

from chop.dataset.toy import agreement, tiny  # noqa: F401  (register their data sets)
