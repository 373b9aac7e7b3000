"""Models of text."""

from chop.models.text import transformer  # noqa: F401  (register its models)
