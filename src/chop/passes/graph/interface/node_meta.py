"""Metadata of nodes as TOML and safetensors, and back."""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, fx

from chop.errors import CheckpointError, GraphError
from chop.files import read_safetensors, regular, write_safetensors, write_text
from chop.ir.graph.mase_graph import SECTIONS, MaseGraph, metadata_of
from chop.passes.base import Info, PassArgs, interface_pass
from chop.passes.graph.analysis.metadata_entries import module_parameters
from chop.passes.graph.interface.codec import DTYPES, NotStorable, from_plain, to_plain
from chop.passes.graph.interface.door import check_metadata, one_line

PICKLES = (".mz", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin")
PICKLED_GRAPH = "graph_module.mz"


def read_text(path: Path) -> str:
    """The text of a file."""
    try:
        return regular(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: is not a text file") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU."""
    try:
        return read_safetensors(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file: {error}") from None


def refuse_pickle(path: Path) -> None:
    """Raise for a file of the original's: unpickling runs whatever code is in it."""
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path}: is a pickle, and loading a pickle runs any code that is hidden in it; "
            "load its state dict with load type 'pt' or 'pl' and save the graph with chop"
        )


BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(tables: Mapping[tuple[str, ...], Mapping[str, Any]]) -> str:
    """Tables by their path as TOML.

    What is nested deeper has dotted keys rather than headers: TOML wants the tables in a table
    after its values, and the order of keys would be lost.
    """
    lines = []
    for path, content in tables.items():
        lines.append(f"[{'.'.join(map(key_text, path))}]")
        lines.extend(f"{key} = {value_text(value)}" for key, value in flattened(content, ""))
        lines.append("")
    return "\n".join(lines)


def flattened(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The values in nested dictionaries under dotted keys."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value and not any(k.startswith("$") for k in value):
            yield from flattened(value, f"{prefix}{key_text(key)}.")
        else:
            yield prefix + key_text(key), value


def key_text(key: str) -> str:
    """A key, in quotes if need be."""
    return key if BARE_KEY.fullmatch(key) else string_text(key)


def string_text(text: str) -> str:
    """A string; TOML's escapes are JSON's, but for one character that JSON lets through."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value_text(value: Any) -> str:
    """A value in a line."""
    if isinstance(value, str):
        return string_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        pairs = (f"{key_text(key)} = {value_text(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(value_text(item) for item in value)}]"
    return repr(value)


VALUES_SUFFIX = ".safetensors"
NOTHING, DTYPE = "NA", "torch."  # how None and number types of torch are written
# The time that Python's TOML parser takes grows with the square of the parts of a key.
DEEP_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){200}"""
)


class SaveNodeMetaParamArgs(PassArgs):
    """Where to write the metadata.

    Args:
        save_path: the TOML file.
        add_value: write tensors, such as recorded activations, to a second file next to it.
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
        kept = {}
        for key, item in value.items():
            if isinstance(item, Tensor) and not self.add_value and not own_name(item, own):
                self.left_out += 1
            else:
                kept[key] = self.kept(item, own)
        return kept

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
        write_safetensors(values, storing.tensors)
    else:
        values.unlink(missing_ok=True)  # of an earlier file that had some
    return storing.left_out


def load_metadata(graph: MaseGraph, path: Path) -> None:
    """Read the metadata; a file that is damaged or of another graph raises CheckpointError."""
    text = read_text(path)
    try:
        if DEEP_KEY.search(text):
            raise ValueError("a key has too many parts")
        document = tomllib.loads(text)
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
