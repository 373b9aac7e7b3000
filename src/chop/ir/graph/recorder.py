"""Run a graph once and record what flows through it; the model is left as it was, bit for bit."""

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from chop.errors import ChopError, GraphError
from chop.nn.forward import INTEGERS
from chop.nn.quantized import QuantizedModule

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph


# Objects of these packages are left alone: a logger or a trainer is not a part of a model, and a
# quantised layer has a cache that is worth keeping.
NOT_THE_USERS = {"torch", "chop", "lightning", *sys.stdlib_module_names}
SCALARS = (bool, int, float, complex, str, bytes)
REGISTRIES = ("_parameters", "_buffers", "_modules")


class KeptTensor(NamedTuple):
    """A tensor, the memory it uses and a copy of what is in it."""

    tensor: Tensor
    memory: Tensor
    copy: Tensor
    requires_grad: bool

    def restore(self) -> None:
        """Give the tensor its memory and its values back; an untouched one stays untouched."""
        if self.tensor.data_ptr() != self.memory.data_ptr():  # `weight.data = other`
            self.tensor.data = self.memory
        if not same_bits(self.memory, self.copy):
            with torch.no_grad():
                self.tensor.copy_(self.copy)
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)


class KeptContainer(NamedTuple):
    """A dictionary, list or set, and what was in it."""

    path: str
    container: Any
    contents: list[Any]

    def restore(self) -> None:
        """Fill the container as it was, in the same order."""
        if not self.container and not self.contents:  # most dictionaries of hooks are empty
            return
        now = contents_of(self.container)
        if len(now) != len(self.contents) or not all(map(same_entry, now, self.contents)):
            self.container.clear()
            fill = getattr(self.container, "update", None) or self.container.extend
            fill(self.contents)

    def find_changes(self) -> list[str]:
        """The paths of entries that are not what they were."""
        now = contents_of(self.container)
        if not isinstance(self.container, dict):
            same = len(now) == len(self.contents) and all(map(same_value, now, self.contents))
            return [] if same else [self.path]
        before, after = dict(self.contents), dict(now)
        return [
            dotted_name(self.path, key)
            for key in before | after
            if (key in before) != (key in after) or not same_value(before[key], after[key])
        ]


class ModelSnapshot:
    """A model's attributes, hooks, modes and tensors, and the state of random numbers.

    It looks into dictionaries, lists and sets that a model holds, and into objects of the user's
    own classes. Tensors are copied, because a write through ``.data`` leaves no other sign.
    """

    def __init__(self, model: nn.Module) -> None:
        self.containers: list[KeptContainer] = []
        self.tensors: list[KeptTensor] = []
        # A scripted module does not show its tensors among its attributes.
        self._remember([*model.named_parameters(), *model.named_buffers(), ("", model)])
        devices = {kept.tensor.get_device() for kept in self.tensors if kept.tensor.is_cuda}
        self.cuda = [(device, torch.cuda.get_rng_state(device)) for device in sorted(devices)]
        self.torch = torch.get_rng_state()
        self.python, self.numpy = random.getstate(), np.random.get_state()

    def _remember(self, todo: list[tuple[str, Any]]) -> None:
        seen: set[int] = set()
        while todo:
            path, value = todo.pop()
            if value is None or type(value) in SCALARS or id(value) in seen:
                continue
            seen.add(id(value))
            tensor, container = tensor_of(value), container_of(value)
            if tensor is not None:
                kept = KeptTensor(
                    tensor, tensor.data, tensor.detach().clone(), tensor.requires_grad
                )
                self.tensors.append(kept)
            elif container is not None:
                contents = contents_of(container)
                self.containers.append(KeptContainer(path, container, contents))
                if isinstance(container, dict):
                    todo.extend((dotted_name(path, key), item) for key, item in contents)
                else:
                    todo.extend((path, item) for item in contents)
            elif type(value) is tuple:
                todo.extend((path, item) for item in value)

    def restore(self) -> None:
        """Make the model what it was."""
        for container in self.containers:
            container.restore()
        for tensor in self.tensors:
            tensor.restore()
        for device, state in self.cuda:
            torch.cuda.set_rng_state(state, device)
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)

    def find_changes(self) -> list[str]:
        """The attributes that are not what they were, by dotted name; values are not looked at."""
        return [path for kept in self.containers for path in kept.find_changes()]

    def drew_random_numbers(self) -> bool:
        """True if a random number was drawn on the CPU."""
        drawn = random.getstate() != self.python
        return drawn or not torch.equal(torch.get_rng_state(), self.torch)


def tensor_of(value: Any) -> Tensor | None:
    """A tensor or array of numbers that has values to lose, as a tensor."""
    if isinstance(value, Tensor):
        return None if value.is_meta or is_lazy(value) else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.flags.writeable:
        return torch.from_numpy(value)
    return None


def container_of(value: Any) -> Any:
    """The part of a value that can change: itself, or the dictionary of its attributes."""
    if isinstance(value, dict | list | set | deque):
        return value
    if isinstance(value, Tensor):
        return None
    if isinstance(value, nn.Module):
        # Running a lazy layer is what makes it a layer: that is not undone.
        lazy = any(map(is_lazy, value.parameters(recurse=False)))
        return None if lazy else vars(value)
    package = type(value).__module__.partition(".")[0]
    if package in NOT_THE_USERS and not isinstance(value, SimpleNamespace):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None


def contents_of(container: Any) -> list[Any]:
    """The entries of a container in order: pairs for a dictionary."""
    return list(container.items() if isinstance(container, dict) else container)


def dotted_name(path: str, name: Any) -> str:
    """A dotted name; torch's own dictionaries of parts are no step of it."""
    if name in REGISTRIES:
        return path
    return f"{path}.{name}" if path else str(name)


def same_entry(one: Any, other: Any) -> bool:
    """True if two entries of a container are the same objects."""
    if type(one) is tuple and type(other) is tuple and len(one) == len(other) == 2:
        return one[0] is other[0] and one[1] is other[1]
    return one is other


def same_value(one: Any, other: Any) -> bool:
    """True if two entries are the same object or equal numbers or texts."""
    return one is other or (type(one) is type(other) and type(one) in SCALARS and one == other)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """True if two tensors hold the same bits: -0.0 differs from 0.0, NaN equals itself."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if one.layout is torch.strided and not one.is_quantized:
        integers = INTEGERS[one.element_size()]
        one, other = one.view(integers), other.view(integers)
    return torch.equal(one, other)


@contextmanager
def preserve_model(model: nn.Module) -> Iterator[ModelSnapshot]:
    """Evaluation mode without gradients; afterwards the model is as before, bit for bit.

    Modes are restored module by module, because parts of a model may be frozen on purpose.
    """
    before = ModelSnapshot(model)
    modes = [(module, module.training) for module in model.modules()]
    set_evaluation(model)
    try:
        # What is recorded in inference mode could not be used with gradients later.
        with torch.inference_mode(False), torch.no_grad():
            yield before
    finally:
        for module, training in modes:
            module.training = training
        before.restore()


def set_evaluation(model: nn.Module) -> None:
    """Put every module into evaluation mode; `eval()` may do more, and exported ones refuse it."""
    for module in model.modules():
        module.training = False


Before = Callable[[fx.Node, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[fx.Node, Any], None]
Instead = Mapping[fx.Node, Callable[..., Any]]
"""What computes some nodes in place of what they call."""


class Recorder(fx.Interpreter):
    """An interpreter that shows each node's arguments before it runs and its result after.

    Arguments are shown *before* the node runs: an in-place operation overwrites them.
    """

    def __init__(
        self,
        model: fx.GraphModule,
        before: Before | None = None,
        after: After | None = None,
        instead: Instead | None = None,
    ) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.before = before
        self.after = after
        self.instead = instead or {}

    def run_undisturbed(self, inputs: list[Any]) -> Any:
        """Run the whole graph on copies: a first layer in place would overwrite the inputs."""
        with preserve_model(self.module):
            return self.run_on_copies(inputs)

    def run_on_copies(self, inputs: list[Any]) -> Any:
        """The same where the caller sees to it that the model is left as it was."""
        own = [x.detach().clone() if isinstance(x, Tensor) else x for x in inputs]
        return self.run(*own, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node between the two looks."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if self.before is not None:
            self.before(n, args, kwargs)
        try:
            if n in self.instead:
                result = self.instead[n](*args, **kwargs)
            else:
                result = getattr(self, n.op)(n.target, args, kwargs)
        except ChopError:
            raise
        except Exception as error:
            raise GraphError(node_error(n, args, error)) from error
        if self.after is not None:
            self.after(n, result)
        return result


def node_error(node: fx.Node, args: tuple[Any, ...], error: Exception) -> str:
    """An error that names the node that could not run, its inputs and the reason."""
    shapes = ", ".join(str(tuple(a.shape)) for a in args if isinstance(a, Tensor))
    reason = str(error).strip().partition("\n")[0]
    given = f" on inputs of shape {shapes}" if shapes else ""
    return f"node {node.name!r} ({node.op} {node.target}) cannot run{given}: {reason}"


def run_batches(
    graph: "MaseGraph", batches: Iterable[Mapping[str, Any]], instead: Instead
) -> Iterator[None]:
    """Run the model in evaluation mode on one batch after another; a step for each.

    What `run_graph` does at each call, to leave the model as it was, is done once for all.

    Args:
        instead: what computes some nodes in place of what they call.
    """
    recorder = Recorder(graph.model, instead=instead)
    with preserve_model(graph.model):
        for inputs in batches:
            given = placeholder_values(graph, inputs)
            graph.check_inputs(given)
            recorder.run_on_copies(given)
            yield


def run_graph(
    graph: "MaseGraph",
    inputs: Mapping[str, Any],
    before: Before | None = None,
    after: After | None = None,
    *,
    on_meta: bool = False,
) -> Any:
    """Run the model once in evaluation mode; the model and `inputs` are left as they were.

    Args:
        inputs: values by the name of the argument or of the placeholder node.
        on_meta: compute shapes and dtypes only; nothing is calculated and no weight is copied.
    """
    given = placeholder_values(graph, inputs)
    graph.check_inputs(given)
    if not on_meta:
        return Recorder(graph.model, before, after).run_undisturbed(given)
    twin = meta_twin(graph.model)
    originals = dict(zip(twin.graph.nodes, graph.nodes, strict=True))
    recorder = Recorder(
        twin,
        before and (lambda node, *call: before(originals[node], *call)),
        after and (lambda node, result: after(originals[node], result)),
    )
    with torch.device("meta"):
        return recorder.run_undisturbed(
            [x.detach().to("meta") if isinstance(x, Tensor) else x for x in given]
        )


def meta_twin(model: fx.GraphModule) -> fx.GraphModule:
    """A copy of the model without data: the copying finds a meta tensor in place of each weight.

    Rounding, which keeps shapes and dtypes but looks at values, is bypassed.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    twin = copy.deepcopy(model, memo)
    for module in twin.modules():
        if isinstance(module, QuantizedModule):
            module.bypass = True
    for node in twin.graph.nodes:
        config = node.kwargs.get("config")
        if hasattr(node.target, "op") and isinstance(config, Mapping):
            node.kwargs = {**node.kwargs, "config": {**config, "bypass": True}}
    return twin


def placeholder_values(graph: "MaseGraph", inputs: Mapping[str, Any]) -> list[Any]:
    """A value for each placeholder, in order; defaults of the signature fill what is missing.

    A placeholder may be called by its argument's name or by its node's: fx renames arguments
    that hide a builtin (`input` becomes `input_1`). Where there is one input and one value, the
    name does not matter: data sets call their only column `x`, whatever the model calls it.
    """
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    if len(nodes) == len(inputs) == 1:
        return list(inputs.values())
    known = {name for node in nodes for name in (node.name, argument_name(node))}
    for name in inputs:
        if name not in known and name not in (graph.cf_args or {}):
            wanted = ", ".join(argument_name(node) for node in nodes)
            raise GraphError(
                f"the model has no input {name!r}; its inputs are {wanted} (an argument with a "
                "default is one if MaseGraph is given a tensor for it in example_inputs)"
            )
    return [_value(node, {**(graph.cf_args or {}), **inputs}) for node in nodes]


def argument_name(node: fx.Node) -> str:
    """The name of the argument a placeholder stands for, without the stars of `*args`."""
    return str(node.target).lstrip("*")


def _value(node: fx.Node, inputs: Mapping[str, Any]) -> Any:
    for name in (argument_name(node), node.name):
        if name in inputs:
            return inputs[name]
    if node.args:
        return node.args[0]  # the default of the signature
    raise GraphError(f"no value is given for the model's input {argument_name(node)!r}")
