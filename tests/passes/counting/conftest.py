"""Counting a module on inputs of given shapes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ops.op import op_of_module
from chop.passes.graph import count_operations_analysis_pass

Counted = Callable[..., dict[str, Any]]


def is_layer(module: nn.Module) -> bool:
    return op_of_module(module) is not None


def names_of_inputs(graph: MaseGraph) -> list[str]:
    return [node.name for node in graph.nodes if node.op == "placeholder"]


@pytest.fixture
def counted() -> Counted:
    """`counted(module, shape or tensor, …)` is the information of the pass."""

    def run(module: nn.Module, *inputs: Any, **pass_args: Any) -> dict[str, Any]:
        # fx would look inside a single layer; in a container it stays whole.
        graph = MaseGraph(nn.Sequential(module) if is_layer(module) else module)
        tensors = [x if isinstance(x, Tensor) else torch.zeros(x) for x in inputs]
        dummy_in = dict(zip(names_of_inputs(graph), tensors, strict=True))
        _, info = count_operations_analysis_pass(
            graph, {"dummy_in": dummy_in, "report": False, **pass_args}
        )
        return info

    return run
