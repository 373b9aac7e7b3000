"""The pass rotate: what layers read, rotated by a Hadamard matrix so that no channel stands out."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, transform_pass
from chop.passes.graph.transforms.folding import record_again
from chop.passes.graph.transforms.methods.equalise import LAYERS, replace_layer
from chop.passes.graph.transforms.methods.layerwise import CHANNEL
from chop.passes.graph.transforms.methods.scaling import SCALED_NORMS, reader_groups

SIGNS = 7
"""The seed of the signs that come before the Hadamard matrix."""


class RotateArgs(PassArgs):
    """The size of the rotated blocks.

    Args:
        block: the most channels that are rotated together, such as the block of a block format; by
            default the largest power of two that divides the channels.
    """

    block: int | None = Field(default=None, ge=2)


class BlockRotation(nn.Module):
    """Multiplies each block of channels by one orthogonal matrix: signs, and a Hadamard matrix."""

    matrix: Tensor

    def __init__(self, block: int, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("matrix", signed_hadamard(block).float())

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(self.axis, -1)
        blocks = x.reshape(*x.shape[:-1], -1, len(self.matrix))
        rotated: Tensor = blocks @ self.matrix.to(x.dtype)
        return rotated.flatten(-2).movedim(-1, self.axis)


@transform_pass("rotate", requires=("common",))
def rotate_transform_pass(graph: MaseGraph, args: RotateArgs) -> tuple[MaseGraph, Info]:
    """Rotate what linear layers and convolutions read, and turn their weights the same way.

    Each block of channels is multiplied by signs and a Hadamard matrix as the network runs, which
    takes additions alone; weights are multiplied once. The scales of norms go into the layers that
    read them first. The float network computes what it did, up to rounding. `info` has the size of
    the blocks by layer.
    """
    fold_norms(graph)
    modules = graph.modules
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    readers: dict[tuple[fx.Node, int, int], fx.Node] = {}
    found: dict[str, int] = {}
    for node in list(graph.nodes):
        layer: Any = modules.get(str(node.target)) if node.op == "call_module" else None
        if type(layer) not in CHANNEL or calls.count(str(node.target)) > 1:
            continue
        block = block_of(layer, args.block)
        if block < 2 or getattr(layer, "groups", 1) > 1:
            continue
        axis = CHANNEL[type(layer)]
        source = node.all_input_nodes[0]
        if (source, block, axis) not in readers:
            readers[source, block, axis] = insert_rotation(graph, node, source, block, axis)
        node.replace_input_with(source, readers[source, block, axis])
        turn_weights(graph, str(node.target), block)
        found[node.name] = block
    graph.fx_graph.lint()
    graph.model.recompile()
    record_again(graph)
    return graph, {"rotated": found}


def fold_norms(graph: MaseGraph) -> None:
    """Put the scale and the shift of norms into the linear layers that read them."""
    for group in reader_groups(graph):
        norm: Any = graph.model.get_submodule(group.source)
        readers: list[Any] = [graph.model.get_submodule(target) for target in group.layers]
        shift = getattr(norm, "bias", None)
        if isinstance(norm, LAYERS) or not isinstance(norm, SCALED_NORMS):
            continue
        if shift is not None and any(each.bias is None for each in readers):
            continue
        for target in (group.source, *group.layers):
            replace_layer(graph, target)
        own: Any = graph.model.get_submodule(group.source)
        with torch.no_grad():
            for target in group.layers:
                layer: Any = graph.model.get_submodule(target)
                if shift is not None:
                    layer.bias += layer.weight @ own.bias
                layer.weight *= own.weight
            own.weight.fill_(1)
            if shift is not None:
                own.bias.fill_(0)


def block_of(layer: Any, most: int | None) -> int:
    """Return how many channels are rotated together: a power of two that divides all."""
    channels = int(layer.weight.shape[1])
    block = channels & -channels
    while most is not None and block > most:
        block //= 2
    return block


def insert_rotation(
    graph: MaseGraph, node: fx.Node, source: fx.Node, block: int, axis: int
) -> fx.Node:
    """Put a rotation of what a source gives before a node."""
    name = f"{source.name}_rotated_{block}"
    while hasattr(graph.model, name):
        name += "_"
    graph.model.add_module(name, BlockRotation(block, axis))
    with graph.fx_graph.inserting_before(node):
        return graph.fx_graph.call_module(name, (source,))


def turn_weights(graph: MaseGraph, target: str, block: int) -> None:
    """Multiply the input channels of a layer's weights by the matrix of a rotation."""
    replace_layer(graph, target)
    weight: Any = graph.model.get_submodule(target).weight
    matrix = signed_hadamard(block)
    with torch.no_grad():
        wide = weight.double().movedim(1, -1).unflatten(-1, (-1, block)) @ matrix
        weight.copy_(wide.flatten(-2).movedim(-1, 1))


def signed_hadamard(size: int) -> Tensor:
    """Return an orthogonal matrix of equal magnitudes, by Sylvester's rule, with random signs."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    generator = torch.Generator().manual_seed(SIGNS)
    signs = torch.randint(0, 2, (size, 1), generator=generator) * 2.0 - 1
    turned: Tensor = signs * matrix / size**0.5
    return turned
