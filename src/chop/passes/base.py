"""Passes: functions of a graph and typed arguments, known by name.

    class DoubleArgs(PassArgs):
        times: int = Field(default=1, ge=1)

    @transform_pass("double")
    def double_transform_pass(graph: MaseGraph, args: DoubleArgs) -> tuple[MaseGraph, Info]: ...

It is then called as ``graph, info = double_transform_pass(graph, {"times": 2})`` and from a TOML
file as ``[passes.double]``. The annotation of the second argument is the schema of the
dictionary; without one, the function gets a copy of the dictionary as it is.
"""

import functools
import inspect
import logging
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from chop.errors import ConfigError, GraphError, RegistrationError
from chop.ir.graph.mase_graph import MaseGraph
from chop.registry import Registry
from chop.validation import parse

logger = logging.getLogger("chop")
Info = dict[str, Any]
Kind = Literal["analysis", "transform", "interface"]
RawArgs = Mapping[str, Any] | str | Path | None


@runtime_checkable
class Batches(Protocol):
    """Anything that gives dictionaries of inputs by name, such as `InputGenerator` or a list.

    Each pass reads it from the start, so an iterator, which can be read once, serves one pass.
    """

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...


def take_rows(
    batches: Iterable[Mapping[str, Any]], count: float, where: str
) -> Iterator[tuple[dict[str, Any], int]]:
    """Batches and their sizes until `count` rows are out; the last batch is cut to fit.

    Args:
        where: who asks, for the error message: ``pass 'quantize'``.
    """
    for batch in batches:
        if not isinstance(batch, Mapping):
            kind = type(batch).__name__
            raise ConfigError(f"{where}: batches should be dictionaries by input name, not {kind}")
        size = next((len(v) for v in batch.values() if isinstance(v, Tensor) and v.dim()), 1)
        taken = int(min(size, count))
        yield {name: rows_of_sample(value, size, taken) for name, value in batch.items()}, taken
        count -= taken
        if count == 0:
            return


def rows_of_sample(value: Any, size: int, taken: int) -> Any:
    """The first rows of a tensor that has one row for each sample."""
    has_rows = isinstance(value, Tensor) and value.dim() > 0 and len(value) == size
    return value[:taken] if has_rows else value


class PassArgs(BaseModel):
    """The arguments of a pass: frozen, checked, and no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    shorthand: ClassVar[str | None] = None
    """The field that a bare path stands for: ``save_mase_graph_interface_pass(graph, "out")``."""
    ignored: ClassVar[Mapping[str, str]] = {"dummy_in": "the pass runs nothing"}
    """Keys that the original passes and ignores, with the reason why they have no effect here."""


class MetadataArgs(PassArgs):
    """None: what `add_common_metadata` takes is accepted, as it is often handed to others, too."""

    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("dummy_in", "add_value", "force_device_meta"), "it is for add_common_metadata"
    )


class Pass:
    """A named pass, called as ``graph, info = the_pass(graph, pass_args)``."""

    def __init__(
        self, function: Callable[..., Any], name: str, kind: Kind, requires: tuple[str, ...] = ()
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = function.__name__
        self.function = function
        self.name = name
        self.kind = kind
        self.requires = requires
        self.schema = args_schema(function)
        self.__signature__ = inspect.signature(Pass.__call__).replace(
            parameters=list(inspect.signature(Pass.__call__).parameters.values())[1:]
        )

    def __call__(
        self, graph: MaseGraph, pass_args: RawArgs | PassArgs = None
    ) -> tuple[MaseGraph, Info]:
        """Check the graph and the arguments, then run."""
        self.check(graph)
        if self.schema is not None:
            result = self.function(graph, self.parse(pass_args))
        else:
            result = self.function(graph, *self.plain_args(pass_args))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise GraphError(f"pass {self.name!r} must return (graph, info), not {result!r:.60}")
        return result

    def parse(self, pass_args: RawArgs | PassArgs = None) -> PassArgs:
        """The arguments as the pass will see them; the caller's dictionary is not changed."""
        schema = self.schema or PassArgs
        if isinstance(pass_args, schema):
            return pass_args
        given = self.without_ignored(schema, self.as_dict(pass_args))
        return parse(schema, given, f"pass {self.name!r}")

    def without_ignored(self, schema: type[PassArgs], given: dict[str, Any]) -> dict[str, Any]:
        """The arguments without those that have no effect here, of which a warning tells once."""
        is_open = schema.model_config.get("extra") == "allow"  # a table may then be a rule
        dropped = [
            key
            for key in given.keys() & schema.ignored.keys() - schema.model_fields.keys()
            if not (is_open and isinstance(given[key], Mapping))
        ]
        for key in sorted(dropped):
            warn_ignored(self.name, key, schema.ignored[key])
        return {key: value for key, value in given.items() if key not in dropped}

    def as_dict(self, pass_args: RawArgs | PassArgs) -> dict[str, Any]:
        """The arguments as a new dictionary, in which "NA" has become None."""
        if isinstance(pass_args, str | Path):
            field = None if self.schema is None else self.schema.shorthand
            if field is None:
                raise ConfigError(f"pass {self.name!r} takes a dictionary, not {str(pass_args)!r}")
            return {field: pass_args}
        if pass_args is not None and not isinstance(pass_args, Mapping):
            kind = type(pass_args).__name__
            raise ConfigError(f"pass {self.name!r} takes a dictionary, not a {kind}")
        return {key: without_na(value) for key, value in (pass_args or {}).items()}

    def plain_args(self, pass_args: RawArgs | PassArgs) -> tuple[dict[str, Any], ...]:
        """The arguments after the graph when a function without a schema is called."""
        given = self.as_dict(pass_args)
        parameters = list(inspect.signature(self.function).parameters.values())
        if len(parameters) < 2:
            if given:
                raise ConfigError(f"pass {self.name!r} takes no arguments, got {sorted(given)}")
            return ()
        has_default = parameters[1].default is not inspect.Parameter.empty
        return () if pass_args is None and has_default else (given,)

    def check(self, graph: MaseGraph) -> None:
        """Raise unless `graph` is a graph with the metadata that the pass reads."""
        if not isinstance(graph, MaseGraph):
            kind = type(graph).__name__
            raise GraphError(f"pass {self.name!r} works on a MaseGraph, not a {kind}: MaseGraph(…)")
        for section in self.requires:
            for node in graph.nodes:
                if "mase" not in node.meta or not node.meta["mase"][section]:
                    raise GraphError(
                        f"pass {self.name!r} needs {section} metadata, which node {node.name!r} "
                        f"lacks: run add_{section}_metadata_analysis_pass first"
                    )

    def __repr__(self) -> str:
        return f"{self.__name__}(graph, pass_args=None)"  # what help() shows as its heading


@functools.cache
def warn_ignored(pass_name: str, key: str, reason: str) -> None:
    """Say, once in a run, that an argument has no effect."""
    logger.warning("pass '%s': %s has no effect here: %s", pass_name, key, reason)


def args_schema(function: Callable[..., Any]) -> type[PassArgs] | None:
    """The `PassArgs` class that annotates the second argument, if one does."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2:
        return None
    annotation = parameters[1].annotation
    if isinstance(annotation, str):  # the file has `from __future__ import annotations`
        annotation = typing.get_type_hints(function)[parameters[1].name]
    is_schema = isinstance(annotation, type) and issubclass(annotation, PassArgs)
    return annotation if is_schema else None


def without_na(value: Any) -> Any:
    """A copy of nested containers in which "NA" (TOML has no None) is None.

    What the containers hold, tensors and input generators say, is not copied.
    """
    if isinstance(value, Mapping):
        return {key: without_na(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(without_na(item) for item in value)
    return None if isinstance(value, str) and value == "NA" else value


PASSES: Registry[Pass] = Registry("pass")

Declare = Callable[[Callable[..., Any]], Pass]


def declare(kind: Kind, names: tuple[str, ...], requires: tuple[str, ...]) -> Declare:
    """Decorator that makes a pass of a function and registers it."""
    if not names or not all(isinstance(name, str) for name in names):
        raise RegistrationError(f'a pass needs a name: write @{kind}_pass("my_pass")')

    def add(function: Callable[..., Any]) -> Pass:
        return PASSES.register(*names)(Pass(function, names[0], kind, requires))

    return add


def analysis_pass(*names: str, requires: tuple[str, ...] = ()) -> Declare:
    """Declare a pass that finds something out and leaves the model as it is.

    Args:
        names: what the pass is called in a file, its own name first.
        requires: sections of metadata that must be there, ``("common",)`` for instance.
    """
    return declare("analysis", names, requires)


def transform_pass(*names: str, requires: tuple[str, ...] = ()) -> Declare:
    """Declare a pass that changes the graph."""
    return declare("transform", names, requires)


def interface_pass(*names: str, requires: tuple[str, ...] = ()) -> Declare:
    """Declare a pass that saves or loads."""
    return declare("interface", names, requires)


class PassesOfKind(Mapping[str, Pass]):
    """A live view of the passes of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __getitem__(self, name: str) -> Pass:
        found = PASSES[name]
        if found.kind != self.kind:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in PASSES.items() if entry.kind == self.kind)

    def __len__(self) -> int:
        return sum(1 for _ in self)


ANALYSIS_PASSES = PassesOfKind("analysis")
TRANSFORM_PASSES = PassesOfKind("transform")
INTERFACE_PASSES = PassesOfKind("interface")
