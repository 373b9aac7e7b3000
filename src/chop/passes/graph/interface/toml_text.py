"""Writing TOML fast: tomlkit keeps comments and layout and takes minutes for large graphs."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(tables: Mapping[tuple[str, ...], Mapping[str, Any]]) -> str:
    """Tables by their path as TOML.

    What is nested deeper has dotted keys rather than headers of its own: TOML wants the tables in
    a table after its values, and the order of keys would be lost.
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
