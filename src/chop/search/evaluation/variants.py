"""One graph, run with any of its nodes quantised, without copying it.

Each trial of a search differs from earlier ones in a few nodes. The result of a node is a function
of its own configuration and of the results that go into it, so it is kept under just that: a node
whose inputs and configuration were seen before is not computed again. Nothing is ever written to
the graph, its modules or the kept results.
"""

import copy
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import OUTPUT, QuantConfig
from chop.nn.quantized import QuantizedModule, quantize_module, quantized_function
from chop.nn.rounding import rounded
from chop.numerics import NumberFormat
from chop.ops.lookup import op_of_node, writes_in_place
from chop.ops.op import Op
from chop.search.evaluation.reuse import Remembered, bytes_of

ACTIVATION_BYTES = 512 * 2**20
WEIGHT_BYTES = 512 * 2**20
RUNS_KEPT = 100
"""Results of how many runs are worth keeping; those of a small network never come to the limit."""
KEYS_KEPT = 100_000
FIXED = ("placeholder", "get_attr", "output")

Quants = Mapping[str, tuple[Hashable, QuantConfig]]
"""The quantised nodes by name: their configuration, and a text that stands for it."""


@dataclass(frozen=True)
class Step:
    """One node, with what it needs from the others."""

    node: fx.Node
    op: Op | None
    module: nn.Module | None
    inputs: tuple[int, ...]
    """Places of the nodes it reads."""
    plain: bool
    """Whether it is called with one argument, the result of another node."""
    overwrites: bool
    """Whether it is a function that stores its result in its first argument."""
    simple_layer: bool
    """Whether it is a layer of one input whose parameters are its own and that nobody watches."""
    parameters: tuple[str, ...]
    """The parameters of the layer that take part in its operation."""


def make_step(
    node: fx.Node, modules: Mapping[str, nn.Module], places: Mapping[fx.Node, int]
) -> Step:
    """A node with all that is the same for every run."""
    op = op_of_node(node, modules)
    module = modules[str(node.target)] if node.op == "call_module" else None
    one = len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs
    return Step(
        node,
        op,
        module,
        tuple(places[source] for source in node.all_input_nodes),
        one and node.op != "output",
        module is None and op is not None and _is_in_place(node, op, None),
        op is not None and module is not None and len(op.inputs) == 1 and _is_bare(module),
        tuple(n for n in op.params if getattr(module, n, None) is not None) if op else (),
    )


def _last(steps: list[Step]) -> int:
    """The place of the node whose result is that of the graph: the output, or what it hands on."""
    (end,) = steps[-1].node.args
    return steps[-1].inputs[0] if isinstance(end, fx.Node) else len(steps) - 1


def _is_bare(module: nn.Module) -> bool:
    """Whether a call of a module is a call of its `forward`, on parameters that it holds itself."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return (
        not any(hooks) and not parametrize.is_parametrized(module) and not list(module.children())
    )


class Variants:
    """A graph in evaluation mode whose nodes can be quantised anew for every run."""

    def __init__(self, graph: MaseGraph) -> None:
        modules = graph.modules
        places = {node: place for place, node in enumerate(graph.nodes)}
        self.model = graph.model
        self.steps = [make_step(node, modules, places) for node in graph.nodes]
        self.activations: Remembered[Any] = Remembered(0)
        self.weights: Remembered[Tensor] = Remembered(WEIGHT_BYTES)
        self._last = _last(self.steps)
        self._names = [step.node.name for step in self.steps]
        self._placeholders = [p for p, s in enumerate(self.steps) if s.node.op == "placeholder"]
        self._keys: dict[Hashable, int] = {}
        self._batches: set[Hashable] = set()
        self._calls: dict[Hashable, Callable[..., Any]] = {}

    def run(self, quants: Quants, batch: Hashable, inputs: tuple[Tensor, ...]) -> Any:
        """The output for `inputs`, which `batch` names: the same name, the same inputs."""
        self._make_room()
        keys = self._keys_of(quants, batch)
        given = iter(inputs)
        values: dict[int, Any] = {place: next(given) for place in self._placeholders}
        result = self._value(self._last, keys, values, quants)
        if batch not in self._batches:
            self._batches.add(batch)
            room = self.activations.budget + RUNS_KEPT * bytes_of(values)
            self.activations.budget = min(room, ACTIVATION_BYTES)
        return result

    def _make_room(self) -> None:
        if len(self._keys) > KEYS_KEPT:
            self._keys.clear()
            self.activations.clear()

    def _keys_of(self, quants: Quants, batch: Hashable) -> list[int]:
        """For each node a number that stands for everything its result depends on."""
        keys: list[int] = []
        known = self._keys
        for place, step in enumerate(self.steps):
            quant = quants.get(self._names[place])
            sources = tuple([keys[source] for source in step.inputs]) or batch
            key = (place, quant[0] if quant else None, sources)
            keys.append(known.setdefault(key, len(known)))
        return keys

    def _value(self, last: int, keys: list[int], values: dict[int, Any], quants: Quants) -> Any:
        """The result of a node: one that is kept, else computed from those before it."""
        needed = [last]
        while needed:
            place = needed[-1]
            if place in values:
                needed.pop()
                continue
            kept = self.activations.get(keys[place])
            if kept is not None:
                values[place] = kept
                continue
            missing = [source for source in self.steps[place].inputs if source not in values]
            if missing:
                needed += missing
                continue
            result = self._compute(self.steps[place], keys, values, quants)
            values[place] = result
            self.activations.put(keys[place], result, bytes_of(result))
        return values[last]

    def _compute(self, step: Step, keys: list[int], values: dict[int, Any], quants: Quants) -> Any:
        node = step.node
        if step.plain and not step.overwrites:
            quant = quants.get(node.name)
            if quant is not None and step.simple_layer and not quant[1].bypass:
                source = step.inputs[0]
                fmt = quant[1].operands.get(step.op.inputs[0]) if step.op else None
                return self._layer(step, quant[1], self._input(fmt, keys[source], values[source]))
            call, x = self._call(step, quant), values[step.inputs[0]]
            if quant is None and step.simple_layer:
                return call.forward(x)  # type: ignore[attr-defined]
            return call(x)
        if node.op == "get_attr":
            return _attribute(self.model, str(node.target))
        by_node = dict(zip(node.all_input_nodes, (values[i] for i in step.inputs), strict=True))
        args: Any = fx.map_arg(node.args, by_node.__getitem__)
        if node.op == "output":
            return args[0]
        kwargs: Any = fx.map_arg(node.kwargs, by_node.__getitem__)
        if step.overwrites:
            args = (args[0].clone(), *args[1:])
        return self._call(step, quants.get(node.name))(*args, **kwargs)

    def _layer(self, step: Step, quant: QuantConfig, x: Tensor) -> Any:
        """What `QuantizedModule` computes, without making a module ready for it.

        The float layer is called on a rounded input, with rounded parameters in the place of its
        own, as there.
        """
        key = (step.node.name, "")
        if key not in self._calls:
            self._calls[key] = self._made(step, None)
        layer: Any = self._calls[key]
        for name in step.parameters:
            fmt = quant.operands.get(name)
            own = layer._parameters[name]
            layer.__dict__[name] = own if fmt is None else self._weight(step, name, fmt, own)
        return rounded(quant.operands.get(OUTPUT), type(layer).forward(layer, x))

    def _input(self, fmt: NumberFormat | None, key: int, value: Any) -> Any:
        """The result with this key, rounded; layers and trials ask for the same few formats."""
        if fmt is None or not isinstance(value, Tensor):
            return rounded(fmt, value)
        found = self.activations.get((key, fmt))
        if found is None:
            found = rounded(fmt, value)
            self.activations.put((key, fmt), found, found.nbytes)
        return found

    def _weight(self, step: Step, name: str, fmt: NumberFormat, weight: Tensor) -> Tensor:
        """A rounded parameter; parameters do not change during a search."""
        key = (step.node.target, name, fmt)
        found = self.weights.get(key)
        if found is None:
            found = fmt(weight)
            self.weights.put(key, found, found.nbytes)
        return found

    def _call(self, step: Step, quant: tuple[Hashable, QuantConfig] | None) -> Callable[..., Any]:
        key = (step.node.name, quant[1].name if quant else None)
        if key not in self._calls:
            self._calls[key] = self._made(step, quant[1] if quant else None)
        call = self._calls[key]
        if quant is None:
            return call
        if isinstance(call, QuantizedModule):
            if call.quant is not quant[1]:
                call.quant = quant[1]
            return call
        return partial(call, config=quant[1])

    def _made(self, step: Step, quant: QuantConfig | None) -> Callable[..., Any]:
        """What a node calls, in floating point or in one kind of format; parameters are shared."""
        target: Any = step.node.target
        if step.module is not None:
            assert quant is None or step.op is not None
            module: Any = copy.copy(step.module)
            if quant is not None and step.op is not None:
                module = quantize_module(step.module, step.op, quant)
            if getattr(module, "inplace", False):
                module.inplace = False  # what it would overwrite may be a kept result
            return module  # type: ignore[no-any-return]
        if quant is not None and step.op is not None:
            return quantized_function(step.op, quant.name)
        if step.node.op == "call_method":
            return lambda tensor, *args, **kwargs: getattr(tensor, target)(*args, **kwargs)
        return target  # type: ignore[no-any-return]


def can_vary(graph: MaseGraph) -> bool:
    """Whether every node is a function of its inputs alone, so that `Variants` can run it.

    A layer that the table of operations does not know may keep a state; a node that writes into a
    value that others read ties them together; a layer that is quantised already is left to the
    quantise pass.
    """
    modules = graph.modules
    for node in graph.nodes:
        if node.op in FIXED:
            continue
        op = op_of_node(node, modules)
        module = modules[str(node.target)] if node.op == "call_module" else None
        if op is None or isinstance(module, QuantizedModule):
            return False
        if _is_in_place(node, op, module) and not _alone(node, modules):
            return False
    return True


def _is_in_place(node: fx.Node, op: Op, module: nn.Module | None) -> bool:
    if module is not None:
        return bool(getattr(module, "inplace", False))
    return writes_in_place(node) or bool(op.bind(node.args, node.kwargs).get("inplace", False))


def _alone(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether nobody else reads what an in-place node overwrites, also not through a view."""
    source = node.args[0] if node.args else None
    while isinstance(source, fx.Node):
        if len(source.users) > 1 or source.op == "get_attr":
            return False
        op = op_of_node(source, modules)
        if op is None or op.quantizable:
            return True
        source = source.all_input_nodes[0] if source.all_input_nodes else None
    return True


def _attribute(model: nn.Module, target: str) -> Any:
    owner, _, name = target.rpartition(".")
    return getattr(model.get_submodule(owner), name)
