"""Batch normalisation taken out of a graph: every one becomes part of a layer, or a product.

In evaluation a batch normalisation multiplies each channel by one number and adds another. Where a
layer is before it, the numbers go into its weights; where one is after it that reads nothing but
what was normalised, into those. Everywhere else it becomes a convolution of each channel by itself.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.masks import weight_mask
from chop.nn.quantized import QuantizedModule, own_shell
from chop.ops.table import OPS
from chop.passes.base import Info, transform_pass
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms.fusion import CONVOLUTIONS, LINEAR, fuse, recorded_result_shape

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BY_RANK: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


@transform_pass("fold_normalisation", requires=("common",))
def fold_normalisation_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Take batch normalisation out of a graph, which then computes what it did in evaluation.

    Each goes into the layer before it, else into the one after it, else it becomes a convolution
    of each channel by itself: a multiplication and an addition. `info` has the layer of each norm,
    the norms that became products, and why others stay. Metadata is recorded again.
    """
    before = {**fuse(graph, CONVOLUTIONS, fuse_conv_bn_weights)["fused"]}
    before |= fuse(graph, LINEAR, fuse_linear_bn_weights)["fused"]
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    info: Info = {
        "before": {norm: layer for layer, norm in before.items()},
        "after": {},
        "products": [],
        "skipped": {},
    }
    for node in list(graph.nodes):
        norm = graph.modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(norm, NORMS):
            continue
        reason = obstacle(node, norm, calls)
        if reason is not None:
            info["skipped"][node.name] = reason
        elif (layer := layer_after(graph, node, calls)) is not None:
            info["after"][node.name] = layer.name
            fold_forward(graph, node, layer, *channel_numbers(norm))
        else:
            info["products"].append(node.name)
            put_product(graph, node, *channel_numbers(norm))
    if info["after"] or info["products"]:
        graph.model.delete_all_unused_submodules()
        graph.fx_graph.lint()
        graph.model.recompile()
        record_again(graph)
    return graph, info


def folded_types(model: nn.Module) -> list[str]:
    """Return the operations that batch normalisations of a network may become; none without any."""
    products = [
        product
        for norm, product in zip(NORMS, BY_RANK.values(), strict=True)
        if any(isinstance(each, norm) for each in model.modules())
    ]
    return [op.name for op in OPS.values() if op.module in products]


def obstacle(node: fx.Node, norm: nn.Module, calls: Counter[str]) -> str | None:
    """Return why a batch normalisation has to stay; None if nothing is in the way."""
    if isinstance(norm, QuantizedModule):
        return "quantised: fold first, then quantise"
    if norm.running_mean is None:
        return "no running statistics"
    if calls[str(node.target)] > 1:
        return "a layer that is called several times"
    if recorded_result_shape(node) is None:
        return "the shape of its result is not known"
    return None


def channel_numbers(norm: Any) -> tuple[Tensor, Tensor]:
    """Return what a batch normalisation multiplies each channel by, and what it adds then."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() * scale
    shift = shift if norm.bias is None else shift + norm.bias.detach().double()
    return scale, shift


def layer_after(graph: MaseGraph, node: fx.Node, calls: Counter[str]) -> fx.Node | None:
    """Return the one layer that reads a norm and can take it in exactly, if there is one.

    A convolution with zeros around its input cannot: the zeros would have to be normalised.
    """
    if len(node.users) != 1:
        return None
    (user,) = node.users
    layer: Any = graph.modules.get(str(user.target)) if user.op == "call_module" else None
    kinds = (*CONVOLUTIONS, *LINEAR)
    if type(layer) not in kinds or calls[str(user.target)] > 1 or weight_mask(layer) is not None:
        return None
    if isinstance(layer, nn.Linear):
        rank = len(recorded_result_shape(node) or ())
        return user if rank == 2 else None
    padded = layer.padding == "same" or (layer.padding != "valid" and any(layer.padding))
    return None if padded else user


def fold_forward(
    graph: MaseGraph, node: fx.Node, layer_node: fx.Node, scale: Tensor, shift: Tensor
) -> None:
    """Put a layer that normalises what it reads in the place of a norm and the layer."""
    target = str(layer_node.target)
    layer: Any = graph.model.get_submodule(target)
    weight = layer.weight.detach().double()
    groups = getattr(layer, "groups", 1)
    spread = weight.reshape(groups, -1, *weight.shape[1:])  # group, output, input, places
    shape = (groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    moved = (spread * shift.reshape(shape)).flatten(2).sum(2).flatten()
    bias = moved if layer.bias is None else layer.bias.detach().double() + moved
    new: Any = own_shell(layer)
    kept = layer.weight
    new.weight = nn.Parameter(
        (spread * scale.reshape(shape)).reshape(weight.shape).to(kept.dtype), kept.requires_grad
    )
    new.bias = nn.Parameter(bias.to(kept.dtype), kept.requires_grad)
    graph.model.set_submodule(target, new)
    node.replace_all_uses_with(node.all_input_nodes[0])
    graph.fx_graph.erase_node(node)


def put_product(graph: MaseGraph, node: fx.Node, scale: Tensor, shift: Tensor) -> None:
    """Put a convolution of each channel by itself in the place of a norm.

    Every target knows it, and its weights have a format of their own. Rows are sequences of one
    place for it.
    """
    norm: Any = graph.model.get_submodule(str(node.target))
    dtype, channels = norm.running_mean.dtype, len(scale)
    rank = len(recorded_result_shape(node) or ())
    layer: Any = BY_RANK[max(rank, 3)](channels, channels, 1, groups=channels)
    layer.weight = nn.Parameter(scale.to(dtype).reshape(layer.weight.shape))
    layer.bias = nn.Parameter(shift.to(dtype))
    graph.model.set_submodule(str(node.target), layer.train(norm.training))
    if rank > 2:
        return
    with graph.fx_graph.inserting_before(node):
        longer = graph.fx_graph.call_method("unsqueeze", (node.all_input_nodes[0], -1))
    with graph.fx_graph.inserting_after(node):
        rows = graph.fx_graph.call_method("squeeze", (node, -1))
    node.replace_all_uses_with(rows, delete_user_cb=lambda user: user is not rows)
    node.args = (longer,)


def record_again(graph: MaseGraph) -> None:
    """Record the metadata of a graph whose nodes have changed, on inputs of the same shapes."""
    inputs = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            entry = node.meta["mase"]["common"]["results"]["data_out_0"]
            if "torch_dtype" in entry:
                value = entry.get("value")
                shape, dtype = entry["shape"], entry["torch_dtype"]
                inputs[node.name] = torch.zeros(shape, dtype=dtype) if value is None else value
    has_software = any(node.meta["mase"]["software"] for node in graph.nodes if "mase" in node.meta)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    if has_software:
        add_software_metadata_analysis_pass(graph)
