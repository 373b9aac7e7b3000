"""The one door: what comes from a file is checked here, or it reaches nothing.

torch.fx writes names, targets and keywords into code that Python then runs; layers are made by
calling classes; nodes run by looking names up. So the records of a file are made of the types
below, and a record exists only if all of it was found to be names, data and calls on the lists of
`targets`. Saving makes the same records: what can be saved can be loaded.
"""

import contextlib
import functools
import inspect
import keyword
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec

import torch
from pydantic import AfterValidator, Field, ValidationError
from torch import fx, nn

from chop.ir.graph.conditions import sizes_in
from chop.ir.graph.mase_graph import SECTIONS
from chop.ir.stored.codec import restore_value
from chop.ir.stored.targets import (
    ATTRIBUTES,
    NOT_DATA,
    QUANTIZED,
    function_by_name,
    is_method,
    keywords,
)
from chop.nn.quant_config import parse_quant_config
from chop.ops.op import op_of_function, op_of_method

LONGEST, DEEPEST, WIDEST = 1000, 64, 16  # characters, parts of a path, numbers of an argument
LARGEST = 2**31 - 1
PART = re.compile(r"[\w +/-]+")  # of a path: fx puts it in double quotes if it is not an identifier
WORD = re.compile(r"[\w -]{0,64}")  # of a setting, such as "same": no path of a file
ADDED = frozenset({"config", "inplace"})  # keywords that quantising gives a function
SIDES = frozenset({"args", "results"})
FACTS = {"mase_type": str, "mase_op": str, "args": dict, "results": dict}  # of a node
ENTRY = {"type": str, "precision": list, "shape": list, "torch_dtype": torch.dtype}
Call = Literal["call_function", "call_method"]
P = ParamSpec("P")


def error_line(error: BaseException) -> str:
    """The message of an error, or its name if it has none, in one line that is not too long."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def problem(error: ValidationError) -> str:
    """The fault of a record, without the words that pydantic puts in front."""
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")


@contextlib.contextmanager
def saying(where: str) -> Iterator[None]:
    """Make a ValueError that says where of whatever torch and chop raise over odd data.

    A lack of memory is not the fault of the file.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{where}{error_line(error)}") from error


def refusing(check: Callable[P, None]) -> Callable[P, None]:
    """A check all of whose errors are ValueErrors."""

    @functools.wraps(check)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with saying(""):
            check(*args, **kwargs)

    return run


def identifier(text: str) -> str:
    """The text, if it is a name of Python that says what it seems to say."""
    odd = keyword.iskeyword(text) or is_magic(text) or unicodedata.normalize("NFKC", text) != text
    if len(text) > LONGEST or not text.isidentifier() or odd:
        raise ValueError(f"{text!r:.60} is not a name")
    return text


def is_magic(text: str) -> bool:
    """True if a name is one of Python's own, such as ``__class__``."""
    return text.startswith("__") and text.endswith("__")


def dotted_path(text: str) -> str:
    """The text, if it can be the dotted name of a layer or tensor of a graph."""
    parts = text.split(".")
    first, later = names_in_use()
    if len(text) > LONGEST or len(parts) > DEEPEST:
        raise ValueError(f"{text!r:.60} is too long for a name")
    for place, part in enumerate(parts):
        fits = PART.fullmatch(part) and unicodedata.normalize("NFKC", part) == part
        if not fits or is_magic(part) or keyword.iskeyword(part):
            raise ValueError(f"{text!r:.60} cannot be the name of a layer or tensor in a file")
        if part in (later if place else first):
            raise ValueError(f"{text!r:.60}: {part!r} is an attribute of every module or graph")
    return text


@functools.cache
def names_in_use() -> tuple[frozenset[str], frozenset[str]]:
    """Names that a graph has already, and names that every module has."""
    empty = fx.GraphModule(nn.Module(), fx.Graph())
    return frozenset(dir(empty)), frozenset(dir(nn.Module()))


Name = Annotated[str, AfterValidator(identifier)]
Path = Annotated[str, AfterValidator(dotted_path)]
Text = Annotated[str, Field(max_length=2 * LONGEST)]  # a path and a name in what it leads to


class Reference(NamedTuple):
    """A node that an argument stands for."""

    name: str


def decode_value(plain: Any) -> Any:
    """The value of a stored form, in which nodes are references."""
    return restore_value(plain, lambda form: node_reference(form) if "$node" in form else None)


def node_reference(form: Mapping[str, Any]) -> Reference:
    """The node that a stored form means."""
    if len(form) != 1 or not isinstance(form["$node"], str):
        raise ValueError(f"{dict(form)!r:.60} is not a node")
    return Reference(form["$node"])


def inside(value: Any) -> Iterator[Any]:
    """Everything in nested containers."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, slice):
        value = [value.start, value.stop, value.step]
    if isinstance(value, list | tuple) and not isinstance(value, Reference):
        for item in value:
            yield from inside(item)
    else:
        yield value


def is_data(value: Any) -> bool:
    """True if a value holds no node."""
    return not any(isinstance(item, Reference) for item in inside(value))


@refusing
def check_call(op: str, target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuse a node that is not on the lists, or that is not written the way fx writes it.

    Args:
        args: in their stored form, as `kwargs`.
    """
    given, named = decode_value(args), decode_value(kwargs)
    for name in named:
        identifier(name)
    CHECKS[op](target, given, named)


def check_placeholder(target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """An argument of the model, which may have a default."""
    bare = target.lstrip("*")
    if identifier(bare) == "self" or len(target) - len(bare) > 2:
        raise ValueError(f"{target!r:.60} is not the name of an argument")
    if len(args) > 1 or kwargs or not is_data(args):
        raise ValueError(f"argument {target!r:.60} has a default that is not one")


def check_get_attr(target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A tensor of the model."""
    if args or kwargs:
        raise ValueError(f"tensor {dotted_path(target)!r} takes no arguments")


def check_output(target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuse an output that is not one value."""
    if target != "output" or len(args) != 1 or kwargs:
        raise ValueError("an output is one value")


def check_module(target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A call of a layer; which keywords it takes, its class says (`check_forward`)."""
    dotted_path(target)


def check_method(target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A call of a method of a tensor."""
    if not is_method(target):
        raise ValueError(f"{target!r:.60} is not a method that a graph may call")
    if not args or not isinstance(args[0], Reference):
        raise ValueError(f"method {target!r} is called on nothing")
    check_keywords(target, kwargs, keywords("call_method", target))


def check_function(target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A call of a function."""
    function = function_by_name(target)
    asked = args[1] if len(args) == 2 else None
    if function is getattr and not (isinstance(asked, str) and asked in ATTRIBUTES):
        raise ValueError(f"getattr of {args[1:]!r:.60} is not allowed in a graph")
    check_keywords(target, kwargs, keywords("call_function", target))
    if function.__module__ == operator.add.__module__:
        check_operands(target, function, args, kwargs)
    if target.startswith(f"{QUANTIZED}."):
        op = op_of_function(function)
        assert op is not None
        config = kwargs.get("config")
        if not isinstance(config, dict) or not is_data(config):
            raise ValueError(f"{target} has no configuration")
        named = {"name": function.__name__.removeprefix(f"{op.name}_")} | config
        parse_quant_config(op, named, target)


def check_operands(
    target: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Refuse an operator with another number of operands than fx has places for between symbols."""
    wanted = len(inspect.signature(function).parameters)
    if len(args) != wanted or kwargs:
        raise ValueError(f"{target} takes {wanted} operands and no keywords")


def check_keywords(target: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse a keyword that the callable lacks, or one that is not data unless it is off."""
    off = {name for name in NOT_DATA & given.keys() if given[name] in (None, False)}
    if odd := sorted(given.keys() - known - off):
        raise ValueError(f"{target} takes no argument {odd[0]!r:.60}")


CHECKS: dict[str, Callable[[str, list[Any], dict[str, Any]], None]] = {
    "placeholder": check_placeholder,
    "get_attr": check_get_attr,
    "call_function": check_function,
    "call_method": check_method,
    "call_module": check_module,
    "output": check_output,
}


@refusing
def check_float_form(
    target: str, call: tuple[list[Any], dict[str, Any]], form: tuple[str, str, list[str], Any]
) -> None:
    """Refuse what a quantised function would become, unless it is the same operation.

    Args:
        target: the quantised function.
        call: its arguments in their stored form.
        form: op and target of what it was, keywords that quantising gave it and took from it.
    """
    op, name, added, removed = form
    if not target.startswith(f"{QUANTIZED}."):
        raise ValueError(f"{target!r:.60} is not quantised, so it has no other form")
    args, kwargs = call
    known = op_of_method(name) if op == "call_method" else op_of_function(function_by_name(name))
    if known is None or known is not op_of_function(function_by_name(target)):
        raise ValueError(f"{name!r:.60} is not what {target} computes")
    if not ADDED.issuperset(added) or not all(key.startswith("_") for key in removed):
        raise ValueError(f"{sorted({*added, *removed})!r:.60} are not what quantising changes")
    kept = {key: value for key, value in kwargs.items() if key not in added}
    check_call(op, name, args, {**kept, **removed})


@refusing
def check_float_records(plain: Any) -> None:
    """Refuse types and precisions of arguments that are none."""
    records = decode_value(plain)
    if not isinstance(records, dict) or not records.keys() <= SIDES or not is_data(records):
        raise ValueError("float_records are tables of arguments and results")
    for names in records.values():
        for kind, precision in names.values():
            if not isinstance(kind, str | None) or not isinstance(precision, list | None):
                raise ValueError("float_records hold a type and a precision for each argument")


@refusing
def check_fixed(plain: Any) -> None:
    """Refuse values of arguments that are fixed while tracing, unless they are data by name."""
    values = decode_value(plain)
    if not isinstance(values, dict | None) or not is_data(values):
        raise ValueError("cf_args is a table of values")
    for name in values or ():
        identifier(name)


@refusing
def check_metadata(record: Mapping[str, Any], *, of_node: bool) -> None:
    """Refuse metadata that is not nested the way every pass expects it; passes may add to it."""
    if any(not isinstance(record.get(section), dict) for section in SECTIONS):
        raise ValueError(f"metadata has the sections {', '.join(SECTIONS)}")
    common, software = record["common"], record["software"]
    check_types(common, FACTS, "metadata")
    if of_node and 0 < len(FACTS.keys() & common.keys()) < len(FACTS):
        raise ValueError(f"{', '.join(FACTS.keys() - common.keys())} is missing")
    for side in SIDES:
        for entry in common.get(side, {}).values():
            check_types(entry if isinstance(entry, dict) else {}, ENTRY, side)
        found = software.get(side, {})
        if not isinstance(found, dict) or not all(isinstance(e, dict) for e in found.values()):
            raise ValueError(f"{side} of the software section are tables")


def check_sizes(inputs: Iterable[tuple[str, int, list[str]]]) -> None:
    """Refuse conditions that are none, or about sizes that no input up to theirs has.

    Args:
        inputs: the name of each node, how many sizes it has, and its conditions.
    """
    known: dict[str, int] = {}
    for name, sizes, conditions in inputs:
        known[name] = sizes
        for text in conditions:
            if any(place >= known.get(each, 0) for each, place in sizes_in(text)):
                raise ValueError(f"node {name!r}: {text!r:.60} is about no input's size")


def check_types(table: Mapping[str, Any], types: Mapping[str, type], where: str) -> None:
    """Refuse an entry that is there and of another type."""
    for key, kind in types.items():
        if not isinstance(table.get(key), kind | None):
            raise ValueError(f"{key} of {where} is {table[key]!r:.40}")


@refusing
def check_arguments(kind: str, names: list[str], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a layer that its class does not take, or that are no settings.

    Args:
        names: what the class takes.
        arguments: in their stored form.
    """
    check_keywords(kind, arguments, frozenset(names))
    for name, plain in arguments.items():
        value = restore_value(plain)
        items = list(inside(value))
        if (
            isinstance(value, dict | slice)
            or len(items) > WIDEST
            or not all(map(is_setting, items))
        ):
            raise ValueError(f"{kind} takes no {name} {value!r:.60}")


def is_setting(value: Any) -> bool:
    """True if a value is a number of a size that makes sense, a word or nothing."""
    if isinstance(value, str):
        return WORD.fullmatch(value) is not None
    if isinstance(value, int):
        return abs(value) <= LARGEST
    return isinstance(value, float | None)


def check_forward(layer: type[nn.Module], kwargs: Mapping[str, Any]) -> None:
    """Refuse keywords that the forward of a layer does not take."""
    known = inspect.signature(layer.forward).parameters
    check_keywords(layer.__name__, kwargs, frozenset(known) - {"self"})


def check_texts(name: str, args: Any, own: fx.Node) -> None:
    """Refuse texts for a custom function that the graph given does not pass to it.

    It may do anything with a text, such as open the file of that name.
    """
    ours: set[Any] = set()
    fx.node.map_aggregate((own.args, own.kwargs), lambda item: ours.add(item) or item)  # type: ignore
    for item in inside(decode_value(args)):
        if isinstance(item, str | torch.device) and item not in ours:
            raise ValueError(f"node {name!r} gives {item!r:.60} to a function of your own")
