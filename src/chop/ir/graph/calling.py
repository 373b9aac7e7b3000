"""Calls of a model by the names of its arguments, and their results as plain containers."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from chop.errors import GraphError

LEFT_OUT = object()


class ResultIndex(NamedTuple):
    """An index in the list of results."""

    at: int


class FlatCall:
    """One call of a model by flat tensors, to be exported.

    Values that are no tensors are built in. What the model returns is taken to pieces, and put
    together again by `structure` as plain tuples, lists and dictionaries. What else there may be,
    such as a cache of keys and values, is not a result of a graph.
    """

    def __init__(
        self, model: nn.Module, given: Mapping[str, Any], fixed: Mapping[str, Any]
    ) -> None:
        self.model, self.given, self.fixed = model, dict(given), dict(fixed)
        self.leaves, self.spec = pytree.tree_flatten_with_path(self.given)
        self.tensors = tuple(value for _, value in self.leaves if isinstance(value, Tensor))
        self.structure: Any = None

    def __call__(self, tensors: tuple[Tensor, ...]) -> list[Any]:
        """The tensors and sizes in the result of the model."""
        each = iter(tensors)
        leaves = [next(each) if isinstance(value, Tensor) else value for _, value in self.leaves]
        found: list[Any] = []
        named = {**pytree.tree_unflatten(leaves, self.spec), **self.fixed}
        result = call_by_name(self.model, named)
        self.structure = take_apart(result, found)
        return found


def call_by_name(
    model: nn.Module, named: Mapping[str, Any], call: Callable[..., Any] | None = None
) -> Any:
    """The result of a model for arguments by name, also if a decorator passes on only positions.

    Args:
        call: what is called in place of the model and takes the same arguments.
    """
    outer = inspect.signature(model.forward, follow_wrapped=False).parameters
    if {*named} <= {*outer} or any(each.kind is each.VAR_KEYWORD for each in outer.values()):
        first, rest = by_place(outer, named)
        return (call or model)(*first, **rest)
    bound = bound_arguments(model, named)
    return (call or model)(*bound.args, **bound.kwargs)


def by_place(
    known: Mapping[str, inspect.Parameter], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as they are given: those that have a place only, and the others by name."""
    unnamed = [n for n, each in known.items() if each.kind is each.POSITIONAL_ONLY and n in named]
    return [named[n] for n in unnamed], {n: v for n, v in named.items() if n not in unnamed}


def bound_arguments(model: nn.Module, named: Mapping[str, Any]) -> inspect.BoundArguments:
    """Arguments in the order of the model; GraphError unless it can be called with them."""
    signature = inspect.signature(model.forward)
    first, rest = by_place(signature.parameters, named)
    try:
        return signature.bind(*first, **rest)
    except TypeError as error:
        raise GraphError(f"example_inputs do not fit {type(model).__name__}: {error}") from None


def take_apart(value: Any, found: list[Any]) -> Any:
    """Plain containers, in which each tensor is a `ResultIndex` in the list of those found."""
    if isinstance(value, Tensor | torch.SymInt | torch.SymFloat):
        found.append(value)
        return ResultIndex(len(found) - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping):
        value = vars(value)
    if isinstance(value, Mapping):
        parts = {key: take_apart(part, found) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not LEFT_OUT}
    if isinstance(value, list | tuple):
        kept = [part for each in value if (part := take_apart(each, found)) is not LEFT_OUT]
        return kept if isinstance(value, list) else tuple(kept)
    return value if value is None or isinstance(value, bool | int | float | str) else LEFT_OUT


def put_together(structure: Any, found: Any) -> Any:
    """The containers again, each place filled."""
    if isinstance(structure, ResultIndex):
        return found[structure.at]
    if isinstance(structure, dict):
        return {key: put_together(part, found) for key, part in structure.items()}
    if isinstance(structure, list | tuple):
        return type(structure)([put_together(part, found) for part in structure])
    return structure
