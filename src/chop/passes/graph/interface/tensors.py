"""The tensors of a graph: gathered for the file, and put back."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quantized import QuantizedModule
from chop.passes.graph.interface.codec import (
    MOST_DIMENSIONS,
    Packed,
    PackedRecord,
    formats_of,
    outline,
    pack,
    pack_mask,
    unpack,
)
from chop.passes.graph.interface.door import LONGEST, saying
from chop.passes.graph.interface.graph_file import GraphRecord, attribute_of, build_graph
from chop.passes.graph.interface.layers import finish, prepare

Weights = Literal["float", "codes"]
Tensors = dict[str, Tensor]
Packer = Callable[[Tensor], Packed | None]
CODES, SHARED = "::codes", "::shared"  # no layer's name has a colon in it


class Gathered:
    """The tensors of a graph under the names of the file."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.tensors: Tensors = {}
        self.tied: dict[str, str] = {}
        self.packed: dict[str, PackedRecord] = {}
        self.channels_last: list[str] = []
        self._seen: dict[int, tuple[str, Any]] = {}
        self._memory: set[int] = set()

    def add(self, name: str, value: Any, pack_it: Packer) -> None:
        """Take in one tensor, once."""
        if not isinstance(value, Tensor) or value.is_meta:
            raise GraphError(f"{name} holds no values that could be saved")
        # The value is kept beside its name: an id tells tensors apart only while they live.
        first, _ = self._seen.setdefault(id(value), (name, value))
        if first != name:
            self.tied[name] = first
            return
        if not value.is_contiguous() and is_channels_last(value):
            self.channels_last.append(name)
        tensor = value.detach().cpu().contiguous()
        codes = self.weights == "codes" and tensor.dim() <= MOST_DIMENSIONS
        packed = pack_it(tensor) if codes else None
        if packed is None:
            self.tensors[name] = self._own_memory(tensor)
            return
        self.packed[name] = packed.record
        self.tensors[name + CODES] = packed.codes
        if packed.shared is not None:
            self.tensors[name + SHARED] = packed.shared.contiguous()

    def _own_memory(self, tensor: Tensor) -> Tensor:
        """The tensor, copied if it shares memory with another: the file format refuses that."""
        place = tensor.untyped_storage().data_ptr()
        if place in self._memory:
            return tensor.clone()
        self._memory.add(place)
        return tensor


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of an image tensor come last in memory."""
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def gather(graph: MaseGraph, record: GraphRecord, weights: Weights) -> Gathered:
    """Every tensor that the graph needs."""
    gathered = Gathered(weights)
    for name in record.layers:
        layer = graph.model.get_submodule(name)
        for key, value in layer.state_dict(keep_vars=True).items():
            gathered.add(f"{name}.{key}", value, packer(layer, key))
    for name in record.attributes:
        gathered.add(name, attribute_of(graph.model, name), not_packed)
    return gathered


def not_packed(tensor: Tensor) -> None:
    """Leave a tensor as it is."""


def packer(layer: nn.Module, key: str) -> Packer:
    """How a tensor of a layer is packed when codes are asked for.

    A format that rounds by chance draws at every run, so its codes would be those of one draw only.
    """
    fmt = formats_of(layer).get(key)
    if getattr(fmt, "stochastic", False):
        return not_packed
    if fmt is not None and isinstance(layer, QuantizedModule):
        name = layer.quant.name
        return lambda tensor: pack(name, fmt, tensor)
    return pack_mask if key in ("weight_mask", "activation_mask") else not_packed


def plain_tensors(
    record: GraphRecord, tensors: Tensors, unpack: Callable[[Packed], Tensor]
) -> Tensors:
    """The tensors under their names in the model, unpacked; what does not fit raises ValueError."""
    plain = dict(tensors)
    for name, how in record.packed.items():
        if name in plain or name + CODES not in plain:
            raise ValueError(f"the codes of {name!r} are missing")
        packed = Packed(how, plain.pop(name + CODES), plain.pop(name + SHARED, None))
        with saying(f"{name!r}: "):
            plain[name] = unpack(packed)
    for name in record.channels_last:
        plain[name] = plain[name].contiguous(memory_format=torch.channels_last)
    for name, first in record.tied.items():
        if first not in plain or name in plain:
            raise ValueError(f"{name!r} is tied to {first!r}, which is not there")
        plain[name] = plain[first]
    return plain


def build_root(record: GraphRecord, tensors: Tensors, given: MaseGraph | None) -> nn.Module:
    """A module that holds every layer and tensor under its name; errors are ValueErrors.

    Layers and shapes are compared first, without values: a file whose parts do not fit is refused
    before any of it is unpacked.
    """
    without_values = {name: tensor.to("meta") for name, tensor in tensors.items()}
    outlines = by_layer(record, plain_tensors(record, without_values, outline))
    provided = {} if given is None else given.modules
    layers = {}
    for name, layer in record.layers.items():
        with saying(f"layer {name!r}: "):
            layers[name] = prepare(layer, provided.get(name), outlines[name])
    values = plain_tensors(record, tensors, unpack)
    groups = by_layer(record, values)
    for name, layer in record.layers.items():
        with saying(f"layer {name!r}: "):
            layers[name] = finish(layer, layers[name], groups[name])
    attributes = {
        name: nn.Parameter(values[name], how.trained) if how.parameter else values[name]
        for name, how in record.attributes.items()
    }
    root = rooted(record, layers, attributes)
    for name, first in record.tied.items():
        put(root, name, attribute_of(root, first))
    return root


def rooted(
    record: GraphRecord, layers: Mapping[str, nn.Module], attributes: Mapping[str, Tensor]
) -> nn.Module:
    """A module with the layers and tensors of a graph under their names."""
    root = nn.Module()
    for name, layer in layers.items():
        put(root, name, layer)
    for name, first in record.same_layer.items():
        put(root, name, layers[first])
    for name, value in attributes.items():
        put(root, name, value)
    return root


def prove(graph: MaseGraph, record: GraphRecord) -> None:
    """Raise unless the record brings the graph back: its nodes are built from it and compared."""
    layers = {name: graph.model.get_submodule(name) for name in record.layers}
    attributes = {name: attribute_of(graph.model, name) for name in record.attributes}
    try:
        with saying("the graph cannot be saved: "):
            built = build_graph(record, rooted(record, layers, attributes), graph)
            found = {name: attribute_of(built, name) for name in (*layers, *attributes)}
    except ValueError as error:
        raise GraphError(str(error)) from error
    for name, value in found.items():
        if value is not (layers | attributes)[name]:
            raise GraphError(f"{name!r} cannot be saved: a graph has something else of that name")
    for node, twin in zip(graph.nodes, built.graph.nodes, strict=True):
        facts = [(n.name, n.op, n.target, repr(n.args), repr(n.kwargs)) for n in (node, twin)]
        if facts[0] != facts[1]:
            raise GraphError(f"node {node.name!r} cannot be saved: it would come back otherwise")


def by_layer(record: GraphRecord, tensors: Tensors) -> dict[str, Tensors]:
    """The tensors of each layer by their names in it; a tensor of no layer is an error."""
    groups: dict[str, Tensors] = {name: {} for name in record.layers}
    for name, tensor in tensors.items():
        if len(name) > 2 * LONGEST:
            raise ValueError(f"tensor {name!r:.60} has too long a name")
        owner, _, last = name.rpartition(".")
        while owner and owner not in groups:
            owner, _, outer = owner.rpartition(".")
            last = f"{outer}.{last}"
        if owner in groups:
            groups[owner][last] = tensor
        elif name not in record.attributes:
            raise ValueError(f"tensor {name!r:.60} belongs to nothing")
    missing = [name for name in record.attributes if name not in tensors]
    if missing:
        raise ValueError(f"tensor {missing[0]!r} is missing")
    return groups


def put(root: nn.Module, name: str, value: nn.Module | Tensor) -> None:
    """Set an attribute by its dotted name, with plain modules on the way to it."""
    *path, last = name.split(".")
    owner = root
    for part in path:
        if not isinstance(getattr(owner, part, None), nn.Module):
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    if isinstance(value, nn.Module | nn.Parameter) or last in owner._buffers:
        setattr(owner, last, value)
    else:
        owner.register_buffer(last, value)
