"""Places for what software passes find out."""

from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import SoftwareMetadata
from chop.passes.base import Info, MetadataArgs, analysis_pass
from chop.passes.graph.analysis.add_metadata.arguments import bare, module_buffers


@analysis_pass("add_software_metadata", requires=("common",))
def add_software_metadata_analysis_pass(
    graph: MaseGraph, args: MetadataArgs
) -> tuple[MaseGraph, Info]:
    """Give each tensor of every node, buffers included, an empty dictionary of statistics."""
    for node in graph.nodes:
        node.meta["mase"].parameters["software"] = software_of(node)
    return graph, {"nodes": len(graph.nodes)}


def software_of(node: fx.Node) -> SoftwareMetadata:
    """The empty software section: inputs have only results, the output only arguments."""
    common = node.meta["mase"]["common"]
    results = [name for name, entry in common["results"].items() if not bare(entry)]
    if node.op == "output":
        return {"args": places([name.replace("data_out", "data_in") for name in results])}
    found: SoftwareMetadata = {}
    if node.op.startswith("call_"):
        names = [name for name, entry in common["args"].items() if not bare(entry)]
        module = node.meta["mase"].module
        buffers = [] if module is None else [name for name, _ in module_buffers(module)]
        found["args"] = places(names + buffers)
    if results or "args" not in found:
        found["results"] = places(results)
    return found


def places(names: list[str]) -> dict[str, Any]:
    """A place for statistics under each name."""
    return {name: {"stat": {}} for name in names}
