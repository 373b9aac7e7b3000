"""Metadata of a graph and its nodes as plain tables, and these as TOML."""

import contextlib
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
from chop.ir.parameters import module_parameters
from chop.ir.stored.codec import DTYPES, NotStorable, restore_value, to_plain
from chop.ir.stored.record_checks import check_metadata, error_line


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


BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(tables: Mapping[tuple[str, ...], Mapping[str, Any]]) -> str:
    """Tables by their path as TOML.

    What is nested deeper has dotted keys rather than headers: TOML wants the tables in a table
    after its values, and the order of keys would be lost.
    """
    lines = []
    for path, content in tables.items():
        lines.append(f"[{'.'.join(map(key_text, path))}]")
        lines.extend(f"{key} = {value_text(value)}" for key, value in dotted_values(content, ""))
        lines.append("")
    return "\n".join(lines)


def by_path(tables: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """The sections of a graph and of its nodes by their path in a file."""
    every: dict[tuple[str, ...], Any] = {("graph",): tables["graph"]}
    every |= {("nodes", name): sections for name, sections in tables["nodes"].items()}
    return {(*path, name): each for path, found in every.items() for name, each in found.items()}


def dotted_values(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The values in nested dictionaries under dotted keys."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value and not any(k.startswith("$") for k in value):
            yield from dotted_values(value, f"{prefix}{key_text(key)}.")
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


class MetadataWriter:
    """Turns records into plain tables, and collects the tensors among their values."""

    def __init__(self, add_value: bool) -> None:
        self.add_value = add_value
        self.tensors: dict[str, Tensor] = {}
        self.left_out = 0
        self._names: dict[int, str] = {}

    def sections(self, name: str, node: fx.Node | None, record: Any) -> dict[str, Any]:
        """The sections of a record, without what is left out."""
        own = parameters_of_node(node)
        try:
            check_metadata(record.parameters, of_node=node is not None)
            return {
                section: to_plain(self.storable(record[section], own), self.special(own))
                for section in SECTIONS
            }
        except (NotStorable, ValueError) as error:
            raise GraphError(f"metadata of {name!r} cannot be saved: {error}") from None

    def write_tensors(self, path: Path) -> None:
        """Write the tensors to a file; one of an earlier save goes if there are none."""
        if self.tensors:
            write_safetensors(path, self.tensors)
        else:
            path.unlink(missing_ok=True)

    def storable(self, value: Any, own: Mapping[str, Tensor]) -> Any:
        """Nested dictionaries without the tensors that are not to be stored."""
        if not isinstance(value, Mapping):
            return value
        kept = {}
        for key, item in value.items():
            if isinstance(item, Tensor) and not self.add_value and not own_name(item, own):
                self.left_out += 1
            else:
                kept[key] = self.storable(item, own)
        return kept

    def special(self, own: Mapping[str, Tensor]) -> Any:
        """A function that stores tensors, number types, and None, which TOML has no word for."""

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
            return {"$parameter": name} if name else {"$tensor": self.tensor_name(value)}

        return store

    def tensor_name(self, value: Tensor) -> str:
        """The name of a tensor in the second file; one that comes up again is stored once."""
        name = self._names.setdefault(id(value), f"t{len(self._names)}")
        if value.is_meta:
            raise NotStorable("a tensor without values")
        self.tensors.setdefault(name, value.detach().cpu().contiguous().clone())
        return name


def parameters_of_node(node: fx.Node | None) -> dict[str, Tensor]:
    """The parameters of the layer that a node calls, which the file of weights holds already."""
    module = None if node is None else metadata_of(node).module
    return {} if module is None else dict(module_parameters(module))


def own_name(value: Tensor, own: Mapping[str, Tensor]) -> str | None:
    """The name of the parameter of a layer that a tensor is a view or a copy of, if it is one."""
    for name, parameter in own.items():
        if value.shape == parameter.shape and torch.equal(value, parameter):
            return name
    return None


def metadata_tables(graph: MaseGraph, add_value: bool) -> tuple[dict[str, Any], MetadataWriter]:
    """The metadata of a graph and its nodes as plain tables, and the tensors in them."""
    writer = MetadataWriter(add_value)
    nodes: dict[str, Any] = {}
    tables: dict[str, Any] = {"graph": writer.sections("graph", None, graph.meta["mase"])}
    for node in graph.nodes:
        nodes[node.name] = writer.sections(node.name, node, metadata_of(node))
    return tables | {"nodes": nodes}, writer


def restore_metadata(
    graph: MaseGraph, tables: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Give a graph the metadata of tables; those of another graph raise ValueError."""
    nodes = {node.name: node for node in graph.nodes}
    if nodes.keys() != tables["nodes"].keys():
        raise ValueError("the nodes are not those of the graph")
    found = {
        name: read_sections(nodes.get(name), plain, tensors)
        for name, plain in {"": tables["graph"], **tables["nodes"]}.items()
    }
    graph.meta["mase"].parameters = found.pop("")
    for name, record in found.items():
        metadata_of(nodes[name]).parameters = record


def write_metadata(graph: MaseGraph, path: Path, add_value: bool) -> int:
    """Write the metadata as TOML; returns how many tensors were left out."""
    tables, writer = metadata_tables(graph, add_value)
    write_text(path, toml_text(by_path(tables)))
    writer.write_tensors(path.with_suffix(VALUES_SUFFIX))
    return writer.left_out


def load_metadata(graph: MaseGraph, path: Path) -> None:
    """Read metadata from TOML; a file that is damaged or of another graph is a CheckpointError."""
    text = read_text(path)
    values = path.with_suffix(VALUES_SUFFIX)
    with refusing_metadata(path):
        if DEEP_KEY.search(text):
            raise ValueError("a key has too many parts")
        tables = tomllib.loads(text)
        restore_metadata(graph, tables, read_tensors(values) if values.exists() else {})


@contextlib.contextmanager
def refusing_metadata(path: Path) -> Iterator[None]:
    """Turn whatever odd content brings about into a CheckpointError that names the file."""
    try:
        yield
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointError(f"{path}: not metadata of this graph: {error_line(error)}") from error


def read_sections(
    node: fx.Node | None, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Any:
    """The record of a node from its stored form."""
    if plain.keys() != set(SECTIONS):
        raise ValueError(f"sections {sorted(plain)}")
    own = parameters_of_node(node)

    def special(stored: Mapping[str, Any]) -> Any:
        if "$tensor" in stored:
            return tensors[stored["$tensor"]]
        if "$parameter" in stored:
            return own[stored["$parameter"]].detach()
        return None if "$str" not in stored else str(stored["$str"])

    record = restore_value(read_words(plain), special)
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
