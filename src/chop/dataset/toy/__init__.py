"""Data sets that the package makes itself: random images, sentences, numbers of a formula."""

from chop.dataset.toy import agreement, friedman, tiny  # noqa: F401  (register their data sets)
