"""TOML files: read and written, with "NA" for none, which TOML itself cannot say."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.files import regular, write_text

MAX_BYTES = 4 * 2**20  # a configuration of this size is some other file
DEEPEST = 32  # levels of tables and lists; a configuration has six or so
BETWEEN_KEYS, MOST_DOTS = re.compile(r"[,={}\[\]#\n]"), 64
"""For a dotted key tomllib takes time and memory that grow with the square of its parts."""
NOTHING = "NA"


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, "NA" turned into none."""
    tables = _tables(_text(path), path)
    _check(tables, DEEPEST, path)
    read: dict[str, Any] = na_to_none(tables)
    return read


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file, "NA" turned into none; the original's name for it."""
    return read_toml(Path(path).expanduser())


def write_toml(path: Path, tables: dict[str, Any]) -> None:
    """Write tables, none turned into "NA"; `tables` itself is not changed."""
    import tomlkit

    write_text(path, tomlkit.dumps(none_to_na(tables)))


def na_to_none(value: Any) -> Any:
    """A copy in which every "NA" is none."""
    return _replaced(value, NOTHING, None)


def none_to_na(value: Any) -> Any:
    """A copy in which every none is "NA"."""
    return _replaced(value, None, NOTHING)


def _replaced(value: Any, old: object, new: object) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item, old, new) for item in value]
    return new if value == old and type(value) is type(old) else value


def _check(value: Any, levels: int, path: Path) -> None:
    """Refuse what no setting can be: larger integers, zero bytes, what is nested too deep."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{path}: not valid TOML: {str(value)[:25]}… takes more than 64 bits")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{path}: the text {value[:25]!r} holds a zero byte, as no name may")
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ConfigError(f"{path}: tables or lists are nested more than {DEEPEST} levels deep")
    for item in value.values() if isinstance(value, dict) else value:
        _check(item, levels - 1, path)


def _text(path: Path) -> str:
    try:
        if regular(path).stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB, so not a configuration")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; a TOML file is expected") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text, so not a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _tables(text: str, path: Path) -> dict[str, Any]:
    if any(part.count(".") > MOST_DOTS for part in BETWEEN_KEYS.split(text)):
        raise ConfigError(f"{path}: a key has more than {MOST_DOTS} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of 5,000 digits is a ValueError
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
