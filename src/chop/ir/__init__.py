"""The graph that every pass works on."""

from chop.ir.graph import MaseGraph

__all__ = ["MaseGraph"]
