"""Tensors of a saved graph: as they are, or packed as codes of their formats."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, model_validator
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quantized import QuantizedModule
from chop.numerics import FORMATS, Encoded, NumberFormat
from chop.passes.base import PassArgs
from chop.passes.graph.interface.door import LONGEST, saying
from chop.passes.graph.interface.graph_file import GraphRecord, attribute_of, build_graph
from chop.passes.graph.interface.layers import finish, prepare
from chop.passes.graph.interface.values import DTYPES, from_plain, to_plain
from chop.validation import parse

CHUNK = 1 << 17  # elements packed at a time, a multiple of eight
MOST_DIMENSIONS, MOST_ELEMENTS = 8, 1 << 48
WHOLE = {"uint8": "<u1", "int8": "<i1", "int16": "<i2", "int32": "<i4", "int64": "<i8"}
Codes = Literal["uint8", "int8", "int16", "int32", "int64"]


class PackedRecord(PassArgs):
    """How one tensor is packed.

    Args:
        number_format: the name of the format; None for a mask, whose codes are its bits.
        settings: the fields of the format.
        shape: of the tensor.
        bits: of the code of one element.
        dtype: of the tensor.
        codes: the integer type of the codes before they were packed.
    """

    number_format: str | None = None
    settings: dict[str, Any] = Field(default={})

    shape: list[NonNegativeInt] = Field(max_length=MOST_DIMENSIONS)
    bits: int = Field(ge=1, le=64)
    dtype: str
    codes: Codes = "uint8"

    @model_validator(mode="after")
    def _is_one_of_ours(self) -> Self:
        mask = self.number_format is None
        dtype = DTYPES.get(self.dtype)
        if dtype is None or (dtype != torch.bool if mask else not dtype.is_floating_point):
            raise ValueError(f"codes do not stand for {self.dtype!r:.40}")
        if self.bits > torch.iinfo(DTYPES[self.codes]).bits or (mask and self.bits != 1):
            raise ValueError(f"{self.bits} bits do not fit into {self.codes}")
        if math.prod(self.shape) > MOST_ELEMENTS:
            raise ValueError(f"no tensor has the shape {self.shape}")
        return self

    @property
    def size(self) -> int:
        """Bytes of the packed codes."""
        return -(-math.prod(self.shape) * self.bits // 8)


class Packed(NamedTuple):
    """A packed tensor: its description, its codes and what its blocks share."""

    record: PackedRecord
    codes: Tensor
    shared: Tensor | None


def pack_bits(codes: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """The lowest `bits` bits of each integer, one after the other."""
    places = np.arange(bits, dtype=np.int64)
    parts = []
    for start in range(0, len(codes), CHUNK):
        chunk = codes[start : start + CHUNK].astype(np.int64, copy=False)
        flags = ((chunk[:, None] >> places) & 1).astype(np.uint8)
        parts.append(np.packbits(flags.reshape(-1), bitorder="little"))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def unpack_bits(
    packed: np.ndarray[Any, Any], bits: int, count: int, codes: Codes
) -> np.ndarray[Any, Any]:
    """The integers that were packed, in the type that they had."""
    if bits == 1 and codes == "uint8":
        return np.unpackbits(packed, count=count, bitorder="little")
    whole = np.empty(count, WHOLE[codes])
    size = whole.itemsize * 8
    for start in range(0, count, CHUNK):
        part = whole[start : start + CHUNK]
        first = start * bits // 8
        chunk = packed[first : first + -(-len(part) * bits // 8)]
        flags = np.zeros((len(part), size), np.uint8)
        flags[:, :bits] = np.unpackbits(chunk, count=len(part) * bits, bitorder="little").reshape(
            len(part), bits
        )
        if codes != "uint8":  # the highest bit is the sign, and all above it are the same
            flags[:, bits:] = flags[:, bits - 1 : bits]
        part[:] = np.packbits(flags, axis=1, bitorder="little").view(WHOLE[codes])[:, 0]
    return whole


def formats_of(module: nn.Module) -> dict[str, NumberFormat]:
    """The number format of each parameter of a quantised layer."""
    if not isinstance(module, QuantizedModule) or module.bypass:
        return {}
    formats = module.quant.operands
    return {name: formats[name] for name in module.op.params if name in formats}


def pack(name: str, fmt: NumberFormat, tensor: Tensor) -> Packed | None:
    """The tensor rounded and packed; None if it would not come back as it is rounded.

    A format that draws at random or that rounds its own values again is stored as floats.

    Args:
        name: what the format is called in the registry.
    """
    rounded = fmt.round_to(tensor)
    if not torch.equal(fmt.round_to(rounded), rounded):
        return None
    encoded = fmt.encode(tensor)
    record = PackedRecord(
        number_format=name,
        settings=to_plain(fmt.model_dump()),
        shape=list(tensor.shape),
        bits=fmt.element_bits,
        dtype=str(tensor.dtype).removeprefix("torch."),
        codes=str(encoded.codes.dtype).removeprefix("torch."),
    )
    codes = pack_bits(encoded.codes.flatten().numpy(), fmt.element_bits)
    packed = Packed(record, torch.from_numpy(codes), encoded.shared)
    return packed if torch.equal(unpack(packed), rounded) else None


def pack_mask(mask: Tensor) -> Packed:
    """A mask at one bit an element."""
    record = PackedRecord(shape=list(mask.shape), bits=1, dtype="bool")
    return Packed(record, torch.from_numpy(pack_bits(mask.flatten().numpy(), 1)), None)


def unpack(packed: Packed) -> Tensor:
    """The rounded tensor; codes that do not fit raise ValueError."""
    record = packed.record
    outline(packed)
    count = math.prod(record.shape)
    found = unpack_bits(packed.codes.numpy(), record.bits, count, record.codes)
    codes = torch.from_numpy(found).reshape(record.shape)
    fmt = format_of(record)
    if fmt is None:
        return codes.view(torch.bool)
    return fmt.decode(Encoded(codes, packed.shared, DTYPES[record.dtype]))


def outline(packed: Packed) -> Tensor:
    """The rounded tensor without its values; codes that do not fit raise ValueError."""
    record, shared = packed.record, packed.shared
    if packed.codes.dtype != torch.uint8 or list(packed.codes.shape) != [record.size]:
        raise ValueError(f"{packed.codes.numel()} bytes of codes where {record.size} are needed")
    fmt = format_of(record)
    shares = fmt is not None and fmt.shared_bits != 0
    if shares != (shared is not None):
        raise ValueError(f"these are not codes of the format {record.number_format}")
    # One number for each block: more would spread the codes over a larger tensor.
    if shared is not None and shared.numel() > max(math.prod(record.shape), 1):
        raise ValueError(f"{shared.numel()} numbers are shared by fewer elements")
    return torch.empty(record.shape, dtype=DTYPES[record.dtype], device="meta")


def format_of(record: PackedRecord) -> NumberFormat | None:
    """The number format of codes; None for a mask."""
    name = record.number_format
    if name is None:
        return None
    if name not in FORMATS:
        raise ValueError(f"{name!r:.40} is no number format")
    fmt = parse(FORMATS[name], from_plain(record.settings), name)
    if fmt.element_bits != record.bits:
        raise ValueError(f"these are not codes of the format {name}")
    return fmt


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
