"""Batch normalisation folded into the layer before it."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.masks import (
    weight_mask,
    with_weight_mask,
    without_weight_mask,
)
from chop.nn.quantized import QuantizedModule, own_shell
from chop.passes.base import Info, transform_pass
from chop.passes.graph.analysis.metadata_entries import parameter_entry

logger = logging.getLogger("chop")

CONVOLUTIONS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
}
LINEAR: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: nn.BatchNorm1d}

Fuse = Callable[..., tuple[nn.Parameter, nn.Parameter]]
TRAINING = (
    "Batch norms %s were in training mode; the fused layers compute what they compute in evaluation"
)


@transform_pass("conv_bn_fusion")
def conv_bn_fusion_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Fold each batch normalisation that follows a convolution into it.

    The result equals the model in evaluation mode, which uses running statistics.
    """
    return graph, warn_of_norms(fuse(graph, CONVOLUTIONS, fuse_conv_bn_weights))


@transform_pass("linear_bn_fusion", requires=("common",))
def linear_bn_fusion_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Fold each batch normalisation that follows a linear layer into it.

    The result equals the model in evaluation mode, which uses running statistics.
    """
    return graph, warn_of_norms(fuse(graph, LINEAR, fuse_linear_bn_weights))


def warn_of_norms(info: Info) -> Info:
    """Warn of norms that computed something else until now; return the information."""
    if info["was_training"]:
        logger.warning(TRAINING, ", ".join(info["was_training"]))
    return info


def fuse(graph: MaseGraph, pairs: dict[type[nn.Module], type[nn.Module]], how: Fuse) -> Info:
    """Fold what can be folded; which norm went into which layer, and why others did not."""
    modules = graph.modules
    calls = Counter(modules[str(n.target)] for n in graph.nodes if n.op == "call_module")
    fused: dict[str, str] = {}
    skipped: dict[str, str] = {}
    training = []
    for norm in list(graph.nodes):
        layer = followed_layer(norm, modules, pairs)
        if layer is None:
            continue
        reason = fusion_obstacle(layer, norm, modules, calls)
        if reason is not None:
            skipped[norm.name] = reason
            continue
        if modules[str(norm.target)].training:
            training.append(norm.name)
        fused[layer.name] = norm.name
        fold(graph, layer, norm, how)
    graph.model.delete_all_unused_submodules()
    graph.model.recompile()
    return {"fused": fused, "skipped": skipped, "was_training": training}


def followed_layer(
    node: fx.Node, modules: dict[str, nn.Module], pairs: dict[type[nn.Module], type[nn.Module]]
) -> fx.Node | None:
    """The layer whose result `node` normalises, if the two are a pair."""
    if node.op != "call_module" or len(node.all_input_nodes) != 1:
        return None
    source = node.all_input_nodes[0]
    if source.op != "call_module":
        return None
    layer, norm = modules[str(source.target)], modules[str(node.target)]
    is_pair = any(isinstance(layer, a) and isinstance(norm, b) for a, b in pairs.items())
    return source if is_pair else None


def fusion_obstacle(
    layer_node: fx.Node,
    norm_node: fx.Node,
    modules: dict[str, nn.Module],
    calls: Counter[nn.Module],
) -> str | None:
    """The reason why a layer and the norm after it must stay apart; None if there is none."""
    layer: Any = modules[str(layer_node.target)]
    norm: Any = modules[str(norm_node.target)]
    channels = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    shape = recorded_result_shape(layer_node)
    # Of a linear layer with more dimensions, batch norm normalises another one than the features.
    wrong_dim = isinstance(layer, nn.Linear) and (shape is None or len(shape) != 2)
    obstacles = {
        f"{layer_node.name} is used by other nodes too": len(layer_node.users) > 1,
        "a layer that is called several times": calls[layer] > 1 or calls[norm] > 1,
        "no running statistics": norm.running_mean is None,
        "quantised: fuse first, then quantise": any(
            isinstance(module, QuantizedModule) for module in (layer, norm)
        ),
        f"{layer_node.name} has {channels} channels": norm.num_features != channels,
        f"{layer_node.name} gives {shape}, not rows of features": wrong_dim,
    }
    return next((reason for reason, in_the_way in obstacles.items() if in_the_way), None)


def recorded_result_shape(node: fx.Node) -> list[int] | None:
    """The shape of what a node gives, if metadata has it."""
    results = node.meta["mase"]["common"].get("results", {})
    shape: list[int] | None = results.get("data_out_0", {}).get("shape")
    return shape


def fold(graph: MaseGraph, layer_node: fx.Node, norm_node: fx.Node, how: Fuse) -> None:
    """Put a layer with the norm's arithmetic in the place of both nodes."""
    target = str(layer_node.target)
    norm: Any = graph.model.get_submodule(str(norm_node.target))
    layer = graph.model.get_submodule(target)
    graph.model.set_submodule(target, fused_layer(layer, norm, how))
    norm_node.replace_all_uses_with(layer_node)
    move_records(graph, layer_node, norm_node)
    graph.fx_graph.erase_node(norm_node)


def fused_layer(layer: Any, norm: Any, how: Fuse) -> nn.Module:
    """A new layer that computes what `layer` and then `norm` do."""
    channels = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    weight, bias = how(layer.weight, layer.bias, *channels)
    mask = weight_mask(layer)
    new: Any = own_shell(without_weight_mask(layer))
    new.weight = nn.Parameter(weight.detach(), weight.requires_grad)
    new.bias = nn.Parameter(bias.detach(), bias.requires_grad)
    # Each channel is multiplied by a number, so zeros stay where they are.
    return new if mask is None else with_weight_mask(new, mask)


def move_records(graph: MaseGraph, layer_node: fx.Node, norm_node: fx.Node) -> None:
    """The layer now gives what the norm gave, with another weight and bias."""
    layer = graph.model.get_submodule(str(layer_node.target))
    common, software = (layer_node.meta["mase"][section] for section in ("common", "software"))
    for section in ("common", "software"):
        theirs = norm_node.meta["mase"][section].get("results")
        if theirs is not None:
            layer_node.meta["mase"][section]["results"] = theirs
    if "args" in common:
        with_values = "value" in common["args"].get("weight", {})
        for name in ("weight", "bias"):
            common["args"][name] = parameter_entry(getattr(layer, name), with_values)
    if "args" in software:
        software["args"].setdefault("bias", {"stat": {}})
    whole = graph.meta["mase"]["common"]
    for key in ("nodes_in", "nodes_out"):
        if key in whole:
            renamed = (layer_node.name if n == norm_node.name else n for n in whole[key])
            whole[key] = list(dict.fromkeys(renamed))
