"""Rules that turn operations into steps: one for each kind of operation, found by its name."""

from chop.lowering.rules import arithmetic, composed, functions, moves, reductions

__all__ = ["arithmetic", "composed", "functions", "moves", "reductions"]
