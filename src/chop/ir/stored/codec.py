"""Python values as what JSON and TOML can hold, and back, without loss; rounded weights as codes.

Numbers, strings, lists and dictionaries stand for themselves. Anything else is a dictionary with
one key that starts with a dollar sign: ``{"$dtype": "float32"}``, ``{"$tuple": [3, 3]}``. Rounded
weights are packed bit by bit as the integer codes of their number format.
"""

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator
from torch import Tensor

from chop.numerics import FORMATS, Encoded, NumberFormat
from chop.numerics.int_tensor import ArrayValue
from chop.validation import parse

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


def format_tensor(value: Any) -> ArrayValue | None:
    """The value, if it is an array of a format: arrays are stored later, as tensors."""
    return value if isinstance(value, ArrayValue) else None


def _small(value: bool | int | str | None) -> bool | int | str | None:
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise NotStorable(f"a number of {value.bit_length()} bits")
    return value


def _tag(value: Any, special: Special, depth: int) -> dict[str, Any]:
    for tag, (kind, pack, _) in TAGS.items():
        if type(value) is kind:  # a named tuple would come back as a plain one
            if pack is not None:
                return {tag: pack(value)}
            if isinstance(value, slice):
                value = (value.start, value.stop, value.step)
            elif isinstance(value, complex):
                value = (value.real, value.imag)
            return {tag: [to_plain(part, special, depth + 1) for part in value]}
    raise NotStorable(f"{type(value).__name__} {value!r:.60}")


def _plain_dict(value: Mapping[Any, Any], special: Special, depth: int) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: to_plain(item, special, depth) for key, item in value.items()}
    if len(value) > MOST_KEYS:
        raise NotStorable(f"a dictionary with {len(value)} keys that are no texts")
    pairs = [[to_plain(part, special, depth + 2) for part in pair] for pair in value.items()]
    return {"$dict": pairs}


def restore_value(plain: Any, special: Special = lambda plain: None, depth: int = 0) -> Any:
    """The value of a stored form; an unknown one raises ValueError.

    Args:
        special: gives the value of a dictionary that only the caller knows, else None.
        depth: how many containers it is in.
    """
    if depth > DEEPEST:
        raise ValueError(f"values are nested deeper than {DEEPEST} levels")
    if isinstance(plain, list):
        return [restore_value(item, special, depth + 1) for item in plain]
    if isinstance(plain, dict):
        own = special(plain)
        return _table(plain, special, depth) if own is None else own
    if plain is None or isinstance(plain, str | float | torch.dtype | ArrayValue):
        return plain  # number types and tensors of formats, which the reader of a file has found
    if not isinstance(plain, int) or abs(plain) >= LARGEST:
        raise ValueError(f"unknown value {reprlib.repr(plain):.80}")
    return plain


def _table(plain: dict[str, Any], special: Special, depth: int) -> Any:
    tag = next((key for key in plain if key.startswith("$")), None)
    if tag is None:
        return {key: restore_value(item, special, depth + 1) for key, item in plain.items()}
    content = plain[tag]
    known = TAGS.get(tag)
    if len(plain) != 1 or known is None:
        raise ValueError(f"unknown value {reprlib.repr(plain):.80}")
    _, pack, unpack = known
    try:
        return unpack(restore_value(content, special, depth + 1) if pack is None else content)
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


CHUNK = 1 << 17  # elements packed at a time, a multiple of eight
MOST_DIMENSIONS, MOST_ELEMENTS = 8, 1 << 48
WHOLE = {"uint8": "<u1", "int8": "<i1", "int16": "<i2", "int32": "<i4", "int64": "<i8"}
Codes = Literal["uint8", "int8", "int16", "int32", "int64"]


class StoredRecord(BaseModel):
    """A part of a file: frozen, checked, and no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class PackedRecord(StoredRecord):
    """The way one tensor is packed.

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
    """A packed tensor: its description, its codes and what its blocks and the whole share."""

    record: PackedRecord
    codes: Tensor
    shared: Tensor | None
    overall: Tensor | None = None


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


def pack(name: str, fmt: NumberFormat, tensor: Tensor) -> Packed | None:
    """The tensor rounded and packed; None if it would not come back as it is rounded.

    A format that draws at random or that rounds its own values again is stored as floats.

    Args:
        name: what the format is called in the registry.
    """
    rounded = fmt.round_to(tensor)
    if not fmt.element_bits:  # no code of a file says how many zeros there are
        return None
    if not torch.equal(fmt.round_to(rounded), rounded):
        return None
    encoded = fmt.encode(tensor)
    record = PackedRecord(
        number_format=name,
        settings=to_plain(fmt.fields(), format_tensor),
        shape=list(tensor.shape),
        bits=fmt.element_bits,
        dtype=str(tensor.dtype).removeprefix("torch."),
        codes=str(encoded.codes.dtype).removeprefix("torch."),
    )
    codes = pack_bits(encoded.codes.flatten().numpy(), fmt.element_bits)
    packed = Packed(record, torch.from_numpy(codes), encoded.shared, encoded.overall)
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
    return fmt.decode(Encoded(codes, packed.shared, DTYPES[record.dtype], packed.overall))


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
    overall = packed.overall
    if overall is not None and (
        overall.dtype != torch.float32 or overall.dim() not in {0, len(record.shape)}
    ):
        raise ValueError(f"these are not scales of the format {record.number_format}")
    return torch.empty(record.shape, dtype=DTYPES[record.dtype], device="meta")


def format_of(record: PackedRecord) -> NumberFormat | None:
    """The number format of codes; None for a mask."""
    name = record.number_format
    if name is None:
        return None
    if name not in FORMATS:
        raise ValueError(f"{name!r:.40} is not a number format")
    fmt = parse(FORMATS[name], restore_value(record.settings), name)
    if fmt.element_bits != record.bits:
        raise ValueError(f"these are not codes of the format {name}")
    return fmt
