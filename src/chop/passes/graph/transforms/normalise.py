"""The preprocessing of rows as the first nodes of the graph."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph, MaseMetadata
from chop.passes.base import Info, transform_pass
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    software_of,
)
from chop.passes.graph.transforms.fusion import recorded_result_shape
from chop.preprocessing import Preprocessing

Step = tuple[str, Callable[..., Any], tuple[float, ...]]


@transform_pass("normalise")
def normalise_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Make the scaling of features part of the graph, so that it takes raw features.

    The new nodes repeat the scaling of the training rows, operation by operation in float32, so the
    network computes the same bits. The graph is marked, and its rows are no longer scaled.
    """
    known = graph.preprocessing
    if known is None:
        raise GraphError(
            "the graph does not say how the rows were scaled that it was trained on: train it here "
            "and load its checkpoint, or set graph.preprocessing"
        )
    if known.in_graph:
        raise GraphError("the graph scales its rows itself already: normalise runs once")
    source = only_input(graph)
    example = raw_example(source, known)
    added = insert(graph, source, steps_of(known), known)
    graph.model.recompile()
    graph.preprocessing = replace(known, in_graph=True)
    record(graph, added, {str(source.target): example} if example is not None else None)
    return graph, {"nodes": [node.name for node in added]}


def only_input(graph: MaseGraph) -> fx.Node:
    """The node of the only input that is used."""
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise GraphError(f"the graph has {len(inputs)} inputs; normalise needs one, the features")
    found: fx.Node = inputs[0]
    return found


def steps_of(known: Preprocessing) -> list[Step]:
    """The operations on rows, in their order."""
    divided: list[Step] = [("divisor", torch.div, (known.divisor,))]
    shifted: list[Step] = [("mean", torch.sub, known.mean), ("scale", torch.div, known.scale)]
    return [*(divided if known.divisor != 1 else []), *shifted]


def insert(
    graph: MaseGraph, source: fx.Node, steps: list[Step], known: Preprocessing
) -> list[fx.Node]:
    """Put nodes between the input and all that reads it; the nodes."""
    dims = len(recorded_result_shape(source) or ()) or (2 if known.kind == "features" else 4)
    users = list(source.users)
    device = next((each.device for each in graph.model.parameters()), torch.device("cpu"))
    added: list[fx.Node] = []
    place, value = source, source
    for name, function, numbers in steps:
        target = f"normalise_{name}"
        if hasattr(graph.model, target):
            raise GraphError(f"the model already has an attribute {target!r}")
        # A number in the call would be divided by in another way on a GPU: by its inverse.
        constants = torch.tensor(numbers).reshape(-1, *[1] * (dims - 2))
        graph.model.register_buffer(target, constants.to(device))
        with graph.fx_graph.inserting_after(place):
            constant = graph.fx_graph.create_node("get_attr", target)
        with graph.fx_graph.inserting_after(constant):
            place = graph.fx_graph.call_function(function, (value, constant))
        value = place
        added += [constant, place]
    for user in users:
        user.replace_input_with(source, value)
    return added


def raw_example(source: fx.Node, known: Preprocessing) -> Tensor | None:
    """Rows as they were measured, of the shape that metadata has of the input; None without it."""
    shape = recorded_result_shape(source)
    if shape is None:
        return None
    value = source.meta["mase"]["common"]["results"]["data_out_0"].get("value")
    if value is None or value.is_meta:
        return torch.empty(shape, device="meta")
    dims = (-1, *[1] * (len(shape) - 2))
    mean, scale = (torch.tensor(each).reshape(dims) for each in (known.mean, known.scale))
    measured: Tensor = (value.cpu() * scale + mean) * known.divisor
    return measured


def record(graph: MaseGraph, added: list[fx.Node], inputs: dict[str, Tensor] | None) -> None:
    """Give new nodes the metadata that the others have."""
    for node in added:
        node.meta["mase"] = MaseMetadata(node)
    if inputs is None:
        return
    with_values = not any(value.is_meta for value in inputs.values())
    has_software = any(node.meta["mase"]["software"] for node in graph.nodes)
    add_common_metadata_analysis_pass(graph, {"dummy_in": inputs, "add_value": with_values})
    for node in added:
        if has_software:
            node.meta["mase"].parameters["software"] = software_of(node)
