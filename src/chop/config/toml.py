"""TOML files: read and written, with "NA" for none, which TOML itself cannot say."""

import tomllib
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.files import write_text

MAX_BYTES = 16 * 2**20  # a configuration of this size is some other file
NOTHING = "NA"


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, "NA" turned into none."""
    tables: dict[str, Any] = na_to_none(_tables(_text(path), path))
    return tables


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


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
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
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
