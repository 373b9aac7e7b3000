"""Low-rank adapters beside linear layers: inserted, trained, and folded into their weights.

An adapter is part of the graph: two small linear layers whose result, scaled, is added to that of
the layer beside them. So it is counted, quantised, saved and loaded like everything else.
"""

import logging
import operator
import re
from typing import Any

import torch
from pydantic import AliasChoices, Field, field_validator
from torch import fx, nn

from chop.errors import ConfigError, GraphError
from chop.ir.graph.mase_graph import MaseGraph, metadata_of
from chop.nn.masks import weight_mask
from chop.nn.quantized import QuantizedModule, own_shell
from chop.passes.base import Info, PassArgs, transform_pass

logger = logging.getLogger("chop")

DOWN, DROPPED, UP = "_lora_a", "_lora_dropout", "_lora_b"
"""What the names of the layers of an adapter end in."""


class InsertLoraArgs(PassArgs):
    """The layers that get an adapter, its size, and the other parameters to train.

    Args:
        rank: the number of features between the two layers of an adapter.
        alpha: the output of an adapter is multiplied by ``alpha / rank``.
        dropout: the dropout rate of an adapter's input in training.
        layers: patterns of the names of linear layers; by default all linear layers.
        train: patterns of the names of parameters to train besides the adapters, such as
            ``classifier``; all others are frozen.
    """

    rank: int = Field(8, ge=1)
    alpha: float = Field(8.0, gt=0, validation_alias=AliasChoices("alpha", "lora_alpha"))
    dropout: float = Field(
        0.0, ge=0, lt=1, validation_alias=AliasChoices("dropout", "lora_dropout")
    )
    layers: tuple[str, ...] = ()
    train: tuple[str, ...] = ()

    @field_validator("layers", "train")
    @classmethod
    def _patterns(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in given:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a pattern: {error}") from None
        return given


@transform_pass("insert_lora")
def insert_lora_adapter_transform_pass(
    graph: MaseGraph, args: InsertLoraArgs
) -> tuple[MaseGraph, Info]:
    """Add low-rank adapters to linear layers and freeze other parameters; outputs do not change.

    An adapter starts at zero and learns a low-rank change of the layer's weight. Run
    ``add_common_metadata`` again before passes that need it.
    """
    chosen = _choose_calls(graph, args.layers)
    kept = [name for name, _ in graph.model.named_parameters() if _matches(name, args.train)]
    for pattern in args.train:
        if not any(re.search(pattern, name) for name in kept):
            raise ConfigError(f"pass 'insert_lora': train: no parameter is called {pattern!r}")
    freeze(graph, kept)
    for target in dict.fromkeys(str(node.target) for node in chosen):
        _add_layers(graph.model, target, args)
    for node in chosen:
        _add_nodes(graph, node, args)
    graph.fx_graph.lint()
    graph.model.recompile()
    return graph, {
        "adapters": sorted({str(node.target) for node in chosen}),
        **trainable_parameters(graph.model),
    }


def _choose_calls(graph: MaseGraph, patterns: tuple[str, ...]) -> list[fx.Node]:
    """The calls of linear layers whose names match."""
    modules = graph.modules
    linear = [
        node
        for node in graph.nodes
        if node.op == "call_module" and isinstance(modules[str(node.target)], nn.Linear)
    ]
    if any(str(node.target).endswith(DOWN) for node in linear):
        raise GraphError("pass 'insert_lora': the graph has adapters already: fuse_lora first")
    for pattern in patterns:
        if not any(re.search(pattern, str(node.target)) for node in linear):
            raise ConfigError(f"pass 'insert_lora': layers: no linear layer is called {pattern!r}")
    chosen = [node for node in linear if not patterns or _matches(str(node.target), patterns)]
    if not chosen:
        raise GraphError("pass 'insert_lora': the graph has no linear layer")
    return chosen


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def freeze(graph: MaseGraph, kept: list[str]) -> None:
    """Freeze all parameters but `kept`; the model that the graph was made from is not changed."""
    keep = set(kept)
    parameters = dict(graph.model.named_parameters(remove_duplicate=False))
    twins = {
        id(value): value if name in keep else nn.Parameter(value.detach(), requires_grad=False)
        for name, value in reversed(parameters.items())  # the first name of a shared one decides
    }
    shells: dict[int, nn.Module] = {}
    for name, module in graph.modules.items():  # parents before what is in them
        shell = module
        if name:
            shell = shells.setdefault(id(module), own_shell(module))
            graph.model.set_submodule(name, shell)
        for key, value in shell._parameters.items():
            if value is not None and id(value) in twins:
                shell._parameters[key] = twins[id(value)]


def _add_layers(model: fx.GraphModule, target: str, args: InsertLoraArgs) -> None:
    """The layers of an adapter beside the one at `target`; the second gives zeros at first."""
    layer: Any = model.get_submodule(target)
    place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    down = nn.Linear(layer.in_features, args.rank, bias=False, **place)
    up = nn.Linear(args.rank, layer.out_features, bias=False, **place)
    nn.init.zeros_(up.weight)
    parts = {DOWN: down, UP: up} | ({DROPPED: nn.Dropout(args.dropout)} if args.dropout else {})
    for ending, part in parts.items():
        model.add_submodule(target + ending, part.train(layer.training))


def _add_nodes(graph: MaseGraph, node: fx.Node, args: InsertLoraArgs) -> None:
    """Add the result of the adapter to that of a layer."""
    fx_graph, target = graph.fx_graph, str(node.target)
    path = [*([DROPPED] if args.dropout else []), DOWN, UP]
    value = node.all_input_nodes[0]
    with fx_graph.inserting_after(node):
        total = fx_graph.call_function(operator.add, (node, node))
    new = [total]
    with fx_graph.inserting_before(total):
        for ending in path:
            value = fx_graph.call_module(target + ending, (value,))
            new.append(value)
        scaled = fx_graph.call_function(operator.mul, (value, args.alpha / args.rank))
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    total.args = (node, scaled)
    for each in (*new, scaled):
        metadata_of(each)


def trainable_parameters(model: nn.Module) -> dict[str, int]:
    """The number of parameters, and of those that learn; shared ones count once."""
    return {
        "parameters": sum(value.numel() for value in model.parameters()),
        "trainable": sum(value.numel() for value in model.parameters() if value.requires_grad),
    }


class FuseLoraArgs(PassArgs):
    """The treatment of the other parameters.

    Args:
        unfreeze: make all parameters trainable again; otherwise they stay as they are.
    """

    unfreeze: bool = True


@transform_pass("fuse_lora")
def fuse_lora_weights_transform_pass(
    graph: MaseGraph, args: FuseLoraArgs
) -> tuple[MaseGraph, Info]:
    """Fold each low-rank adapter into the weight of its layer; outputs are equal up to rounding.

    The result is that of evaluation mode, without the dropout of the adapters.
    """
    found = [(node, layer) for node in graph.nodes if (layer := _adapted_call(node)) is not None]
    modules = graph.modules
    for _, layer in found:
        _check(str(layer.target), modules[str(layer.target)])
    left = {t[: -len(UP)] for t in modules if t.endswith(UP)} - {str(n.target) for _, n in found}
    if left:
        raise GraphError(f"the adapter of {min(left)!r} is quantised: fuse first, then quantise")
    fused: dict[str, float] = {}
    for total, layer in found:
        target, scale = str(layer.target), float(total.args[1].args[1])
        if target not in fused:  # a layer that is called twice has one adapter
            _fold(graph.model, target, scale)
        fused[target] = scale
        total.replace_all_uses_with(layer)
    graph.fx_graph.eliminate_dead_code()
    graph.model.delete_all_unused_submodules()
    graph.model.recompile()
    if not fused:
        logger.warning("pass 'fuse_lora': the graph has no adapters")
    if args.unfreeze and fused:
        graph.model.requires_grad_(True)
    return graph, {"fused": sorted(fused), **trainable_parameters(graph.model)}


def _adapted_call(node: fx.Node) -> fx.Node | None:
    """The call of a layer to which `node` adds the result of its adapter."""
    if node.op != "call_function" or node.target is not operator.add or len(node.args) != 2:
        return None
    layer, scaled = node.args
    if not (isinstance(layer, fx.Node) and isinstance(scaled, fx.Node)):
        return None
    if scaled.op != "call_function" or scaled.target is not operator.mul:
        return None
    up = scaled.args[0]
    if not isinstance(up, fx.Node) or {up.op, layer.op} != {"call_module"}:
        return None
    return layer if up.target == f"{layer.target}{UP}" else None


def _check(target: str, layer: nn.Module) -> None:
    """Refuse a layer whose weight is not simply a number for each connection."""
    if isinstance(layer, QuantizedModule):
        raise GraphError(f"layer {target!r} is quantised: fuse first, then quantise")
    if weight_mask(layer) is not None:
        raise GraphError(f"layer {target!r} is pruned: an adapter has no zeros; fuse, then prune")


def _fold(model: fx.GraphModule, target: str, scale: float) -> None:
    """A new layer in place of the one at `target`, with the adapter in its weight."""
    layer: Any = own_shell(model.get_submodule(target))
    down: Any = model.get_submodule(target + DOWN)
    up: Any = model.get_submodule(target + UP)
    with torch.no_grad():
        weight = layer.weight + scale * (up.weight @ down.weight)
    layer.weight = nn.Parameter(weight)
    model.set_submodule(target, layer)
