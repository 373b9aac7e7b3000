"""The pass add_low_rank: two thin layers beside a quantised one that make up for its error."""

import operator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, transform_pass
from chop.passes.graph.transforms.folding import record_again
from chop.passes.graph.transforms.methods.layerwise import (
    LayerwiseArgs,
    RunningLayer,
    change_layers,
)

LOW, HIGH = "_low", "_high"
LOW_RANK_BITS = 16
"""Bits of the weights of the thin layers, which are numbers of bfloat16."""


class LowRankArgs(LayerwiseArgs):
    """The rows to run, the rank, and where the weights stand unrounded.

    Args:
        rank: columns of the thin matrices.
        reference: the float graph, with nodes of the same names; by default the graph itself.
    """

    rank: int = Field(default=8, ge=1)
    reference: Any = None


@transform_pass("add_low_rank", requires=("common",))
def add_low_rank_transform_pass(graph: MaseGraph, args: LowRankArgs) -> tuple[MaseGraph, Info]:
    """Add the error of rounded weights back as two matrices of a low rank, as LQER does.

    Columns count as much as what they are multiplied by on rows is large. Linear layers and
    convolutions without groups get two layers beside them, in bfloat16, that read what they read.
    `info` has the rank of each.
    """
    thin: dict[str, tuple[Tensor, Tensor]] = {}
    reference = None if args.reference is None else args.reference.model

    def change(call: RunningLayer) -> None:
        fmt = call.format_of("weight")
        if fmt is None or getattr(call.layer, "groups", 1) > 1:
            return
        weight = call.layer.weight.detach()
        whole = weight
        if reference is not None:
            whole = reference.get_submodule(str(call.node.target)).weight.detach()
        error = (whole - fmt.round_to(weight)).double().flatten(1)
        sizes = call.columns()[0].square().mean(1).sqrt()
        thin[call.node.name] = factors(error, sizes, args.rank)

    change_layers(graph, args, change)
    for node in list(graph.nodes):
        if node.name in thin:
            put_beside(graph, node, *thin[node.name])
    graph.fx_graph.lint()
    graph.model.recompile()
    record_again(graph)
    return graph, {"ranks": {name: len(low) for name, (low, _) in thin.items()}}


def factors(error: Tensor, sizes: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return two matrices whose product, the second times the first, is nearest to an error.

    Args:
        sizes: how much each column counts.
    """
    sizes = sizes.clamp(min=float(sizes.max()) * 1e-6 or 1.0)
    left, values, right = torch.linalg.svd(error * sizes, full_matrices=False)
    roots = values[:rank].sqrt()
    return roots[:, None] * right[:rank] / sizes, left[:, :rank] * roots


def put_beside(graph: MaseGraph, node: fx.Node, low: Tensor, high: Tensor) -> None:
    """Put two thin layers beside a node, and add what they give to its result."""
    layer: Any = graph.model.get_submodule(str(node.target))
    rank = len(low)
    first: Any
    second: Any
    if isinstance(layer, nn.Linear):
        first, second = (
            nn.Linear(each.shape[1], each.shape[0], bias=False) for each in (low, high)
        )
    else:
        kind = nn.Conv1d if isinstance(layer, nn.Conv1d) else nn.Conv2d
        first = kind(
            layer.in_channels, rank, layer.kernel_size, layer.stride, layer.padding,
            layer.dilation, bias=False, padding_mode=layer.padding_mode,
        )  # fmt: skip
        second = kind(rank, layer.out_channels, 1, bias=False)
    with torch.no_grad():
        for thin, values in ((first, low), (second, high)):
            thin.weight.copy_(values.reshape(thin.weight.shape).to(torch.bfloat16))
    read, after = node.args[0] if node.args else node.kwargs["input"], node
    for name, thin in ((LOW, first), (HIGH, second)):
        thin.train(layer.training)
        graph.model.add_module(node.name + name, thin)
        with graph.fx_graph.inserting_after(after):
            after = graph.fx_graph.call_module(node.name + name, (read,))
        read = after
    with graph.fx_graph.inserting_after(after):
        total = graph.fx_graph.call_function(operator.add, (node, after))
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
