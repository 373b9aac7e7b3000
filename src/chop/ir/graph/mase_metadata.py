"""The records of nodes and graphs, where the original's tutorials look for them."""

from chop.ir.graph.mase_graph import MaseGraphMetadata, MaseMetadata

__all__ = ["MaseGraphMetadata", "MaseMetadata"]
