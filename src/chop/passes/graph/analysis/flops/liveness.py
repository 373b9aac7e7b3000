"""The elements of each result that are read, worked out backwards on the shapes of one row.

An element is live if the output may depend on it: through functions of single elements, through
movement and sums, and through products whose other factor is not a zero of a constant. Where that
cannot be told, everything is taken to be read.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.call import NodeCall
from chop.lowering.formats import by_element
from chop.ops.op import Reads

Masks = list[Tensor]
"""For each tensor of a result which of its elements are live."""


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in nested containers, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return [value] if isinstance(value, Tensor) else []


class Liveness:
    """The live elements of every result, filled in from the output backwards.

    Args:
        results: what each node gave for one row.
    """

    def __init__(self, nodes: Iterable[fx.Node], results: Mapping[Any, Any]) -> None:
        self.results = results
        self.live: dict[fx.Node, Masks] = {
            node: [torch.zeros(x.shape, dtype=torch.bool) for x in tensors_in(results[node])]
            for node in nodes
        }
        self.varying = varying_nodes(self.live)

    def read(self, node: fx.Node, masks: Masks) -> None:
        """Mark elements of a result that are read."""
        self.live[node] = [one | other for one, other in zip(self.live[node], masks, strict=True)]

    def read_whole(self, nodes: Iterable[fx.Node]) -> None:
        """Mark all elements of results."""
        for node in nodes:
            self.read(node, [torch.ones_like(mask) for mask in self.live[node]])

    def visit(self, call: NodeCall) -> None:
        """Mark what a node reads, its own result being marked."""
        node, op, sources = call.node, call.op, call.node.all_input_nodes
        if node.op == "output" or overwrites_shared(call):
            self.read_whole(sources)
        elif not self.live[node]:  # a plain value: of a shape, or else of what a tensor holds
            self.read_whole(() if op is not None and op.reads is Reads.SHAPE else sources)
        elif any(mask.any() for mask in self.live[node]) and (mixes(call) or not self.follow(call)):
            self.read_whole(sources)

    def follow(self, call: NodeCall) -> bool:
        """Mark the elements that an operation reads; False if no rule tells which they are."""
        node, reads = call.node, Reads.ALL if call.op is None else call.op.reads
        sources = [each for each in node.all_input_nodes if each in self.varying]
        floating = all(x.is_floating_point() for s in sources for x in tensors_in(self.results[s]))
        single = all(isinstance(self.results[each], Tensor) for each in (node, *sources))
        if reads in (Reads.MOVED, Reads.SUMMED) and floating:
            self.read_by_gradient(call)
        elif reads in (Reads.SAME, Reads.PLACE) and single:
            for source in sources:
                self.read(source, [spread_to(self.live[node][0], self.results[source].shape)])
        elif reads is Reads.CHANNEL and single and len(sources) == 1:
            assert call.op is not None
            shape = self.results[sources[0]].shape
            dims = tuple(range(-call.op.dims, 0))
            self.read(sources[0], [self.live[node][0].any(dims, keepdim=True).expand(shape)])
        else:
            return False
        return True

    def read_by_gradient(self, call: NodeCall) -> None:
        """Mark what the gradient of the live elements of a node reaches."""
        node = call.node
        leaves: list[tuple[fx.Node, list[Tensor]]] = []

        def leaf(source: fx.Node) -> Any:
            value = self.results[source]
            if source not in self.varying:
                return value
            made = nested_leaves(value)
            leaves.append((source, tensors_in(made)))
            return made

        args: Any = fx.map_arg(node.args, leaf)
        kwargs: Any = fx.map_arg({k: v for k, v in node.kwargs.items() if k != "config"}, leaf)
        with torch.inference_mode(False), torch.enable_grad():
            results = tensors_in(call.in_float(*args, **kwargs))
            wanted = [mask.to(x.dtype) for mask, x in zip(self.live[node], results, strict=True)]
            flat = [tensor for _, tensors in leaves for tensor in tensors]
            found = iter(torch.autograd.grad(results, flat, wanted, allow_unused=True))
        for source, tensors in leaves:
            grads = [next(found) for _ in tensors]
            self.read(source, [
                torch.zeros(x.shape, dtype=torch.bool) if grad is None else grad != 0
                for x, grad in zip(tensors, grads, strict=True)
            ])  # fmt: skip


def varying_nodes(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes whose results depend on an input of the network."""
    found: set[fx.Node] = set()
    for node in nodes:
        if node.op == "placeholder" or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def mixes(call: NodeCall) -> bool:
    """True if a node rounds its data in a way that elements influence how others are rounded."""
    params = () if call.op is None else call.op.params
    return any(by_element(fmt) for role, fmt in call.formats.items() if role not in params)


def overwrites_shared(call: NodeCall) -> bool:
    """True if a node writes into memory that others than its own readers may read."""
    return any(len(s.users) > 1 or not s.op.startswith("call_") for s in call.overwritten_nodes)


def spread_to(mask: Tensor, shape: torch.Size) -> Tensor:
    """The mask of an operand that was broadcast to the shape of the mask."""
    try:
        return mask.to(torch.float32).sum_to_size(shape) > 0
    except RuntimeError:  # not an operand of that kind
        return torch.ones(shape, dtype=torch.bool)


def nested_leaves(value: Any) -> Any:
    """Zeros to take gradients of, in place of the tensors of a result."""
    if isinstance(value, list | tuple):
        return type(value)(nested_leaves(item) for item in value)
    if isinstance(value, Tensor):
        return torch.zeros(value.shape, dtype=torch.float32, requires_grad=True)
    return value
