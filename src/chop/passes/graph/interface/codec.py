"""Python values as what JSON and TOML can hold, and back, without loss.

Numbers, strings, lists and dictionaries stand for themselves. Anything else is a dictionary with
one key that starts with a dollar sign: ``{"$dtype": "float32"}``, ``{"$tuple": [3, 3]}``.
"""

import math
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


class NotStorable(TypeError):
    """A value that has no stored form."""


def to_plain(value: Any, special: Special = lambda value: None) -> Any:
    """The stored form of a value."""
    own = special(value)
    if own is not None:
        return own
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in PLAIN:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, dict):
        return _plain_dict(value, special)
    if isinstance(value, list):
        return [to_plain(item, special) for item in value]
    return _tag(value, special)


def _tag(value: Any, special: Special) -> dict[str, Any]:
    for tag, (kind, pack, _) in TAGS.items():
        if isinstance(value, kind):
            if pack is not None:
                return {tag: pack(value)}
            return {tag: [to_plain(part, special) for part in _parts(value)]}
    raise NotStorable(f"{type(value).__name__} {value!r:.60}")


def _parts(value: Any) -> tuple[Any, ...]:
    return (value.start, value.stop, value.step) if isinstance(value, slice) else tuple(value)


def _plain_dict(value: Mapping[Any, Any], special: Special) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: to_plain(item, special) for key, item in value.items()}
    return {"$dict": [[to_plain(k, special), to_plain(v, special)] for k, v in value.items()]}


def from_plain(plain: Any, special: Special = lambda plain: None) -> Any:
    """The value of a stored form; one that is none of ours raises ValueError."""
    if isinstance(plain, list):
        return [from_plain(item, special) for item in plain]
    if not isinstance(plain, dict):
        return plain
    own = special(plain)
    if own is not None:
        return own
    tag = next(iter(plain), "")
    if not tag.startswith("$"):
        return {key: from_plain(item, special) for key, item in plain.items()}
    return _tagged(tag, plain, special)


def _tagged(tag: str, plain: Mapping[str, Any], special: Special) -> Any:
    content = plain[tag]
    if tag == "$float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if tag == "$dict" and isinstance(content, list):
        return {from_plain(k, special): from_plain(v, special) for k, v in content}
    if tag not in TAGS or len(plain) != 1:
        raise ValueError(f"unknown value {dict(plain)!r:.60}")
    _, pack, unpack = TAGS[tag]
    return unpack(from_plain(content, special) if pack is None else content)


def _slice(parts: list[Any]) -> slice:
    return slice(*parts)


PLAIN = (bool, int, str)
# How each further type is packed and unpacked; None packs the items of a sequence.
TAGS: dict[str, tuple[type, Callable[[Any], Any] | None, Callable[[Any], Any]]] = {
    "$size": (torch.Size, list, torch.Size),
    "$tuple": (tuple, None, tuple),
    "$slice": (slice, None, _slice),
    "$ellipsis": (type(...), lambda value: True, lambda stored: ...),
    "$complex": (complex, lambda value: [value.real, value.imag], lambda stored: complex(*stored)),
    "$dtype": (torch.dtype, lambda value: str(value).removeprefix("torch."), DTYPES.__getitem__),
    "$device": (torch.device, str, torch.device),
    "$memory_format": (
        torch.memory_format,
        lambda value: str(value).removeprefix("torch."),
        MEMORY_FORMATS.__getitem__,
    ),
}
