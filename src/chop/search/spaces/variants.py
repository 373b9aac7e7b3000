"""One graph, run with any of its nodes quantised, without copying it.

Each trial of a search differs from earlier ones in a few nodes. The result of a node is a function
of its configuration and of the results that go into it, so it is kept under just that: a node
whose inputs and configuration were seen before is not computed again. Nothing is ever written to
the graph, its modules or the kept results.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.forward import NoCache, Operation, compute, operation_of_layer, round_value
from chop.nn.function import function_parts
from chop.nn.quant_config import QuantConfig
from chop.nn.quantized import QuantizedModule, own_shell, quantize_module
from chop.nn.quantizers import Rounder
from chop.ops.op import Op, aten_name, is_aten
from chop.search.spaces.reuse import Remembered, count_bytes

ACTIVATION_BYTES = 512 * 2**20
WEIGHT_BYTES = 512 * 2**20
RUNS_KEPT = 100
"""Results of how many runs are worth keeping; those of a small network never come to the limit."""
KEYS_KEPT = 100_000
FIXED = ("placeholder", "get_attr", "output")

Quants = Mapping[str, tuple[Hashable, QuantConfig]]
"""The quantised nodes by name: their configuration, and a text that stands for it."""


@dataclass(frozen=True)
class VariantStep:
    """One node, with all that is the same for every run."""

    node: fx.Node
    name: str
    op: Op | None
    call: Callable[..., Any]
    """What computes it in floating point; it leaves its arguments as they are."""
    layer: nn.Module | None
    operation: Operation | None
    """How a layer computes whose parameters are its own and that nobody watches."""
    inputs: tuple[int, ...]
    """Places of the nodes it reads."""
    plain: bool
    """Whether it is called with one argument, the result of another node."""
    overwrites: bool
    """Whether it is a function that stores its result in its first argument."""

    def arguments(self, values: dict[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that results of other nodes make; one to be overwritten is a copy."""
        node = self.node
        by_node = dict(zip(node.all_input_nodes, (values[i] for i in self.inputs), strict=True))
        args: Any = fx.map_arg(node.args, by_node.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, by_node.__getitem__)
        return (args[0].clone(), *args[1:]) if self.overwrites else args, kwargs


def make_step(
    node: fx.Node, modules: Mapping[str, nn.Module], places: Mapping[fx.Node, int]
) -> VariantStep:
    """Return what is needed to run a node."""
    found = NodeCall.of(node, modules)
    op, layer, operation = found.op, None, None
    call = fixed_value(node, modules) if node.op in FIXED else found.in_float
    if found.module is not None:
        layer = call = not_in_place(own_shell(found.module))
        if op is not None and _is_bare(layer):
            operation, call = operation_of_layer(op, type(layer)), layer.forward
    overwrites = layer is None and op is not None and found.in_place
    one = len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs
    inputs = tuple(places[source] for source in node.all_input_nodes)
    return VariantStep(
        node, node.name, op, call, layer, operation, inputs, one and not overwrites, overwrites
    )


def fixed_value(node: fx.Node, modules: Mapping[str, nn.Module]) -> Callable[..., Any]:
    """A function that gives the value of a node that calls nothing."""
    if node.op == "get_attr":
        owner, _, name = str(node.target).rpartition(".")
        return partial(getattr, modules[owner], name)
    return lambda result: result


def _last(steps: list[VariantStep]) -> int:
    """The place of the node whose result is that of the graph: the output, or what it hands on."""
    (end,) = steps[-1].node.args
    return steps[-1].inputs[0] if isinstance(end, fx.Node) else len(steps) - 1


def _is_bare(module: nn.Module) -> bool:
    """Return whether a call of a module is one of its `forward`, on parameters of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return (
        not any(hooks) and not parametrize.is_parametrized(module) and not list(module.children())
    )


class TrialCache(NoCache):
    """The parts of a trial's forward pass that trials before it have computed.

    Parameters do not change during a search, so each is rounded to a format once. The results of
    nodes are known by the key of the node: layers and trials ask for the same few formats of them.
    """

    def __init__(self, activations: Remembered[Any]) -> None:
        self.activations = activations
        self.weights: Remembered[Tensor] = Remembered(WEIGHT_BYTES)
        self.keys: dict[int, int] = {}
        """The key of each result of the present run, by the identity of the result."""
        self._twins: dict[nn.Module, nn.Module] = {}

    def data(self, fmt: Rounder | None, value: Any) -> Any:
        key = None if fmt is None else self.keys.get(id(value))
        if key is None:
            return round_value(fmt, value)
        found = self.activations.get((key, fmt))
        if found is None:
            found = round_value(fmt, value)
            self.activations.put((key, fmt), found, count_bytes(found))
        return found

    def weight(self, layer: nn.Module, name: str, fmt: Rounder, weight: Tensor) -> Tensor:
        key = (layer, name, fmt)
        found = self.weights.get(key)
        if found is None:
            found = fmt(weight)
            self.weights.put(key, found, found.nbytes)
        return found

    def float_twin(self, layer: nn.Module) -> nn.Module:
        if layer not in self._twins:
            self._twins[layer] = own_shell(layer)
        return self._twins[layer]


def not_in_place(module: Any) -> Any:
    """The module, made to leave its input as it is: that may be a kept result."""
    if getattr(module, "inplace", False):
        module.inplace = False
    return module


class Variants:
    """A graph in evaluation mode whose nodes can be quantised otherwise in every run."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        modules = graph.modules
        places = {node: place for place, node in enumerate(graph.nodes)}
        self.steps = [make_step(node, modules, places) for node in graph.nodes]
        self.activations: Remembered[Any] = Remembered(0)
        self.cache = TrialCache(self.activations)
        self.last = _last(self.steps)
        self._placeholders = [p for p, s in enumerate(self.steps) if s.node.op == "placeholder"]
        self._keys: dict[Hashable, int] = {}
        self._batches: set[Hashable] = set()
        self._modules: dict[Hashable, QuantizedModule] = {}

    def run(self, quants: Quants, batch: Hashable, inputs: tuple[Tensor, ...]) -> Any:
        """The output for `inputs`, which `batch` names: the same name, the same inputs."""
        if batch not in self._batches:
            self.graph.check_inputs(inputs)
        self._make_room()
        keys = self._keys_of(quants, batch)
        given = dict(zip(self._placeholders, inputs, strict=False))
        run = VariantRun(self, keys, given, quants)
        result = run.value()
        if batch not in self._batches:
            self._batches.add(batch)
            room = self.activations.budget + RUNS_KEPT * run.bytes
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
            quant = quants.get(step.name)
            sources = tuple([keys[source] for source in step.inputs]) or batch
            key = (place, quant[0] if quant else None, sources)
            keys.append(known.setdefault(key, len(known)))
        return keys

    def compute(self, step: VariantStep, values: dict[int, Any], quants: Quants) -> Any:
        """The result of a node from those that it reads."""
        args, kwargs = ((values[step.inputs[0]],), {}) if step.plain else step.arguments(values)
        found = quants.get(step.name)
        if found is None or found[1].bypass or step.op is None:
            return step.call(*args, **kwargs)
        quant = found[1]
        if step.operation is not None:
            return compute(step.operation, quant.operands, self.cache, args, kwargs, step.layer)
        if step.layer is not None:
            return self._quantise(step.layer, step.op, quant)(*args, **kwargs)
        parts = function_parts(step.op, quant.name)
        # fx records private arguments, which the quantise pass drops too.
        named = {key: value for key, value in kwargs.items() if not key.startswith("_")}
        return parts.call(quant, args, named, cache=self.cache)

    def _quantise(self, layer: nn.Module, op: Op, quant: QuantConfig) -> QuantizedModule:
        """A layer that has hooks, parametrisations or layers in it, in one kind of format."""
        key = (layer, quant.name)
        if key not in self._modules:
            self._modules[key] = quantize_module(layer, op, quant)
        module = self._modules[key]
        if module.quant is not quant:
            module.quant = quant
        return module


class VariantRun:
    """One run of a graph: results are held until nothing is left that reads them."""

    def __init__(
        self, variants: Variants, keys: list[int], values: dict[int, Any], quants: Quants
    ) -> None:
        self.variants, self.keys, self.quants = variants, keys, quants
        self.values = values
        self.bytes = 0
        """Of all results, kept or computed."""
        self.readers: dict[int, int] = {}
        """How many nodes are yet to read a result."""

    def value(self) -> Any:
        """The result of the graph."""
        last, steps = self.variants.last, self.variants.steps
        self.variants.cache.keys = {}
        for place, value in self.values.items():
            self._hold(place, value)
        for place in self._places_to_compute(last):
            step = steps[place]
            result = self.variants.compute(step, self.values, self.quants)
            self.variants.activations.put(self.keys[place], result, count_bytes(result))
            self._hold(place, result)
            for source in step.inputs:
                self.readers[source] -= 1
                if not self.readers[source] and source != last:
                    self._drop(source)
        return self.values[last]

    def _places_to_compute(self, last: int) -> list[int]:
        """Take what is kept, and return the places that are to be computed, in their order."""
        wanted: set[int] = set()
        asked = [last]
        while asked:
            place = asked.pop()
            if place in self.values or place in wanted:
                continue
            result = self.variants.activations.get(self.keys[place])
            if result is not None:
                self._hold(place, result)
                continue
            wanted.add(place)
            for source in self.variants.steps[place].inputs:
                self.readers[source] = self.readers.get(source, 0) + 1
                asked.append(source)
        return sorted(wanted)

    def _hold(self, place: int, result: Any) -> None:
        self.values[place] = result
        self.bytes += count_bytes(result)
        self.variants.cache.keys[id(result)] = self.keys[place]

    def _drop(self, place: int) -> None:
        """Let go of a result; another may get its identity."""
        known, result = self.variants.cache.keys, self.values.pop(place)
        if known.get(id(result)) == self.keys[place]:  # else a later node has given it on
            del known[id(result)]


def can_vary(graph: MaseGraph) -> bool:
    """Return whether every node is a function of its inputs alone, so that `Variants` can run it.

    A layer that the table of operations does not know may keep a state; a node that writes into a
    value that others read ties them together; a layer that is quantised already is left to the
    quantise pass. Operators of torch say themselves whether they write or draw numbers.
    """
    modules = graph.modules
    for node in graph.nodes:
        if node.op in FIXED:
            continue
        call = NodeCall.of(node, modules)
        known = call.op is not None and not is_aten(node)
        if not (known or is_pure(node)) or isinstance(call.module, QuantizedModule):
            return False
        if any(len(each.users) > 1 or each.op == "get_attr" for each in call.overwritten_nodes):
            return False
    return True


def is_pure(node: fx.Node) -> bool:
    """Return whether a node calls an operator that neither writes to its arguments nor draws."""
    target: Any = node.target
    if node.op == "call_method":
        name = target
    elif is_aten(node):
        name = aten_name(target)
    else:
        name = getattr(target, "__name__", "")
        if target not in (getattr(torch, name, None), getattr(F, name, None)):
            return False
    packet: Any = getattr(torch.ops.aten, name, None)
    forms = [getattr(packet, each) for each in packet.overloads()] if packet else []
    drawn = torch.Tag.nondeterministic_seeded
    return bool(forms) and not any(
        drawn in each.tags or (each._schema.is_mutable and "out" not in each._overloadname)
        for each in forms
    )
