"""`MaseGraph`: a traced model whose nodes carry metadata."""

from chop.ir.graph.mase_graph import MaseGraph, MaseTracer
from chop.ir.graph.mase_metadata import MaseGraphMetadata, MaseMetadata

__all__ = ["MaseGraph", "MaseGraphMetadata", "MaseMetadata", "MaseTracer"]
