"""Pruning: zeros in the weights and in the inputs of layers."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.nn.masks import (
    has_input_mask,
    kept_inputs,
    largest_in_groups,
    weight_mask,
    with_input_mask,
    with_weight_mask,
    without_input_mask,
    without_weight_mask,
)
from chop.ops.op import OPS, op_of_node
from chop.passes.base import Info, transform_pass
from chop.passes.graph.transforms.pruning.activations import batches_to_run, input_masks
from chop.passes.graph.transforms.pruning.methods import METHODS, keep_most_important
from chop.passes.graph.transforms.pruning.rules import PruneArgs, SparsityRule
from chop.passes.graph.utils import replace_modules

logger = logging.getLogger("chop")


@transform_pass("prune")
def prune_transform_pass(graph: MaseGraph, args: PruneArgs) -> tuple[MaseGraph, Info]:
    """Set the least important weights and layer inputs to zero.

    The weights of linear layers and convolutions get masks, and with `activation` their inputs too.
    A pruned layer is pruned again from its full weights. `info` has the sparsity achieved: of each
    layer's weights, of all weights, and of each layer's inputs over the given batches.
    """
    info: Info = {}
    if args.weight is not None:
        info["weight"] = prune_weights(graph, args.weight)
    if args.activation is not None:
        info["activation"] = prune_inputs(graph, args)
    return graph, info


@transform_pass("prune_detach_hook")
def prune_detach_hook_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Remove all masks, of weights and of inputs, and keep the zeros in the weights.

    Afterwards layers are plain again: training updates pruned weights, and inputs are not masked.
    """
    modules = graph.modules
    weights = [name for name, module in modules.items() if weight_mask(module) is not None]
    inputs = [name for name, module in modules.items() if has_input_mask(module)]
    plain = {
        modules[name]: without_input_mask(without_weight_mask(modules[name], keep_zeros=True))
        for name in dict.fromkeys([*weights, *inputs])
    }
    replace_modules(graph, plain)
    return graph, {"weight": weights, "activation": inputs}


def prunable_layers(graph: MaseGraph) -> dict[str, nn.Module]:
    """The layers that can be pruned, by the name of the first node that calls them."""
    modules = graph.modules
    found: dict[nn.Module, str] = {}
    for node in graph.nodes:
        op = op_of_node(node, modules) if node.op == "call_module" else None
        if op is not None and op.has_weight_matrix:
            found.setdefault(modules[str(node.target)], node.name)
    if not found:
        prunable = ", ".join(op.name for op in OPS.values() if op.has_weight_matrix)
        raise GraphError(f"nothing to prune: the graph has no {prunable} layer")
    return {name: layer for layer, name in found.items()}


def chosen_layers(graph: MaseGraph, rule: SparsityRule) -> dict[str, nn.Module]:
    """The layers that a rule is for."""
    layers = prunable_layers(graph)
    return {name: layers[name] for name in rule.choose(layers)}


def prune_weights(graph: MaseGraph, rule: SparsityRule) -> Info:
    """Mask the weights of the chosen layers; the sparsity achieved."""
    layers = chosen_layers(graph, rule)
    plain = {name: without_weight_mask(layer) for name, layer in layers.items()}
    masks = weight_masks({name: weight_of(layer) for name, layer in plain.items()}, rule)
    masked = {name: with_weight_mask(layer, masks[name]) for name, layer in plain.items()}
    replace_modules(graph, {layers[name]: layer for name, layer in masked.items()})
    record_weights(graph, masked)
    return sparsity_by_node({name: (int((~m).sum()), m.numel()) for name, m in masks.items()})


def record_weights(graph: MaseGraph, layers: Mapping[str, nn.Module]) -> None:
    """Put the weights with their zeros into the metadata, where values are kept at all."""
    for node in graph.nodes:
        if node.name in layers:
            entry = node.meta["mase"]["common"].get("args", {}).get("weight")
            if entry and "value" in entry:
                entry["value"] = weight_of(layers[node.name]).detach()


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a layer."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def weight_masks(weights: Mapping[str, Tensor], rule: SparsityRule) -> dict[str, Tensor]:
    """A mask for each weight, false where it becomes zero."""
    generator = None if rule.seed is None else torch.Generator().manual_seed(rule.seed)
    by_channel = rule.granularity == "channel"
    scores = {
        name: METHODS[rule.method](w, tuple(range(1, w.dim())) if by_channel else (), generator)
        for name, w in weights.items()
    }
    if rule.pattern is not None:
        kept = [largest_in_groups(part, 1, *rule.pattern) for part in scores.values()]
    elif rule.scope == "global":
        kept = keep_most_important(list(scores.values()), rule.sparsity_of(""))
    else:
        kept = [keep_most_important([s], rule.sparsity_of(name))[0] for name, s in scores.items()]
    return {
        name: full_mask(mask, weights[name])
        for name, mask in zip(scores, kept, strict=True)
    }  # fmt: skip


def full_mask(mask: Tensor, weight: Tensor) -> Tensor:
    """A mask of channels as one of elements, on the device of the weight."""
    shape = mask.shape + (1,) * (weight.dim() - mask.dim())
    return mask.reshape(shape).expand(weight.shape).contiguous().to(weight.device)


def sparsity_by_node(counts: Mapping[str, tuple[int, int]]) -> Info:
    """The sparsity of each node and of all of them; a node left without anything is warned of.

    Args:
        counts: how many values are zero, of how many, by name of the node.
    """
    for name, (zeros, values) in counts.items():
        if zeros == values:
            logger.warning("Pruning leaves nothing of node '%s'", name)
    total = sum(values for _, values in counts.values())
    return {
        "nodes": {name: zeros / max(values, 1) for name, (zeros, values) in counts.items()},
        "total": sum(zeros for zeros, _ in counts.values()) / max(total, 1),
    }


def prune_inputs(graph: MaseGraph, args: PruneArgs) -> Info:
    """Mask the inputs of the chosen layers; the sparsity achieved over the batches."""
    assert args.activation is not None
    layers = chosen_layers(graph, args.activation)
    plain = {name: without_input_mask(layer) for name, layer in layers.items()}
    # Importance is judged by the inputs as they are without any mask.
    replace_modules(graph, {layers[name]: layer for name, layer in plain.items()})
    masks = input_masks(graph, plain, args)
    masked = {}
    for name, layer in plain.items():
        device = weight_of(layer).device
        buffers = {key: buffer.to(device) for key, buffer in masks[name].items()}
        masked[name] = with_input_mask(layer, **buffers)
    replace_modules(graph, {plain[name]: layer for name, layer in masked.items()})
    if args.input_generator is None:
        return {"nodes": {}, "total": None}  # n:m needs no data, so none was asked for
    return sparsity_by_node(zeroed_inputs(graph, masked, args))


def zeroed_inputs(
    graph: MaseGraph, masked: Mapping[str, nn.Module], args: PruneArgs
) -> dict[str, tuple[int, int]]:
    """The number of inputs that masks set to zero, of how many, layer by layer over the batches."""
    found = dict.fromkeys(masked, (0, 0))

    def look(node: fx.Node, inputs: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if node.name in masked:
            x = inputs[0]
            dropped = int((~kept_inputs(masked[node.name], x)).expand_as(x).sum())
            zeros, values = found[node.name]
            found[node.name] = zeros + dropped, values + x.numel()

    for batch in batches_to_run(args):
        run_graph(graph, batch, before=look)
    return found
