"""From ATen operators to what a user would have written: methods, functions of torch, indexing.

A method of a tensor and a function written in C take their arguments as the operator's schema has
them. Functions written in Python take them by name. What fits neither stays an ATen operator.
"""

import inspect
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._ops import OpOverload

from chop.ops.op import aten_name

# Where a tensor lives, and which library computes it: torch decides that again.
NOT_KEPT = frozenset({"layout", "pin_memory", "cudnn_enable", "cudnn_enabled", "non_blocking"})
RENAMED = {"self": "input", "train": "training"}
OPERATORS: Mapping[str, Callable[..., Any]] = {
    "__and__": operator.and_,
    "__or__": operator.or_,
    "bitwise_not": operator.invert,
}
OF_NUMBERS: Mapping[Any, Any] = {  # what torch.export computes sizes with
    torch.sym_max: max,
    torch.sym_min: min,
    torch.sym_float: float,
    torch.sym_int: int,
    torch.sym_not: operator.not_,
}
UPSAMPLINGS = {"nearest": "nearest", "_nearest_exact": "nearest-exact", "linear": "linear",
               "bilinear": "bilinear", "bicubic": "bicubic", "trilinear": "trilinear"}  # fmt: skip


class Written(NamedTuple):
    """A node the way it is written in Python."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def python_call(node: fx.Node) -> Written | None:
    """The call that an ATen node stands for; None if it is to stay as it is."""
    target: Any = node.target
    if not isinstance(target, OpOverload):
        number: Any = OF_NUMBERS.get(target)
        return number and Written("call_function", number, node.args, dict(node.kwargs))
    name = aten_name(target)
    special = SPECIAL.get(name)
    if special is not None:
        return special(node, aten_arguments(node))
    if name in OPERATORS:
        return Written("call_function", OPERATORS[name], node.args, {})
    if name.startswith(("upsample_", "_upsample_")):
        return interpolation(node, name)
    return as_method(node, name) or as_function(node, name)


def aten_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an ATen node by name, those that have their default left out."""
    given: dict[str, Any] = {}
    for argument, value in zip(node.target._schema.arguments, node.args, strict=False):  # type: ignore[union-attr]
        given[argument.name] = value
    given |= node.kwargs
    for argument in node.target._schema.arguments:  # type: ignore[union-attr]
        if argument.has_default_value() and argument.name in given:
            value = given[argument.name]
            plain = not isinstance(value, fx.Node | list | tuple)
            if argument.name in NOT_KEPT or (plain and value == argument.default_value):
                del given[argument.name]
        elif argument.name in NOT_KEPT:
            given.pop(argument.name, None)
    return given


def as_schema(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the schema has them: by position up to the first that has its default."""
    given = aten_arguments(node)
    args: list[Any] = []
    for argument in node.target._schema.arguments:  # type: ignore[union-attr]
        if argument.kwarg_only or argument.name not in given:
            break
        args.append(given.pop(argument.name))
    return tuple(args), given


def is_tensor_node(value: Any) -> bool:
    """True if an argument is a node that gives a tensor."""
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), Tensor)


def as_method(node: fx.Node, name: str) -> Written | None:
    """A call of the method that has the operator's name."""
    method = getattr(Tensor, name, None)
    first = node.target._schema.arguments[0].name if node.args else ""  # type: ignore[union-attr]
    if first != "self" or not callable(method) or not is_tensor_node(node.args[0]):
        return None
    return Written("call_method", name, *as_schema(node))


def as_function(node: fx.Node, name: str) -> Written | None:
    """A call of the function of torch that has the operator's name."""
    function = getattr(F, name, None) or getattr(torch, name, None)
    if function is None or not callable(function):
        return None
    try:
        known = inspect.signature(function).parameters
    except ValueError:  # written in C
        return Written("call_function", function, *as_schema(node))
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):  # one of two, by a flag
        return Written("call_function", function, *as_schema(node))
    given = {RENAMED.get(key, key): value for key, value in aten_arguments(node).items()}
    if not given.keys() <= known.keys():
        return None
    args: list[Any] = []
    for name, parameter in known.items():
        if name not in given or parameter.kind is parameter.KEYWORD_ONLY:
            break
        value = given.pop(name)
        args.extend(value if parameter.kind is parameter.VAR_POSITIONAL else (value,))
    return Written("call_function", function, tuple(args), given)


Special = Callable[[fx.Node, dict[str, Any]], Written | None]


def getitem(value: Any, index: Any) -> Written:
    """A part chosen by index."""
    return Written("call_function", operator.getitem, (value, index), {})


def write_slice(node: fx.Node, given: dict[str, Any]) -> Written:
    """``x[:, start:end]``."""
    source = given["self"]
    dim = given.get("dim", 0) % source.meta["val"].ndim
    end = given.get("end")
    whole = not isinstance(end, fx.Node) and (end is None or end >= sys.maxsize)
    start = given.get("start")
    cut = slice(start if start != 0 else None, None if whole else end, given.get("step"))
    return getitem(source, (slice(None),) * dim + (cut,))


def write_index(node: fx.Node, given: dict[str, Any]) -> Written:
    """``x[rows, :, columns]``."""
    places = tuple(slice(None) if each is None else each for each in given["indices"])
    return getitem(given["self"], places)


def write_conversion(node: fx.Node, given: dict[str, Any]) -> Written | None:
    """``x.to(dtype)``; a tensor of the graph stays on its device."""
    if "other" in given:
        return Written("call_method", "type_as", (given["self"], given["other"]), {})
    dtype = given.get("dtype")
    options: dict[str, Any] = {key: given[key] for key in ("copy", "memory_format") if key in given}
    if dtype is None and not options:
        return getitem(given["self"], ...)
    if dtype is None:
        return Written("call_method", "clone", (given["self"],), {})
    return Written("call_method", "to", (given["self"], dtype), options)


def write_subtraction(node: fx.Node, given: dict[str, Any]) -> Written | None:
    """``1 - x``."""
    if "alpha" in given:
        return None
    return Written("call_function", operator.sub, (given["other"], given["self"]), {})


def write_embedding(node: fx.Node, given: dict[str, Any]) -> Written:
    """``F.embedding(indices, weight)``: the operator has them the other way round."""
    first = given.pop("indices"), given.pop("weight")
    return Written("call_function", F.embedding, first, given)


def write_einsum(node: fx.Node, given: dict[str, Any]) -> Written:
    """``torch.einsum(equation, *operands)``."""
    return Written("call_function", torch.einsum, (given["equation"], *given["tensors"]), {})


def write_copy(node: fx.Node, given: dict[str, Any]) -> Written:
    """``x.clone()``: a constant of the code, which must not be written to."""
    return Written("call_method", "clone", (given["self"],), {})


def write_reshape(node: fx.Node, given: dict[str, Any]) -> Written:
    """``x.reshape(size)``; ``x.view(dtype)`` stays what it is.

    torch.export leaves out a ``contiguous()`` that changes nothing, and what computes `x` in its
    stead later, in another format, may lay it out otherwise. A view would then be refused.
    """
    name = "view" if "dtype" in given else "reshape"
    return Written("call_method", name, tuple(given.values()), {})


def reversed_dimensions(node: fx.Node, given: dict[str, Any]) -> Written:
    """``x.T``."""
    rank = given["self"].meta["val"].ndim
    order = tuple(reversed(range(rank)))
    return Written("call_method", "permute", (given["self"], *order), {})


def method(name: str) -> Special:
    """The operator as the method of another name."""

    def rule(node: fx.Node, given: dict[str, Any]) -> Written:
        return Written("call_method", name, tuple(given.values()), {})

    return rule


SPECIAL: dict[str, Special] = {
    "slice": write_slice,
    "index": write_index,
    "to": write_conversion,
    "_to_copy": write_conversion,
    "rsub": write_subtraction,
    "embedding": write_embedding,
    "einsum": write_einsum,
    "lift_fresh_copy": write_copy,
    "numpy_T": reversed_dimensions,
    "view": write_reshape,
    "_unsafe_view": write_reshape,
    "sym_size": method("size"),
    "sym_numel": method("numel"),
}


def interpolation(node: fx.Node, name: str) -> Written | None:
    """``F.interpolate`` of one of its modes."""
    given = aten_arguments(node)
    kind = name.replace("upsample_", "").rstrip("0123d")
    if kind not in UPSAMPLINGS or "input" not in given:
        return None
    scale = given.get("scale_factors")
    size = given.get("output_size")
    kwargs = {"scale_factor": scale} if size is None else {"size": size}
    kwargs["mode"] = UPSAMPLINGS[kind]
    if given.get("align_corners"):
        kwargs["align_corners"] = True
    return Written("call_function", F.interpolate, (given["input"],), kwargs)
