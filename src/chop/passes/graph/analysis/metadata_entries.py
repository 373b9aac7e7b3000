"""Entries of the metadata of a node: operation, operands, results, and number formats."""

import functools
import inspect
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from chop.ir.call import FLOAT_RECORDS, NodeCall
from chop.ir.graph.mase_graph import ParameterEntry, TensorEntry
from chop.nn.quant_config import OUTPUT
from chop.nn.quantized import QuantizedCall, QuantizedModule
from chop.numerics import NumberFormat
from chop.numerics.int_tensor import ArrayValue
from chop.ops.op import MaseType, aten_name, op_of_node, parameter_roles

UNKNOWN: TensorEntry = {"type": None, "precision": None, "shape": None, "torch_dtype": None}
"""What is recorded of a tensor when the model was not run."""


def classify(node: fx.Node, modules: Mapping[str, nn.Module]) -> tuple[str, str]:
    """The type and the operation; what the table does not know keeps its own name.

    What is not torch's is a node only because the user said so: a `patched_func`. Of torch's, an
    unknown layer is a `module` and any other unknown call a `builtin_func`.
    """
    if node.op in ("placeholder", "output"):
        return node.op, node.op
    if node.op == "get_attr":
        constant = str(node.target).startswith("_tensor_constant")
        return (MaseType.IMPLICIT_FUNC.value, "constant") if constant else (node.op, node.op)
    op = op_of_node(node, modules)
    if op is not None:
        return op.mase_type.value, op.name
    if node.op == "call_module":
        layer = type(modules[str(node.target)])
        kind = MaseType.PATCHED_FUNC if is_users(layer) else MaseType.MODULE
        # `MyBlock2d` is a `my_block2d`.
        return kind.value, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", layer.__name__).lower()
    kind = MaseType.PATCHED_FUNC if is_users(node.target) else MaseType.BUILTIN_FUNC
    return kind.value, target_name(node.target)


def is_users(target: Any) -> bool:
    """True if a function or class is neither torch's nor Python's own."""
    home = getattr(target, "__module__", None) or "torch"  # C functions of torch have none
    return home.partition(".")[0] not in ("torch", "math", "builtins", "_operator")


def target_name(target: Any) -> str:
    """The name of a function or method; of an ATen overload, without the overload."""
    if isinstance(target, OpOverload):
        return aten_name(target)
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


@functools.cache
def dtype_format(dtype: torch.dtype) -> tuple[str, int]:
    """The kind and the width of a torch dtype, in the words of the metadata."""
    if dtype is torch.bool:
        return "bool", 1
    kind = "float" if dtype.is_floating_point else "complex" if dtype.is_complex else "int"
    return kind, dtype.itemsize * 8


class TensorSnapshots:
    """Copies of tensors as they are now; a tensor that has not changed is copied only once."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor; parameters are shared, for they are the model's to keep."""
        if isinstance(tensor, nn.Parameter) or tensor.is_meta:
            return tensor.detach()
        found = self._taken.get(id(tensor))
        # An id is used again once its tensor is gone, and an in-place operation keeps the id.
        if found is None or found[0]() is not tensor or found[1] != tensor._version:
            found = weakref.ref(tensor), tensor._version, tensor.detach().clone()
            self._taken[id(tensor)] = found
        return found[2]


def tensor_entry(tensor: Tensor, snapshots: TensorSnapshots | None) -> TensorEntry:
    """The record of a tensor, with its value if snapshots are taken."""
    kind, width = dtype_format(tensor.dtype)
    entry: TensorEntry = {
        "type": kind,
        "precision": [width],
        "shape": list(tensor.shape),
        "torch_dtype": tensor.dtype,
    }
    if snapshots is not None:
        entry["value"] = snapshots.of(tensor)
    return entry


def parameter_entry(tensor: Tensor, add_value: bool) -> ParameterEntry:
    """The record of a parameter; its value shares the memory of the model's."""
    kind, width = dtype_format(tensor.dtype)
    entry: ParameterEntry = {
        "type": kind,
        "precision": [width],
        "shape": list(tensor.shape),
        "from": None,
    }
    if add_value:
        entry["value"] = tensor.detach()
    return entry


def named_results(result: Any) -> Iterator[tuple[str, Any]]:
    """The named results of a node: the parts of containers with tensors, or the value as it is."""
    leaves = pytree.tree_leaves(result)
    if not any(isinstance(leaf, Tensor) for leaf in leaves):
        leaves = [result]
    for index, leaf in enumerate(leaves):
        yield f"data_out_{index}", leaf


def result_entries(result: Any, snapshots: TensorSnapshots | None) -> dict[str, Any]:
    """The records of what a node gives."""
    return {
        name: tensor_entry(value, snapshots)
        if isinstance(value, Tensor)
        else {"type": type(value).__name__, "shape": [1], "value": value}
        for name, value in named_results(result)
    }


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
    is_function = node.op == "call_function" or isinstance(module, QuantizedCall)
    if hasattr(node.target, "op"):  # a quantised function, whose `config` is not an operand
        kwargs = {name: value for name, value in kwargs.items() if name != "config"}
    for name, value in [*positional(node, op, module, args), *kwargs.items()]:
        for part_name, part in parts(name, value):
            if not stands_for_tensor(part):
                yield part_name, part
            elif is_function and name in PARAMETER_NAMES:
                yield name, part
            else:
                yield f"data_in_{inputs}", part
                inputs += 1


def stands_for_tensor(value: object) -> bool:
    """True if a value is a tensor, or a node that stands for one."""
    return isinstance(value, Tensor | fx.Node)


def parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A sequence with tensors in it, as in `torch.cat`, taken apart; anything else whole."""
    if isinstance(value, list | tuple) and any(stands_for_tensor(item) for item in value):
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
    if isinstance(module, QuantizedCall):
        return aten_signature(op, count)
    if module is not None:
        kind = module.base if isinstance(module, QuantizedModule) else type(module)
        return python_signature(kind.forward, skip_self=True)
    target = node.target
    if inspect.isfunction(target):
        found = python_signature(target)
        if found[0]:  # else its signature says nothing: it is all `*args`
            return found
    found = aten_signature(target_name(target), count)
    return found if found[0] else aten_signature(op, count)


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

    A list at the end may be written out, as in `x.view(8, -1)`. ATen says `size` where the
    documentation of the methods says `shape`.
    """
    if name in OTHER_SIGNATURES:
        return OTHER_SIGNATURES[name], None
    packet = getattr(torch.ops.aten, name, None)
    written_out: tuple[tuple[str, ...], str | None] = (), None
    for overload in () if packet is None else packet.overloads():
        arguments = [a for a in getattr(packet, overload)._schema.arguments if not a.kwarg_only]
        names = tuple("shape" if a.name == "size" else str(a.name) for a in arguments)
        is_list = [isinstance(a.type, torch.ListType) for a in arguments]
        if len(names) >= count and not any(is_list[count - 1 : count]):
            return names, None
        if len(names) > 1 and is_list[-1] and not written_out[0]:
            written_out = names[:-1], names[-1]
    return written_out


def bare(value: Mapping[str, Any] | Any) -> bool:
    """True if an entry of `args` is a bare argument rather than the record of a tensor."""
    return not (isinstance(value, dict) and "precision" in value)


NOT_PRECISION = {"signed", "skip_first_dim", "rounding", "overflow"}
"""Where an operand stands and how it is rounded, not how precise it is."""
PRECISION = (
    "width", "frac_width", "exponent_width", "exponent_bias", "exponent_bias_width", "block_size",
)  # fmt: skip


def record_formats(node: fx.Node) -> None:
    """Write the format and the precision of each operand of a quantised node, and of its result.

    Passes that quantise call this after they change a node; other nodes are left alone.
    """
    call = NodeCall.of(node)
    quant = call.quant
    if quant is None:
        return
    before: dict[str, dict[str, Any]] = {"args": {}, "results": {}}
    node.meta[FLOAT_RECORDS] = before
    places = [("args", name, role) for role, name in operand_names(call)]
    for side, name, role in (*places, ("results", "data_out_0", OUTPUT)):
        entry = node.meta["mase"]["common"][side].get(name)
        fmt = quant.operands.get(role)
        if fmt is not None and isinstance(entry, dict):
            before[side][name] = (entry.get("type"), entry.get("precision"))
            entry |= {"type": quant.name, "precision": precision(fmt)}


def restore_records(node: fx.Node) -> None:
    """Give the operands the types they had in floating point."""
    for side, names in node.meta.pop(FLOAT_RECORDS, {}).items():
        entries = node.meta["mase"]["common"].get(side, {})
        for name, (kind, width) in names.items():
            if isinstance(entries.get(name), dict):
                entries[name] |= {"type": kind, "precision": width}


def precision(fmt: NumberFormat) -> list[Any]:
    """The settings of a format in the order in which the labs list them."""
    fields = {name: each for name, each in fmt.fields().items() if name not in NOT_PRECISION}
    for name, value in fields.items():  # what is given for each element would be no short list
        fields[name] = f"{fmt.shown()[name]}" if isinstance(value, ArrayValue) else value
    first = [fields.pop(name) for name in PRECISION if name in fields]
    return [list(v) if isinstance(v, tuple) else v for v in (*first, *fields.values())]


def operand_names(call: NodeCall) -> Iterator[tuple[str, str]]:
    """The role of each operand and the name it has in the metadata."""
    if call.op is None:
        return
    if call.layer is not None:
        yield from ((role, f"data_in_{index}") for index, role in enumerate(call.op.inputs))
        yield from ((role, name) for name, role in parameter_roles(call.op, call.layer).items())
        return
    inputs = 0  # the tensors of a function are counted in the order of the call
    for name, value in call.arguments.items():
        for part in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(part, fx.Node):
                continue
            role = call.roles.get(name)
            if name in PARAMETER_NAMES:
                yield role or name, name
                continue
            if role is not None:
                yield role, f"data_in_{inputs}"
            inputs += 1
