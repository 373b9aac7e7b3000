"""Folded circuits: layers as blocks that share multipliers, joined by streams with backpressure."""
