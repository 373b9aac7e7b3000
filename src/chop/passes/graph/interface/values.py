"""Plain values, types and metadata of nodes as JSON, and back."""

import math
import re
import reprlib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.errors import CheckpointError, GraphError
from chop.files import write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import SECTIONS, metadata_of
from chop.passes.base import Info, PassArgs, interface_pass
from chop.passes.graph.analysis.add_metadata.entries import module_parameters
from chop.passes.graph.interface.door import check_metadata, one_line
from chop.passes.graph.interface.save_and_load import (
    read_tensors,
    read_text,
    toml_text,
    write_tensors,
)

Special = Callable[[Any], Any]
"""Turns a value that only the caller knows how to store; gives None to pass."""

DTYPES = {
    str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)
}
MEMORY_FORMATS = {
    str(f).removeprefix("torch."): f
    for f in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
}
DEEPEST = 64  # containers inside containers
LARGEST = 2**64  # of whole numbers, in either direction
MOST_KEYS = 4096  # of a dictionary whose keys are no texts: equal hashes would take for ever


class NotStorable(TypeError):
    """A value that has no stored form."""


def to_plain(value: Any, special: Special = lambda value: None, depth: int = 0) -> Any:
    """The stored form of a value."""
    if depth > DEEPEST:
        raise NotStorable(f"values nested deeper than {DEEPEST} levels")
    own = special(value)
    if own is not None:
        return own
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in PLAIN:
        return _small(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, dict):
        return _plain_dict(value, special, depth + 1)
    if isinstance(value, list):
        return [to_plain(item, special, depth + 1) for item in value]
    return _tag(value, special, depth + 1)


def _small(value: bool | int | str | None) -> bool | int | str | None:
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise NotStorable(f"a number of {value.bit_length()} bits")
    return value


def _tag(value: Any, special: Special, depth: int) -> dict[str, Any]:
    for tag, (kind, pack, _) in TAGS.items():
        if type(value) is kind:  # a named tuple would come back as a plain one
            if pack is not None:
                return {tag: pack(value)}
            return {tag: [to_plain(part, special, depth + 1) for part in _parts(value)]}
    raise NotStorable(f"{type(value).__name__} {value!r:.60}")


def _parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    return (value.real, value.imag) if isinstance(value, complex) else tuple(value)


def _plain_dict(value: Mapping[Any, Any], special: Special, depth: int) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: to_plain(item, special, depth) for key, item in value.items()}
    if len(value) > MOST_KEYS:
        raise NotStorable(f"a dictionary with {len(value)} keys that are no texts")
    pairs = [[to_plain(part, special, depth + 2) for part in pair] for pair in value.items()]
    return {"$dict": pairs}


def from_plain(plain: Any, special: Special = lambda plain: None, depth: int = 0) -> Any:
    """The value of a stored form; one that is none of ours raises ValueError.

    Args:
        special: gives the value of a dictionary that only the caller knows, else None.
        depth: how many containers it is in.
    """
    if depth > DEEPEST:
        raise ValueError(f"values are nested deeper than {DEEPEST} levels")
    if isinstance(plain, list):
        return [from_plain(item, special, depth + 1) for item in plain]
    if isinstance(plain, dict):
        own = special(plain)
        return _table(plain, special, depth) if own is None else own
    if plain is None or isinstance(plain, str | float | torch.dtype):
        return plain  # metadata writes number types as words, which its reader has read by now
    if not isinstance(plain, int) or abs(plain) >= LARGEST:
        raise ValueError(f"unknown value {reprlib.repr(plain):.80}")
    return plain


def _table(plain: dict[str, Any], special: Special, depth: int) -> Any:
    tag = next((key for key in plain if key.startswith("$")), None)
    if tag is None:
        return {key: from_plain(item, special, depth + 1) for key, item in plain.items()}
    content = plain[tag]
    known = TAGS.get(tag)
    if len(plain) != 1 or known is None:
        raise ValueError(f"unknown value {reprlib.repr(plain):.80}")
    _, pack, unpack = known
    try:
        return unpack(from_plain(content, special, depth + 1) if pack is None else content)
    except (TypeError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"unknown value {reprlib.repr(plain):.80}") from error


def _list(parts: Any) -> list[Any]:
    if not isinstance(parts, list):
        raise TypeError("not a list")
    return parts


def _slice(parts: Any) -> slice:
    start, stop, step = _list(parts)
    return slice(start, stop, step)


def _dict(pairs: Any) -> dict[Any, Any]:
    if len(_list(pairs)) > MOST_KEYS:
        raise ValueError("too many keys")
    return dict(map(_list, pairs))


def _float(text: Any) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise ValueError("not a number that has no digits")
    return float(text)


def _complex(parts: Any) -> complex:
    real, imaginary = _list(parts)
    if not isinstance(real, float) or not isinstance(imaginary, float):
        raise TypeError("not two numbers")
    return complex(real, imaginary)


PLAIN = (bool, int, str)
# How each further type is packed and unpacked; None packs the items of a sequence. Floats and
# dictionaries that JSON can hold are not packed at all.
TAGS: dict[str, tuple[type, Callable[[Any], Any] | None, Callable[[Any], Any]]] = {
    "$size": (torch.Size, list, lambda stored: torch.Size(_list(stored))),
    "$tuple": (tuple, None, lambda stored: tuple(_list(stored))),
    "$slice": (slice, None, _slice),
    "$dict": (dict, None, _dict),
    "$float": (float, str, _float),
    "$ellipsis": (type(...), lambda value: True, lambda stored: ...),
    "$complex": (complex, None, _complex),
    "$dtype": (torch.dtype, lambda value: str(value).removeprefix("torch."), DTYPES.__getitem__),
    "$device": (torch.device, str, torch.device),
    "$layout": (torch.layout, str, {str(torch.strided): torch.strided}.__getitem__),
    "$memory_format": (
        torch.memory_format,
        lambda value: str(value).removeprefix("torch."),
        MEMORY_FORMATS.__getitem__,
    ),
}


VALUES_SUFFIX = ".safetensors"
NOTHING, DTYPE = "NA", "torch."  # how None and number types of torch are written
# The time that Python's parser takes grows with the square of the parts of a key.
DEEP_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){200}"""
)


class SaveNodeMetaParamArgs(PassArgs):
    """Where to write the metadata.

    Args:
        save_path: the TOML file.
        add_value: write tensors, such as recorded activations, to a second file beside it.
    """

    shorthand = "save_path"

    save_path: Path
    add_value: bool = False


class LoadNodeMetaParamArgs(PassArgs):
    """Which file to read the metadata from."""

    shorthand = "load_path"

    load_path: Path


@interface_pass("save_node_meta_param")
def save_node_meta_param_interface_pass(
    graph: MaseGraph, args: SaveNodeMetaParamArgs
) -> tuple[MaseGraph, Info]:
    """Write the metadata of every node to a TOML file."""
    left_out = save_metadata(graph, args.save_path, args.add_value)
    return graph, {"path": str(args.save_path), "values_left_out": left_out}


@interface_pass("load_node_meta_param")
def load_node_meta_param_interface_pass(
    graph: MaseGraph, args: LoadNodeMetaParamArgs
) -> tuple[MaseGraph, Info]:
    """Read the metadata of every node from a TOML file."""
    load_metadata(graph, args.load_path)
    return graph, {"path": str(args.load_path)}


class Storing:
    """Stores values, collecting the tensors among them."""

    def __init__(self, add_value: bool) -> None:
        self.add_value = add_value
        self.tensors: dict[str, Tensor] = {}
        self.left_out = 0
        self._names: dict[int, str] = {}

    def section(
        self, path: tuple[str, ...], node: fx.Node | None, content: Mapping[str, Any]
    ) -> Any:
        """One section of a record, without what is left out."""
        own = parameters_of(node)
        try:
            return to_plain(self.kept(content, own), self.special(own))
        except NotStorable as error:
            raise GraphError(f"metadata of {path[-1]!r} cannot be saved: {error}") from None

    def kept(self, value: Any, own: Mapping[str, Tensor]) -> Any:
        """Nested dictionaries without the tensors that are not to be stored."""
        if not isinstance(value, Mapping):
            return value
        return {
            key: self.kept(item, own) for key, item in value.items() if not self.drops(item, own)
        }

    def drops(self, value: Any, own: Mapping[str, Tensor]) -> bool:
        """Whether a value is left out."""
        dropped = isinstance(value, Tensor) and not self.add_value and not own_name(value, own)
        self.left_out += dropped
        return dropped

    def special(self, own: Mapping[str, Tensor]) -> Any:
        """What stores tensors and None, which TOML has no word for."""

        def store(value: Any) -> Any:
            if value is None:
                return NOTHING
            if isinstance(value, torch.dtype):
                return str(value)
            if isinstance(value, str) and (value == NOTHING or value.startswith(DTYPE)):
                return {"$str": value}
            if not isinstance(value, Tensor):
                return None
            name = own_name(value, own)
            return {"$parameter": name} if name else {"$tensor": self.name_of(value)}

        return store

    def name_of(self, value: Tensor) -> str:
        """The name of a tensor in the second file; one that comes up again is stored once."""
        name = self._names.setdefault(id(value), f"t{len(self._names)}")
        if value.is_meta:
            raise NotStorable("a tensor without values")
        self.tensors.setdefault(name, value.detach().cpu().contiguous().clone())
        return name


def parameters_of(node: fx.Node | None) -> dict[str, Tensor]:
    """The parameters of the layer that a node calls, which the file of weights holds already."""
    module = None if node is None else metadata_of(node).module
    return {} if module is None else dict(module_parameters(module))


def own_name(value: Tensor, own: Mapping[str, Tensor]) -> str | None:
    """Which parameter of the node's layer a tensor is a view or a copy of."""
    for name, parameter in own.items():
        if value.shape == parameter.shape and torch.equal(value, parameter):
            return name
    return None


def save_metadata(graph: MaseGraph, path: Path, add_value: bool) -> int:
    """Write the metadata; how many tensors were left out."""
    storing = Storing(add_value)
    records: list[tuple[tuple[str, ...], fx.Node | None, Any]] = [
        (("graph",), None, graph.meta["mase"].parameters),
        *((("nodes", node.name), node, metadata_of(node).parameters) for node in graph.nodes),
    ]
    for at, node, parameters in records:
        try:
            check_metadata(parameters, of_node=node is not None)
        except ValueError as error:
            raise GraphError(f"metadata of {at[-1]!r} cannot be saved: {error}") from None
    tables = {
        (*path, section): storing.section(path, node, parameters[section])
        for path, node, parameters in records
        for section in SECTIONS
    }
    write_text(path, toml_text(tables))
    values = path.with_suffix(VALUES_SUFFIX)
    if storing.tensors:
        write_tensors(values, storing.tensors)
    else:
        values.unlink(missing_ok=True)  # of an earlier file that had some
    return storing.left_out


def load_metadata(graph: MaseGraph, path: Path) -> None:
    """Read the metadata; a file that is damaged or of another graph raises CheckpointError."""
    text = read_text(path)
    try:
        document = parsed(text)
        sections = {"": document["graph"], **document["nodes"]}
        values = path.with_suffix(VALUES_SUFFIX)
        tensors = read_tensors(values) if values.exists() else {}
        nodes = {node.name: node for node in graph.nodes}
        if nodes.keys() != document["nodes"].keys():
            raise ValueError("the nodes are not those of the graph")
        found = {
            name: restored(nodes.get(name), plain, tensors) for name, plain in sections.items()
        }
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # of whatever class odd content brings about
        raise CheckpointError(f"{path}: not metadata of this graph: {one_line(error)}") from error
    graph.meta["mase"].parameters = found.pop("")
    for name, record in found.items():
        metadata_of(nodes[name]).parameters = record


def parsed(text: str) -> dict[str, Any]:
    """A document of TOML, unless it would take for ever to read."""
    if DEEP_KEY.search(text):
        raise ValueError("a key has too many parts")
    return tomllib.loads(text)


def restored(node: fx.Node | None, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The record of a node from its stored form."""
    if plain.keys() != set(SECTIONS):
        raise ValueError(f"sections {sorted(plain)}")
    own = parameters_of(node)

    def special(stored: Mapping[str, Any]) -> Any:
        if "$tensor" in stored:
            return tensors[stored["$tensor"]]
        if "$parameter" in stored:
            return own[stored["$parameter"]].detach()
        return None if "$str" not in stored else str(stored["$str"])

    record = from_plain(read_words(plain), special)
    check_metadata(record, of_node=node is not None)
    return record


def read_words(value: Any) -> Any:
    """Nested containers in which words that stand for None or a number type are these again."""
    if isinstance(value, dict):
        return value if "$str" in value else {k: read_words(item) for k, item in value.items()}
    if isinstance(value, list):
        return [read_words(item) for item in value]
    if isinstance(value, str) and value.startswith(DTYPE):
        return DTYPES[value.removeprefix(DTYPE)]
    return None if isinstance(value, str) and value == NOTHING else value
