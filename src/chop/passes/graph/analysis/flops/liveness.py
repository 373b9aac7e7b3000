"""Which elements of each result somebody reads, worked out backwards on the shapes of one row.

An element is live if the output may depend on it: through functions of single elements, through
movement and sums, and through products whose other factor is not a zero of a constant. Where that
cannot be told, everything is taken to be read.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.lowering.builder import by_element
from chop.nn.quantized import QuantizedCall, QuantizedModule, float_module
from chop.ops.op import Op, Reads, op_of_node, writes_in_place
from chop.passes.graph.analysis.flops.operands import formats_of_node

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

    def __init__(
        self, nodes: Iterable[fx.Node], modules: Mapping[str, nn.Module], results: Mapping[Any, Any]
    ) -> None:
        self.modules, self.results = modules, results
        self.live: dict[fx.Node, Masks] = {
            node: [torch.zeros(x.shape, dtype=torch.bool) for x in tensors_in(results[node])]
            for node in nodes
        }
        self.varying = varying_nodes(self.live)

    def read(self, node: fx.Node, masks: Masks) -> None:
        """Somebody reads these elements of a result."""
        self.live[node] = [one | other for one, other in zip(self.live[node], masks, strict=True)]

    def read_whole(self, nodes: Iterable[fx.Node]) -> None:
        """Somebody reads all of these results."""
        for node in nodes:
            self.read(node, [torch.ones_like(mask) for mask in self.live[node]])

    def visit(self, node: fx.Node) -> None:
        """Mark what a node reads, its own result being marked."""
        op, sources = op_of_node(node, self.modules), node.all_input_nodes
        module = self.modules[str(node.target)] if node.op == "call_module" else None
        if node.op == "output" or overwrites_shared(node, self.modules):
            self.read_whole(sources)
        elif not self.live[node]:  # a plain value: of a shape, or else of what a tensor holds
            self.read_whole(() if op is not None and op.reads is Reads.SHAPE else sources)
        elif any(mask.any() for mask in self.live[node]) and not (
            op is not None and not mixes(node, op, module) and self.follow(node, op, module)
        ):
            self.read_whole(sources)

    def follow(self, node: fx.Node, op: Op, module: nn.Module | None) -> bool:
        """Mark the elements that an operation reads; False if no rule tells which they are."""
        sources = [each for each in node.all_input_nodes if each in self.varying]
        floating = all(x.is_floating_point() for s in sources for x in tensors_in(self.results[s]))
        single = all(isinstance(self.results[each], Tensor) for each in (node, *sources))
        if op.reads in (Reads.MOVED, Reads.SUMMED) and floating:
            self.read_by_gradient(node, float_call(node, op, module))
        elif op.reads in (Reads.SAME, Reads.PLACE) and single:
            for source in sources:
                self.read(source, [spread_to(self.live[node][0], self.results[source].shape)])
        elif op.reads is Reads.CHANNEL and single and len(sources) == 1:
            shape = self.results[sources[0]].shape
            dims = tuple(range(-op.dims, 0))
            self.read(sources[0], [self.live[node][0].any(dims, keepdim=True).expand(shape)])
        else:
            return False
        return True

    def read_by_gradient(self, node: fx.Node, call: Callable[..., Any]) -> None:
        """Mark what the gradient of the live elements of a node reaches."""
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
            results = tensors_in(call(*args, **kwargs))
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


def mixes(node: fx.Node, op: Op, module: nn.Module | None) -> bool:
    """Whether a node rounds its data in a way that elements have a say in how others are."""
    formats = formats_of_node(node, module)
    return any(by_element(fmt) for role, fmt in formats.items() if role not in op.params)


def overwrites_shared(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a node writes into memory that others than its own readers may read."""
    module = modules[str(node.target)] if node.op == "call_module" else None
    in_place = getattr(module, "inplace", False) or node.kwargs.get("inplace")
    if not (in_place or writes_in_place(node)):
        return False
    source: Any = node.all_input_nodes[0]
    while len(source.users) == 1 and source.op.startswith("call_"):
        op = op_of_node(source, modules)
        if op is not None and op.reads is not Reads.MOVED:
            return False
        source = source.all_input_nodes[0]  # what may be a view of it
    return True


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


def float_call(node: fx.Node, op: Op, module: nn.Module | None) -> Callable[..., Any]:
    """What computes a node without rounding."""
    if isinstance(module, QuantizedCall) or (module is None and "config" in node.kwargs):
        assert op.function is not None
        return op.function
    if isinstance(module, QuantizedModule):
        return float_module(module)
    if module is not None:
        return module
    target: Any = node.target
    if node.op == "call_method":
        return lambda tensor, *args, **kwargs: getattr(tensor, target)(*args, **kwargs)
    return target  # type: ignore[no-any-return]
