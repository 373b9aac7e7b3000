"""The shapes that pass through a graph, from its metadata or from a run that calculates nothing."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.passes.graph.analysis.add_metadata.arguments import bare
from chop.passes.graph.analysis.add_metadata.entries import result_entries

Results = dict[fx.Node, Mapping[str, Any]]
"""What each node gives, as the `results` of common metadata say it."""
QUICK = 2e9
"""Parameters times input elements up to which a model runs in a second or less."""


class Fact(NamedTuple):
    """What has to be known of a tensor to count with it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def facts(entries: Mapping[str, Any]) -> list[Fact]:
    """The tensors among the results of a node."""
    tensors = (entry for entry in entries.values() if not bare(entry))
    return [Fact(tuple(entry["shape"]), entry["torch_dtype"]) for entry in tensors]


def observe(graph: MaseGraph, dummy_in: Mapping[str, Any] | None) -> Results:
    """The results of every node: of a run on `dummy_in`, else those that metadata recorded."""
    if dummy_in is not None:
        return run_shapes(graph, dummy_in)
    return {node: recorded_results(node) for node in graph.nodes}


def recorded_results(node: fx.Node) -> Mapping[str, Any]:
    """The results in the common metadata of a node."""
    record = node.meta.get("mase")
    results: Mapping[str, Any] = {} if record is None else record["common"].get("results", {})
    if not results or any(entry.get("shape") is None for entry in results.values()):
        raise GraphError(
            f"the shape of node {node.name!r} is not known: run add_common_metadata_analysis_pass "
            "with dummy_in first, or give dummy_in to this pass"
        )
    return results


def run_shapes(graph: MaseGraph, inputs: Mapping[str, Any]) -> Results:
    """The results of every node of a run; of a large model nothing is calculated if possible."""
    results: Results = {}

    def keep(node: fx.Node, result: Any) -> None:
        results[node] = result_entries(result, None)

    values = with_values(graph, inputs)
    if is_quick(graph, values):
        run_graph(graph, values, after=keep)
        return results
    try:
        run_graph(graph, inputs, after=keep, on_meta=True)
    except GraphError:  # some operation looks at values
        run_graph(graph, values, after=keep)
    return results


def is_quick(graph: MaseGraph, inputs: Mapping[str, Any]) -> bool:
    """Whether running the model takes less time than running it without values.

    The estimate is high: hardly a layer uses each parameter once for each element of the input.
    """
    elements = sum(value.numel() for value in inputs.values() if isinstance(value, Tensor))
    parameters = sum(parameter.numel() for parameter in graph.model.parameters())
    return elements * max(parameters, 1) <= QUICK


def with_values(graph: MaseGraph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs, zeros standing in for those that have only a shape."""
    device = next((parameter.device for parameter in graph.model.parameters()), None)
    return {
        name: torch.zeros_like(value, device=device)
        if isinstance(value, Tensor) and value.is_meta
        else value
        for name, value in inputs.items()
    }


def batch_size(results: Results) -> int | None:
    """The leading dimension that all tensors fed to the model share, if they do."""
    fed = [fact for node in placeholders(results) for fact in facts(results[node]) if fact.shape]
    sizes = {fact.shape[0] for fact in fed}
    return sizes.pop() if len(sizes) == 1 else None


def inputs_of_batch(results: Results, batch: int) -> dict[str, Any]:
    """Inputs like those observed, with another leading dimension."""
    return {node.name: resized(results[node], batch) for node in placeholders(results)}


def resized(entries: Mapping[str, Any], batch: int) -> Any:
    """What a placeholder takes: zeros, or the value itself if it is no tensor."""
    tensors = facts(entries)
    if not tensors:
        return entries["data_out_0"]["value"]
    (shape, dtype), *_ = tensors
    # One zero, seen many times: it takes no memory and, unlike a meta tensor, can be computed with.
    return torch.zeros((), dtype=dtype).expand((batch, *shape[1:]) if shape else ())


def placeholders(results: Results) -> list[fx.Node]:
    """The nodes through which the model is fed."""
    return [node for node in results if node.op == "placeholder"]
