"""What an operation is: how it is written, what it reads and what it costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import nn

from chop.ops.cost import CostRule, uncounted


class MaseType(StrEnum):
    """The kind of a node, as the labs name it."""

    MODULE_RELATED_FUNC = "module_related_func"
    """A function of `torch.nn.functional` and the module that wraps it."""
    MODULE = "module"
    """A module that has no function of its own."""
    BUILTIN_FUNC = "builtin_func"
    """A function that has no module."""
    IMPLICIT_FUNC = "implicit_func"
    """A function that moves, selects or describes values and computes none."""
    PATCHED_FUNC = "patched_func"
    """A function or module that the user declared to be a node of its own."""
    PLACEHOLDER = "placeholder"
    GET_ATTR = "get_attr"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function: its name and, if it is an operand, its role."""

    name: str
    role: str | None = None
    rest: bool = False
    """Whether it stands for all positional arguments that follow."""


def takes(*arguments: str) -> tuple[Argument, ...]:
    """Arguments in a few words: ``input:data_in``, ``weight:``, ``stride``, ``*operands:weight``.

    What follows the colon is the role; nothing after it means that name and role are the same.
    """
    return tuple(_argument(text) for text in arguments)


def _argument(text: str) -> Argument:
    name, colon, role = text.lstrip("*").partition(":")
    return Argument(name, (role or name) if colon else None, rest=text.startswith("*"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """One operation, whichever way it is written; two operations are equal if they are the same."""

    name: str
    mase_type: MaseType
    description: str
    module: type[nn.Module] | None = None
    functions: tuple[Callable[..., Any], ...] = ()
    """The functions that compute it; the first takes every argument that the others take."""
    methods: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] = takes("input:data_in")
    """The arguments of the functions, in order; a method's tensor is the first."""
    inputs: tuple[str, ...] = ("data_in",)
    """Roles of the tensors that flow in, in the order in which a module takes them."""
    params: tuple[str, ...] = ()
    """Parameters of the module that take part, each a role of the same name."""
    optional: frozenset[str] = frozenset()
    """Parameters that a call may lack, so that a configuration need not mention them."""
    unsigned: frozenset[str] = frozenset()
    """Roles that are rounded without a sign unless the configuration says otherwise."""
    quantizable: bool = True
    """Whether it can be computed in a number format; what only moves values cannot."""
    run: Callable[..., Any] | None = None
    """The function form, where it is not simply the first of `functions`."""
    cost: CostRule = uncounted

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of all operands, whose names begin the keys of a configuration."""
        return self.inputs + self.params

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function that computes it from plain arguments, if there is one."""
        return self.run or (self.functions[0] if self.functions else None)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a function call by name; a trailing list gathers what is left over."""
        bound: dict[str, Any] = {}
        for index, argument in enumerate(self.arguments):
            if argument.rest:
                bound[argument.name] = args[index:]
            elif index < len(args):
                bound[argument.name] = args[index]
        return bound | dict(kwargs)

    def __reduce__(self) -> tuple[Callable[[str], "Op"], tuple[str]]:
        return _named, (self.name,)  # copies and pickles of a row are the row itself


def _named(name: str) -> Op:
    from chop.ops.table import OPS

    return OPS[name]
