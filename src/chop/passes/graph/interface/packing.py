"""Rounded weights as the integer codes of their number format, packed bit by bit."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn

from chop.nn.quantized import QuantizedModule
from chop.numerics import FORMATS, Encoded, NumberFormat
from chop.passes.base import PassArgs
from chop.passes.graph.interface.codec import DTYPES, from_plain, to_plain
from chop.validation import parse

CHUNK = 1 << 20  # elements packed at a time, a multiple of eight


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

    shape: list[NonNegativeInt]
    bits: int = Field(ge=1, le=64)
    dtype: str
    codes: Literal["uint8", "int8", "int16", "int32", "int64"] = "uint8"


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
    packed: np.ndarray[Any, Any], bits: int, count: int, signed: bool
) -> np.ndarray[Any, Any]:
    """The integers that were packed, as int64."""
    places = np.arange(bits, dtype=np.int64)
    parts = []
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        first = start * bits // 8
        chunk = packed[first : first + -(-size * bits // 8)]
        flags = np.unpackbits(chunk, count=size * bits, bitorder="little").reshape(size, bits)
        parts.append((flags.astype(np.int64) << places).sum(1))
    whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return np.where(whole >> (bits - 1) & 1, whole - (1 << bits), whole) if signed else whole


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
    codes = unpacked_codes(packed)
    if record.number_format is None:
        return codes.bool()
    fields = from_plain(record.settings)
    fmt = parse(FORMATS[record.number_format], fields, record.number_format)
    if fmt.element_bits != record.bits or (packed.shared is None) != (fmt.shared_bits == 0):
        raise ValueError(f"these are not codes of the format {record.number_format}")
    return fmt.decode(Encoded(codes, packed.shared, DTYPES[record.dtype]))


def unpacked_codes(packed: Packed) -> Tensor:
    """The codes one by one, in their shape."""
    record = packed.record
    count = math.prod(record.shape)
    wanted = -(-count * record.bits // 8)
    if packed.codes.dtype != torch.uint8 or packed.codes.numel() != wanted:
        raise ValueError(f"{packed.codes.numel()} bytes of codes where {wanted} are needed")
    signed = record.codes != "uint8"
    codes = unpack_bits(packed.codes.numpy(), record.bits, count, signed)
    return torch.from_numpy(codes).to(DTYPES[record.codes]).reshape(record.shape)
