"""Graphs as folders: graph.json with the metadata, tensors as safetensors; nothing is pickled."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from chop.errors import CheckpointError, GraphError, OutputError
from chop.files import one_at_a_time, regular, write_safetensors, write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.parameters import attribute
from chop.ir.stored.codec import (
    MOST_DIMENSIONS,
    Packed,
    PackedRecord,
    pack,
    pack_mask,
    restore_value,
)
from chop.ir.stored.format_tensors import moved_in, moved_out
from chop.ir.stored.graph_file import (
    CODES,
    OVERALL,
    SHARED,
    GraphRecord,
    build_graph,
    build_root,
    record_graph,
)
from chop.ir.stored.layers import root_module
from chop.ir.stored.metadata import (
    load_metadata,
    metadata_tables,
    read_tensors,
    read_text,
    refusing_metadata,
    restore_metadata,
)
from chop.ir.stored.record_checks import problem, saying
from chop.nn.masks import INPUT_MASK, MASK
from chop.nn.quantized import QuantizedModule
from chop.numerics import NumberFormat
from chop.ops.op import parameter_roles
from chop.preprocessing import from_plain as read_preprocessing
from chop.runs import GRAPH_FILE, free_version

logger = logging.getLogger("chop")
Weights = Literal["float", "codes"]
GRAPH, WEIGHTS, METADATA = GRAPH_FILE, "weights.safetensors", "node_meta_param.toml"
VALUES = "node_meta_param.safetensors"
FILES = frozenset({GRAPH, WEIGHTS, METADATA, VALUES})
PICKLES = (".mz", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin")
PICKLED_GRAPH = "graph_module.mz"
SEAL = ', "checksum": "%s"}'  # the end of a record


@dataclass(frozen=True)
class Saved:
    """A graph that was saved: where, how large each file is, and what was left out."""

    folder: Path
    sizes: dict[str, int]
    packed: list[str]
    values_left_out: int


def save_graph(
    graph: MaseGraph,
    folder: Path,
    weights: Weights = "float",
    add_value: bool | None = None,
    replace: bool = False,
) -> Saved:
    """Save the graph, its weights and its metadata in a folder.

    Args:
        weights: "float", or "codes" for quantised weights as the integer codes of their format.
        add_value: save recorded tensors of the metadata too; by default only with "float".
        replace: replace a graph that the folder already holds, rather than save beside it.
    """
    record = record_graph(graph)
    prove_record(graph, record)
    gathered = gather_tensors(graph, record, weights)
    tables, writer = metadata_tables(graph, weights == "float" if add_value is None else add_value)
    record = record.model_copy(update={"packed": gathered.packed, "metadata": tables})
    record = moved_out(record, gathered.tensors)
    with folder_to_fill(folder, replace) as target:
        temporary = target.temporary
        write_safetensors(temporary / WEIGHTS, gathered.tensors)
        writer.write_tensors(temporary / VALUES)
        record = complete_record(record, gathered, temporary)
        write_text(temporary / GRAPH, seal(record.model_dump(exclude_defaults=True)))
    final = target.final
    logger.info("Saved mase graph to %s", final, extra={"result": True})  # `--quiet` leaves it
    sizes = {path.name: path.stat().st_size for path in final.iterdir() if path.name in FILES}
    return Saved(final, sizes, sorted(gathered.packed), writer.left_out)


def prove_record(graph: MaseGraph, record: GraphRecord) -> None:
    """Raise unless the record brings the graph back: its nodes are built from it and compared."""
    layers = {name: graph.model.get_submodule(name) for name in record.layers}
    attributes = {name: attribute(graph.model, name) for name in record.attributes}
    try:
        with saying("the graph cannot be saved: "):
            built = build_graph(record, root_module(layers, record.same_layer, attributes), graph)
            found = {name: attribute(built, name) for name in (*layers, *attributes)}
    except ValueError as error:
        raise GraphError(str(error)) from error
    for name, value in found.items():
        if value is not (layers | attributes)[name]:
            raise GraphError(f"{name!r} cannot be saved: a graph has something else of that name")
    for node, twin in zip(graph.nodes, built.graph.nodes, strict=True):
        facts = [(n.name, n.op, n.target, repr(n.args), repr(n.kwargs)) for n in (node, twin)]
        if facts[0] != facts[1]:
            raise GraphError(f"node {node.name!r} cannot be saved: it would come back otherwise")


class Gathered:
    """The tensors of a graph under the names of the file."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.tensors: dict[str, Tensor] = {}
        self.tied: dict[str, str] = {}
        self.packed: dict[str, PackedRecord] = {}
        self.channels_last: list[str] = []
        self._seen: dict[int, tuple[str, Any]] = {}
        self._memory: set[int] = set()

    def add(self, name: str, value: Any, layer: nn.Module | None = None, key: str = "") -> None:
        """Take in one tensor, once.

        Args:
            key: its name in its layer.
        """
        if not isinstance(value, Tensor) or value.is_meta:
            raise GraphError(f"{name} holds no values that could be saved")
        # The value is kept beside its name: an id tells tensors apart only while they live.
        first, _ = self._seen.setdefault(id(value), (name, value))
        if first != name:
            self.tied[name] = first
            return
        images = value.dim() == 4 and not value.is_contiguous()
        if images and value.is_contiguous(memory_format=torch.channels_last):
            self.channels_last.append(name)
        tensor = value.detach().cpu().contiguous()
        codes = self.weights == "codes" and tensor.dim() <= MOST_DIMENSIONS
        packed = as_codes(layer, key, tensor) if codes else None
        if packed is None:
            self.tensors[name] = self._own_memory(tensor)
            return
        self.packed[name] = packed.record
        self.tensors[name + CODES] = packed.codes
        for part, values in ((SHARED, packed.shared), (OVERALL, packed.overall)):
            if values is not None:
                self.tensors[name + part] = values.contiguous()

    def _own_memory(self, tensor: Tensor) -> Tensor:
        """The tensor, copied if it shares memory with another: the file format refuses that."""
        place = tensor.untyped_storage().data_ptr()
        if place in self._memory:
            return tensor.clone()
        self._memory.add(place)
        return tensor


def gather_tensors(graph: MaseGraph, record: GraphRecord, weights: Weights) -> Gathered:
    """Every tensor that the graph needs."""
    gathered = Gathered(weights)
    for name in record.layers:
        layer = graph.model.get_submodule(name)
        for key, value in layer.state_dict(keep_vars=True).items():
            gathered.add(f"{name}.{key}", value, layer, key)
    for name in record.attributes:
        gathered.add(name, attribute(graph.model, name))
    return gathered


def formats_of_parameters(module: nn.Module | None) -> dict[str, NumberFormat]:
    """The number format of each parameter of a quantised layer, those with a state left aside."""
    if not isinstance(module, QuantizedModule) or module.bypass:
        return {}
    formats, learned = module.quant.operands, module.quantizers_by_role
    known = formats.keys() - learned
    roles = parameter_roles(module.op, module)
    return {name: formats[role] for name, role in roles.items() if role in known}


def as_codes(layer: nn.Module | None, key: str, tensor: Tensor) -> Packed | None:
    """A tensor of a layer packed as codes or, if it is a mask, as bits; None if it stays as it is.

    A format that rounds by chance draws at every run, so its codes would be those of one draw only.
    """
    fmt = formats_of_parameters(layer).get(key)
    if fmt is not None and isinstance(layer, QuantizedModule):
        stochastic = getattr(fmt, "stochastic", False)
        return None if stochastic else pack(layer.quant.name, fmt, tensor)
    return pack_mask(tensor) if key in (MASK, INPUT_MASK) else None


def complete_record(record: GraphRecord, gathered: Gathered, folder: Path) -> GraphRecord:
    """The record of a graph whose other files are written."""
    names = [VALUES] if (folder / VALUES).exists() else []
    found = {
        "tied": gathered.tied,
        "channels_last": gathered.channels_last,
        "digest": digest(folder / WEIGHTS),
        "digests": {name: digest(folder / name) for name in names},
    }
    try:
        return GraphRecord(**dict(record) | found)
    except ValidationError as error:
        raise GraphError(f"the graph cannot be saved: {problem(error)}") from None


@dataclass
class Target:
    """A folder to write in, and the name that it has in the end."""

    temporary: Path
    final: Path


@contextlib.contextmanager
def folder_to_fill(wanted: Path, replace: bool) -> Iterator[Target]:
    """A temporary folder that becomes the wanted one, or a version of it if that is taken."""
    temporary = wanted.with_name(f".{wanted.name}.{uuid.uuid4().hex[:8]}.tmp")
    target = Target(temporary, wanted)
    try:
        temporary.mkdir(parents=True)
        yield target
        with one_at_a_time(wanted.parent):  # another process may have come first by now
            # A file in the place of the folder counts as taken, too.
            taken = wanted.is_file() or any((wanted / name).exists() for name in FILES)
            if taken and not replace:
                target.final = free_version(wanted)
            move_into_place(temporary, target.final)
    except OSError as error:
        raise OutputError(f"{wanted}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_into_place(temporary: Path, final: Path) -> None:
    """Give a folder its name; what had it before goes, unless it holds files of others too.

    Then the files are moved into it, the graph last: a folder without a graph is not a saved graph,
    so half of one is never loaded.
    """
    others = set(os.listdir(final)) - FILES if final.exists() else set()
    if others:
        for name in (GRAPH, VALUES):
            (final / name).unlink(missing_ok=True)
        for name in sorted(os.listdir(temporary), key=lambda name: name == GRAPH):
            (temporary / name).replace(final / name)
        return
    old = temporary.with_suffix(".old")
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with regular(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seal(record: dict[str, Any]) -> str:
    """A record as the text of a file that ends with its own checksum."""
    text = json.dumps(record)
    return text[:-1] + SEAL % hashlib.sha256(text.encode()).hexdigest()


def check_seal(text: str, path: Path) -> None:
    """Raise if a record is not what was written; one of an earlier version has no checksum."""
    place = text.rfind(SEAL[:14])
    if place < 0:
        return
    found = hashlib.sha256(f"{text[:place]}}}".encode()).hexdigest()
    if text[place:] != SEAL % found:
        raise CheckpointError(f"{path}: is damaged: its checksum is wrong")


def load_mase_graph(path: str | Path, given: MaseGraph | None = None) -> MaseGraph:
    """The graph that was saved in a folder.

    Nothing in the files is run. A file that is missing, damaged or not what it should be raises
    CheckpointError and says which.

    Args:
        path: the folder or the ``graph.json`` in it.
        given: a graph with the custom layers and functions.
    """
    folder = graph_folder(Path(path))
    record = read_record(folder / GRAPH)
    for name, stated in {WEIGHTS: record.digest, **record.digests}.items():
        if name in FILES and digest_of(folder / name) != stated:
            raise CheckpointError(f"{folder / name}: damaged, or saved with another {GRAPH}")
    tensors = read_tensors(folder / WEIGHTS)
    try:
        with saying(f"{folder / GRAPH}: "):
            record, tensors = moved_in(record, tensors)
            root = build_root(record, tensors, given)
            model = build_graph(record, root, given)
            cf_args = restore_value(record.cf_args)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    model.training = record.training
    graph = MaseGraph(model, cf_args)
    graph.preprocessing = read_preprocessing(record.preprocessing, folder / GRAPH)
    if record.metadata is None:  # saved by an earlier version
        load_metadata(graph, folder / METADATA)
        return graph
    values = folder / VALUES
    with refusing_metadata(folder / GRAPH):
        restore_metadata(graph, record.metadata, read_tensors(values) if values.exists() else {})
    return graph


def digest_of(path: Path) -> str:
    """The SHA-256 of a file that may be missing."""
    try:
        return digest(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None


def refuse_pickle(path: Path) -> None:
    """Raise for a file of the original's: unpickling runs whatever code is in it."""
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path}: is a pickle, and loading a pickle runs any code that is hidden in it; "
            "load its state dict with load type 'pt' or 'pl' and save the graph with chop"
        )


def graph_folder(path: Path) -> Path:
    """The folder that a path means; pickled graphs are refused."""
    if path.is_file():
        refuse_pickle(path)
        if path.name != GRAPH:
            raise CheckpointError(f"{path}: is not {GRAPH} of a saved graph")
        return path.parent
    if not (path / GRAPH).exists():
        refuse_pickle(path / PICKLED_GRAPH if (path / PICKLED_GRAPH).exists() else path)
        raise CheckpointError(f"{path}: holds no {GRAPH}, so no graph was saved there")
    return path


def read_record(path: Path) -> GraphRecord:
    """The record in a file."""
    try:
        text = read_text(path)
        check_seal(text, path)
        return GraphRecord.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(f"{step}"[:60] for step in first["loc"]).encode("unicode_escape").decode()
        raise CheckpointError(f"{path}: {place or 'file'}: {problem(error)}") from None
