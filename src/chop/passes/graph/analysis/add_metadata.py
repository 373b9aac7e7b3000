"""Metadata of every node: what it is, what it takes and gives, and its number formats."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import (
    CommonMetadata,
    MaseGraph,
    MaseGraphMetadata,
    MaseMetadata,
    SoftwareMetadata,
    metadata_of,
)
from chop.ir.graph.recorder import run_graph
from chop.ir.parameters import (
    module_buffers,
    module_parameters,
)
from chop.passes.base import Info, MetadataArgs, PassArgs, analysis_pass
from chop.passes.graph.analysis.metadata_entries import (
    UNKNOWN,
    TensorSnapshots,
    bare,
    classify,
    named_arguments,
    parameter_entry,
    record_formats,
    result_entries,
    stands_for_tensor,
    tensor_entry,
)


@analysis_pass("init_metadata")
def init_metadata_analysis_pass(graph: MaseGraph, args: MetadataArgs) -> tuple[MaseGraph, Info]:
    """Give the graph and every node an empty record, and delete earlier records."""
    for node in graph.nodes:
        node.meta["mase"] = MaseMetadata(node)
    graph.meta["mase"] = MaseGraphMetadata()
    return graph, {"nodes": len(graph.nodes)}


class AddCommonMetadataArgs(PassArgs):
    """The inputs to run the model on, and the values to keep.

    Args:
        dummy_in: a value for each input, by the name of the argument or of the node. Without it
            nothing is run, unless the graph was made with `hf_input_names`: types, operations and
            parameters are known, other shapes are None.
        add_value: keep copies of the tensors themselves.
        force_device_meta: find shapes and dtypes without computing; values are meta tensors.
    """

    dummy_in: dict[str, Any] | None = None
    add_value: bool = True
    force_device_meta: bool = False


@analysis_pass("add_common_metadata")
def add_common_metadata_analysis_pass(
    graph: MaseGraph, args: AddCommonMetadataArgs
) -> tuple[MaseGraph, Info]:
    """Record the type, operation, arguments and results of every node."""
    modules = graph.modules
    for node in graph.nodes:
        mase_type, mase_op = classify(node, modules)
        metadata_of(node).parameters["common"] = {
            "mase_type": mase_type,
            "mase_op": mase_op,
            "args": {},
            "results": {},
        }
    fill = Filler(modules, args.add_value)
    inputs = graph.hf_inputs if args.dummy_in is None else args.dummy_in
    if inputs is None:
        for node in graph.nodes:  # what is passed can be known without data, its shape cannot
            fill.arguments(node, node.args, dict(node.kwargs))
            common_of(node)["results"] = {"data_out_0": dict(UNKNOWN)}
    else:
        tensors = [v for v in inputs.values() if isinstance(v, Tensor)]
        on_meta = args.force_device_meta or any(v.is_meta for v in tensors)
        run_graph(graph, inputs, fill.arguments, fill.results, on_meta=on_meta)
    for node in graph.nodes:
        fill.parameters(node)
        record_formats(node)
    graph.meta["mase"].parameters["common"] = graph_metadata(graph)
    ops = Counter(node.meta["mase"]["common"]["mase_op"] for node in graph.nodes)
    return graph, {"nodes": len(graph.nodes), "mase_ops": dict(ops)}


class Filler:
    """Writes the common section of each node."""

    def __init__(self, modules: Mapping[str, nn.Module], add_value: bool) -> None:
        self.modules = modules
        self.add_value = add_value
        self.snapshots = TensorSnapshots() if add_value else None

    def arguments(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record what goes into a call."""
        if not node.op.startswith("call_"):
            return
        common = common_of(node)
        module = self.modules[str(node.target)] if node.op == "call_module" else None
        named = named_arguments(node, common["mase_op"], module, args, kwargs)
        common["args"] = {name: self.entry(value) for name, value in named}

    def entry(self, value: Any) -> Any:
        """A tensor's record, nothing known of a node's, and any other value bare."""
        if isinstance(value, Tensor):
            return tensor_entry(value, self.snapshots)
        return dict(UNKNOWN) if stands_for_tensor(value) else value

    def results(self, node: fx.Node, result: Any) -> None:
        """Record what comes out."""
        common_of(node)["results"] = result_entries(result, self.snapshots)

    def parameters(self, node: fx.Node) -> None:
        """Record the parameters of a layer, after the arguments of the call."""
        if node.op == "call_module":
            for name, parameter in module_parameters(self.modules[str(node.target)]):
                common_of(node)["args"][name] = parameter_entry(parameter, self.add_value)


def common_of(node: fx.Node) -> CommonMetadata:
    """The common section of a node."""
    section: CommonMetadata = node.meta["mase"]["common"]
    return section


def graph_metadata(graph: MaseGraph) -> Any:
    """The inputs and outputs of the whole graph: names of nodes, and their records by name."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    outputs = [node for node in graph.nodes if node.op == "output"]
    return {
        "nodes_in": [user.name for node in inputs for user in node.users],
        "nodes_out": [source.name for node in outputs for source in node.all_input_nodes],
        "args": {node.name: common_of(node)["results"]["data_out_0"] for node in inputs},
        "results": {k: v for node in outputs for k, v in common_of(node)["results"].items()},
    }


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
        return {
            "args": statistics_places([name.replace("data_out", "data_in") for name in results])
        }
    found: SoftwareMetadata = {}
    if node.op.startswith("call_"):
        names = [name for name, entry in common["args"].items() if not bare(entry)]
        module = node.meta["mase"].module
        buffers = [] if module is None else [name for name, _ in module_buffers(module)]
        found["args"] = statistics_places(names + buffers)
    if results or "args" not in found:
        found["results"] = statistics_places(results)
    return found


def statistics_places(names: list[str]) -> dict[str, Any]:
    """A place for statistics under each name."""
    return {name: {"stat": {}} for name in names}
