"""`MaseGraph`: a traced model whose nodes carry metadata.

`tracing` makes the graph by fx, `exported` by torch.export where fx cannot; `recorder` runs it and
leaves the model as it was, `drawing` shows it.
"""

from chop.ir.graph.mase_graph import MaseGraph, MaseGraphMetadata, MaseMetadata, MaseTracer

__all__ = ["MaseGraph", "MaseGraphMetadata", "MaseMetadata", "MaseTracer"]
