"""The pass equalise: channels between two layers scaled to like ranges, by powers of two.

What lies between may only be what gives twice the result for twice the input: then one layer can
give half of a channel and the next one can take it twice. By powers of two nothing is rounded, so
the float network computes the numbers that it did.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quantized import QuantizedModule, own_shell
from chop.ops.op import Reads, op_of_node
from chop.passes.base import Info, transform_pass
from chop.passes.graph.transforms.fusion import CONVOLUTIONS, LINEAR

LAYERS = (*CONVOLUTIONS, *LINEAR)
ROUNDS = 10
"""Pairs are gone through several times: a layer is the second of one and the first of another."""


class Pair(NamedTuple):
    """Two layers, of which the second reads nothing but the channels of the first."""

    first: str
    second: str


@transform_pass("equalise", requires=("common",))
def equalise_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Scale the channels between two layers by powers of two, so that their weights are alike.

    Between them may be activations and pools that give twice the result for twice the input. The
    network computes what it did, to the last bit but for the smallest numbers; run it before
    quantising. `info` has the pairs of layers and how many channels of each were scaled.
    """
    pairs = list(pairs_of(graph))
    for target in {target for pair in pairs for target in pair}:
        replace_layer(graph, target)
    scaled: Counter[Pair] = Counter()
    for _ in range(ROUNDS):
        moved = 0
        for pair in pairs:
            count = equalise_pair(*(graph.model.get_submodule(name) for name in pair))
            scaled[pair] = max(scaled[pair], count)
            moved += count
        if not moved:
            break
    return graph, {"equalised": {f"{a} → {b}": scaled[Pair(a, b)] for a, b in pairs}}


def pairs_of(graph: MaseGraph) -> Iterator[Pair]:
    """Yield the pairs of layers between which channels can be scaled."""
    modules = graph.modules
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")

    def is_layer(node: fx.Node) -> bool:
        found = modules.get(str(node.target)) if node.op == "call_module" else None
        is_own = type(found) in LAYERS and not isinstance(found, QuantizedModule)
        return is_own and calls[str(node.target)] == 1

    for node in graph.nodes:
        if not is_layer(node):
            continue
        reader = node
        while len(reader.users) == 1:
            (reader,) = reader.users
            op = op_of_node(reader, modules)
            if is_layer(reader):
                first, second = (modules[str(each.target)] for each in (node, reader))
                if fits(first, second):
                    yield Pair(str(node.target), str(reader.target))
                break
            if op is None or not (op.homogeneous or op.reads is Reads.SAME):
                break


def fits(first: Any, second: Any) -> bool:
    """Return True if the second layer has a column of weights for each channel of the first."""
    groups = getattr(second, "groups", 1)
    return bool(first.weight.shape[0] == second.weight.shape[1] * groups)


def replace_layer(graph: MaseGraph, target: str) -> None:
    """Give a graph its own copy of a layer, as the given model keeps its weights."""
    layer: Any = graph.model.get_submodule(target)
    own: Any = own_shell(layer)
    for name in ("weight", "bias"):
        kept = getattr(layer, name, None)
        if kept is not None:
            setattr(own, name, nn.Parameter(kept.detach().clone(), kept.requires_grad))
    graph.model.set_submodule(target, own)


def equalise_pair(first: Any, second: Any) -> int:
    """Scale the channels between two layers; return of how many the scale is not one."""
    groups = getattr(second, "groups", 1)
    rows = first.weight.detach().flatten(1).abs().amax(1)
    shape = second.weight.shape
    spread = second.weight.detach().reshape(groups, -1, *shape[1:])  # group, output, input, places
    columns = spread.abs().flatten(3).amax((1, 3)) if spread.dim() > 3 else spread.abs().amax(1)
    scale = nearest_powers((rows / columns.reshape(-1)).sqrt())
    with torch.no_grad():
        first.weight /= scale.reshape(-1, *(1,) * (first.weight.dim() - 1))
        if first.bias is not None:
            first.bias /= scale
        by_column = scale.reshape(groups, 1, shape[1], *(1,) * (len(shape) - 2))
        second.weight.copy_((spread * by_column).reshape(shape))
    return int((scale != 1).sum())


def nearest_powers(scale: Tensor) -> Tensor:
    """Return the nearest powers of two; one where a channel has no weights at all."""
    found = torch.exp2(scale.log2().round())
    return torch.where(found.isfinite() & (found > 0), found, 1.0)
