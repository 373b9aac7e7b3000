"""Python values as what JSON and TOML can hold, and back, without loss.

Numbers, strings, lists and dictionaries stand for themselves. Anything else is a dictionary with
one key that starts with a dollar sign: ``{"$dtype": "float32"}``, ``{"$tuple": [3, 3]}``.
"""

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

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
