"""Names for what goes into a node: `data_in_0`, `weight`, `dim`, `shape_1` and so on."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.nn.quantized import QuantizedModule
from chop.nn.quantizers import QUANTIZERS
from chop.passes.graph.analysis.add_metadata.classify import target_name

PARAMETER_NAMES = ("weight", "bias", "running_mean", "running_var")
# Functions that neither Python nor ATen has a signature for.
OTHER_SIGNATURES = {"getitem": ("input", "index"), "getattr": ("input", "attribute")}


def named_arguments(
    node: fx.Node, op: str, module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a call under the names that metadata uses, in the order of the call.

    Tensors are called `data_in_0`, `data_in_1`, …, except for the parameters that a function such
    as `F.linear` takes, which keep their name. Other arguments have the name the callee gives them.

    Args:
        op: the MASE operation, whose signature stands in where a function has none.
        args: values, or nodes where nothing was run; a node counts as a tensor.
    """
    inputs = 0
    if hasattr(node.target, "op"):  # a quantised function, whose `config` is no operand
        kwargs = {name: value for name, value in kwargs.items() if name != "config"}
    for name, value in [*positional(node, op, module, args), *kwargs.items()]:
        for part_name, part in parts(name, value):
            if not is_tensor(part):
                yield part_name, part
            elif node.op == "call_function" and name in PARAMETER_NAMES:
                yield name, part
            else:
                yield f"data_in_{inputs}", part
                inputs += 1


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor, or a node that stands for one."""
    return isinstance(value, Tensor | fx.Node)


def parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A sequence with tensors in it, as in `torch.cat`, taken apart; anything else whole."""
    if isinstance(value, list | tuple) and any(is_tensor(item) for item in value):
        for index, item in enumerate(value):
            yield f"{name}_{index}", item
    else:
        yield name, value


def positional(
    node: fx.Node, op: str, module: nn.Module | None, args: tuple[Any, ...]
) -> Iterator[tuple[str, Any]]:
    """Positional arguments with their names; `view(8, -1)` gives `shape_0` and `shape_1`."""
    names, variadic = signature_of(node, op, module, len(args))
    for index, value in enumerate(args):
        if variadic is not None and index >= len(names):
            yield f"{variadic}_{index - len(names)}", value
        else:
            yield names[index] if index < len(names) else f"arg_{index}", value


def signature_of(
    node: fx.Node, op: str, module: nn.Module | None, count: int
) -> tuple[tuple[str, ...], str | None]:
    """Names of the first arguments of the callee, and the name of its starred one, if any."""
    if module is not None:
        kind = module.base if isinstance(module, QuantizedModule) else type(module)
        return python_signature(kind.forward, skip_self=True)
    target = node.target
    if inspect.isfunction(target) and not takes_any(target):
        return python_signature(target)
    found = aten_signature(target_name(target), count)
    return found if found[0] else aten_signature(op, count)


@functools.cache
def takes_any(function: Callable[..., Any]) -> bool:
    """Whether a function's signature says nothing: it is all `*args`."""
    return python_signature(function)[0] == ()


@functools.cache
def python_signature(
    function: Callable[..., Any], skip_self: bool = False
) -> tuple[tuple[str, ...], str | None]:
    """The positional names of a Python function and the name of its `*args`."""
    parameters = list(inspect.signature(function).parameters.values())[int(skip_self) :]
    starred = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds), next(iter(starred), None)


@functools.cache
def aten_signature(name: str, count: int) -> tuple[tuple[str, ...], str | None]:
    """The same for an ATen operator called with `count` positional arguments.

    A list at the end may be written out, as in `x.view(8, -1)`.
    """
    if name in OTHER_SIGNATURES:
        return OTHER_SIGNATURES[name], None
    schemas = list(aten_schemas(name))
    for schema in schemas:
        names = [argument_name(a) for a in schema.arguments if not a.kwarg_only]
        if len(names) >= count and not is_list(schema.arguments[count - 1]):
            return tuple(names), None
    for schema in schemas:
        names = [argument_name(a) for a in schema.arguments if not a.kwarg_only]
        if len(names) > 1 and is_list(schema.arguments[len(names) - 1]):
            return tuple(names[:-1]), names[-1]
    return (), None


def aten_schemas(name: str) -> Iterator[Any]:
    """The schemas of the overloads of an ATen operator; none if there is no such operator."""
    packet = getattr(torch.ops.aten, name, None)
    for overload in () if packet is None else packet.overloads():
        yield getattr(packet, overload)._schema


def is_list(argument: Any) -> bool:
    """Whether a schema's argument is a list."""
    return isinstance(argument.type, torch.ListType)


def argument_name(argument: Any) -> str:
    """ATen says `size` where the methods' documentation says `shape`."""
    return "shape" if argument.name == "size" else str(argument.name)


def module_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters by the names the layer knows them by, parametrised (pruned) ones included."""
    seen = set()
    for name, parameter in module.named_parameters():
        plain = plain_name(name)
        if plain not in seen and not name.startswith(f"{QUANTIZERS}."):
            seen.add(plain)
            yield plain, parameter if plain == name else attribute(module, plain)


def module_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that are data: no call counters, no masks and no state of a quantiser."""
    for name, buffer in module.named_buffers():
        if name.startswith(f"{QUANTIZERS}."):
            continue
        if not name.endswith("num_batches_tracked") and "parametrizations." not in name:
            yield name, buffer


def plain_name(name: str) -> str:
    """`parametrizations.weight.original` is the `weight`."""
    before, found, after = name.partition("parametrizations.")
    return before + after.partition(".")[0] if found else name


def attribute(module: nn.Module, name: str) -> Tensor:
    """An attribute by its dotted name."""
    owner, _, last = name.rpartition(".")
    value: Tensor = getattr(module.get_submodule(owner), last)
    return value


def bare(value: Mapping[str, Any] | Any) -> bool:
    """Whether an entry of `args` is a bare argument rather than the record of a tensor."""
    return not (isinstance(value, dict) and "precision" in value)
