"""Freezing: a network that has learned its formats, as one with plain formats."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.learned import LearnedWidths
from chop.nn.quant_config import QuantConfig
from chop.nn.quantized import QuantizedModule
from chop.numerics import FORMATS, Integer, NumberFormat
from chop.numerics.int_tensor import IntTensor
from chop.numerics.trained import TrainedData
from chop.passes.base import Info, transform_pass
from chop.passes.graph.transforms.quantize.plan import Plan
from chop.passes.graph.transforms.quantize.quantize import apply_plan


@transform_pass("freeze", requires=("common",))
def freeze_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Replace trained formats with plain ones that compute the same bits in evaluation.

    Widths and binary points become the trained ones, for each channel or element where they differ.
    Weights without bits are zero, and so is an input channel that no weight of a layer reads. The
    graph is changed in place; `info` has the class or function of each frozen node.
    """
    modules = graph.modules
    plan: Plan = {
        node: frozen_config(node, module)
        for node in graph.nodes
        if (module := learning_module(node, modules)) is not None
    }
    if not plan:
        raise GraphError("pass 'freeze': no operation of this graph has a format that learns")
    widths = LearnedWidths.of(graph.model)
    if widths is not None:
        widths.remove()
    return graph, {"frozen": apply_plan(graph, plan)["quantized"]}


def learning_module(node: fx.Node, modules: dict[str, nn.Module]) -> QuantizedModule | None:
    """The module that a node calls, if it has quantisers."""
    module = modules[str(node.target)] if node.op == "call_module" else None
    if isinstance(module, QuantizedModule) and module.quantizers_by_role:
        return module
    return None


def frozen_config(node: fx.Node, module: QuantizedModule) -> QuantConfig:
    """The plain formats of a layer or function."""
    formats = {role: fmt for role, fmt in module.frozen.items() if is_there(node, module, role)}
    kinds = {type(fmt) for fmt in formats.values()}
    if len(kinds) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise GraphError(f"pass 'freeze': node {node.name!r} has formats of several kinds: {names}")
    if module.op.has_weight_matrix and "weight" in module.operation.params:
        formats["data_in"] = without_unread(formats, module)
    (kind,) = kinds
    name = next(name for name, fmt in FORMATS.items() if fmt is kind)
    return replace(module.quant, name=name, operands=formats)


def is_there(node: fx.Node, module: QuantizedModule, role: str) -> bool:
    """True if an operand takes part; one of which nothing is known is an error, unless optional."""
    if role in module.operation.params:
        return getattr(module, role, None) is not None
    found = module.quantizers_by_role.get(role)
    if not isinstance(found, TrainedData) or found.usable or module.bypass:
        return True
    if role in module.op.optional and not found.seen:
        return False
    raise GraphError(
        f"pass 'freeze': {role} of node {node.name!r} has seen no values, or some that are NaN or "
        "infinite: train, or calibrate with LearnedWidths(model).calibrate(batches)"
    )


def without_unread(formats: dict[str, NumberFormat], module: Any) -> NumberFormat:
    """The format of the input, without bits for channels all of whose weights are zero."""
    data = formats["data_in"]
    if not isinstance(data, Integer) or not isinstance(data.width, IntTensor):
        return data
    weight: Tensor = formats["weight"](module.weight.detach())
    outputs, inputs = weight.shape[:2]
    groups = getattr(module, "groups", 1)
    by_group = weight.reshape(groups, outputs // groups, inputs, -1) != 0
    read = by_group.any(3).any(1).reshape(data.width.shape).cpu().numpy()
    return data.model_copy(update={"width": IntTensor(np.where(read, data.width.array, 0))})
