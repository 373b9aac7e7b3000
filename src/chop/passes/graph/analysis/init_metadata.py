"""Fresh metadata everywhere."""

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import MaseGraphMetadata, MaseMetadata
from chop.passes.base import Info, MetadataArgs, analysis_pass


@analysis_pass("init_metadata")
def init_metadata_analysis_pass(graph: MaseGraph, args: MetadataArgs) -> tuple[MaseGraph, Info]:
    """Give every node and the graph an empty record; what was recorded before is gone."""
    for node in graph.nodes:
        node.meta["mase"] = MaseMetadata(node)
    graph.meta["mase"] = MaseGraphMetadata()
    return graph, {"nodes": len(graph.nodes)}
