"""Attributes by their path, as the tutorials replace layers."""

from typing import Any


def deepgetattr(owner: Any, path: str, default: Any = None) -> Any:
    """The attribute at a dotted path such as ``encoder.layer.0``; `default` if there is none."""
    for name in path.split("."):
        owner = getattr(owner, name, default)
        if owner is default:
            return default
    return owner


def deepsetattr(owner: Any, path: str, value: Any) -> None:
    """Set the attribute at a dotted path, whose last part alone may be new."""
    *parents, last = path.split(".")
    for name in parents:
        owner = getattr(owner, name)
    setattr(owner, last, value)
