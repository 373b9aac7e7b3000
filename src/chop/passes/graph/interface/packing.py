"""Rounded weights as the integer codes of their number format, packed bit by bit."""

import math
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, model_validator
from torch import Tensor, nn

from chop.nn.quantized import QuantizedModule
from chop.numerics import FORMATS, Encoded, NumberFormat
from chop.passes.base import PassArgs
from chop.passes.graph.interface.codec import DTYPES, from_plain, to_plain
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
    """The number format of each parameter of a quantised layer, those with a state left aside."""
    if not isinstance(module, QuantizedModule) or module.bypass:
        return {}
    formats, learned = module.quant.operands, module.quantizers_by_role
    return {name: formats[name] for name in module.op.params if name in formats.keys() - learned}


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
