"""Settings in layers, default < file < command line, and who set what."""

import datetime
import os
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from chop import __version__
from chop.config.option import Setting, declared_settings
from chop.config.run import DATA, REMOVED, RunConfig
from chop.config.verb import all_options, main_flag, settings
from chop.errors import ConfigError, UnknownNameError, suggestion
from chop.files import check_nameable, regular, write_text
from chop.masking import masked_values, printable

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


def write_toml(path: Path, tables: dict[str, Any], comment: str = "") -> None:
    """Write tables, none turned into "NA", below a comment; `tables` itself is not changed."""
    import tomlkit

    head = f"# {comment}\n\n" if comment else ""
    write_text(path, head + tomlkit.dumps(none_to_na(tables)))


def na_to_none(value: Any) -> Any:
    """A copy in which every "NA" is None."""
    return _replace_value(value, NOTHING, None)


def none_to_na(value: Any) -> Any:
    """A copy in which every none is "NA"."""
    return _replace_value(value, None, NOTHING)


def _replace_value(value: Any, old: object, new: object) -> Any:
    if isinstance(value, dict):
        return {key: _replace_value(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_value(item, old, new) for item in value]
    return new if value == old and type(value) is type(old) else value


def _check(value: Any, levels: int, path: Path, place: tuple[str, ...] = ()) -> None:
    """Refuse what no setting can be: larger integers, zero bytes, dates, what is nested too deep.

    Args:
        place: the keys that lead to it.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{path}: not valid TOML: {str(value)[:25]}… takes more than 64 bits")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{path}: the text {value[:25]!r} holds a zero byte, as no name may")
    if isinstance(value, datetime.date | datetime.time):
        raise ConfigError(
            f"{path}: {'.'.join(place)} is the date or time {value}, as no setting is: text stands "
            "in quotes"
        )
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ConfigError(f"{path}: tables or lists are nested more than {DEEPEST} levels deep")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        _check(item, levels - 1, path, (*place, str(key)))


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


def check_imports(needed: Iterable[str], given: Iterable[str], file_name: str | None) -> None:
    """Refuse a configuration that needs code which the command line does not name.

    Args:
        needed: the files and modules that the configuration names.
        given: those of the command line, which are trusted.
    """
    trusted = {_place(name) for name in given}
    missing = [name for name in dict.fromkeys(needed) if _place(name) not in trusted]
    if missing:
        names = ", ".join(map(repr, missing))
        options = " ".join(f"--import {shlex.quote(name)}" for name in missing)
        its, it = ("its", "it") if len(missing) == 1 else ("their", "them")
        raise ConfigError(
            f"{file_name}: imports {names}, which would run {its} code: "
            f"add {options} if you trust {it}"
        )


def _place(name: str) -> str:
    """Return what two spellings of a file have in common; a text that cannot be a path is returned.

    Names of modules are compared in the same way: they are equal as paths if they are equal. What
    runs is in any case what the command line says, as it says it.
    """
    try:
        return os.path.realpath(name)
    except ValueError:  # a zero in the name, or a letter that the locale does not know
        return name


OWN_ROWS = {".csv": "csv", ".npz": "npz", ".parquet": "parquet"}
"""The data set that a file of one's own is, by the end of its name."""


def spelled_out(options: Mapping[str, Any]) -> dict[str, Any]:
    """Write out the short forms of a command line: ``my_net.py:Net`` and ``my_data.csv``."""
    found = dict(options)
    model, dataset = str(options.get("model", "")), str(options.get("dataset", ""))
    path, _, name = model.rpartition(":")
    if path.endswith(".py"):
        found |= {"model": name, "imports": [*options.get("imports", ()), model]}
    if kind := OWN_ROWS.get(Path(dataset).suffix.lower()):
        if "dataset_path" in options:
            raise ConfigError(f"{dataset} and --dataset-path both name the rows: leave one out")
        found |= {"dataset": kind, "dataset_path": dataset}
    return found


GREY, PLAIN = "\033[38;5;8m", "\033[0m"
COLUMN_WIDTHS = (24, 18, 14, 11, 9)  # the widest that fits; `Manual Override` itself takes 15


@dataclass(frozen=True)
class Layers:
    """The settings that each layer gives; a later layer wins."""

    file: Mapping[str, Any]
    command_line: Mapping[str, Any]
    file_name: str | None = None
    project: Mapping[str, Any] = field(default_factory=dict)
    """What the project of ``--load`` knows and is not given; the lowest layer."""
    request: type[RunConfig] = RunConfig
    """What the settings are for; a file may have those of other requests."""

    @classmethod
    def read(
        cls,
        file_name: str | None,
        command_line: Mapping[str, Any],
        request: type[RunConfig] = RunConfig,
    ) -> "Layers":
        """The layers of one call of ``ch``; `command_line` holds the texts that were given."""
        file = checked_file(Path(file_name)) if file_name else {}
        given = {name: checked_argument(name, value) for name, value in command_line.items()}
        check_imports(file.get("imports", ()), given.get("imports", ()), file_name)
        return cls(file, given, file_name, request=request)

    @property
    def config(self) -> RunConfig:
        """The settings in effect."""
        known = declared_settings(self.request)
        return self.request(**{k: each for k, each in self.effective.items() if k in known})

    @property
    def names_model(self) -> bool:
        """Return whether the command line names the model, so that a hub may be asked for it."""
        return "model" in self.command_line

    @property
    def effective(self) -> dict[str, Any]:
        file = dict(self.file)
        if "load_name" in file and "load_name" in self.command_line:
            file.pop("load_type", None)  # it is said of the path in the file, not of this one
        # A file tells what it needs; only the command line can have it run.
        return {**self.project, **file, "imports": [], **self.command_line}

    def record(self, command: list[str]) -> dict[str, Any]:
        """Return what was run and who set what, as plain values to store beside the results."""
        names = ["name", "default", "file", "command_line", "effective"]
        settings = [dict(zip(names, row, strict=True)) for row in self.rows()]
        return {
            "version": __version__,
            "command": masked_values(command),
            "config_file": self.file_name,
            "settings": settings,
        }

    def rows(self) -> list[list[Any]]:
        """Name, default, file, command line and effect of each setting that is shown.

        Of those of the data all that were given are, as other rows would be others without them.
        """
        known = declared_settings(self.request)
        effective = {name: setting.default for name, setting in known.items()} | self.effective
        rows = [
            [name, setting.default, self.file.get(name, ""), self.command_line.get(name, ""),
             effective[name]]
            for name, setting in known.items()
            if setting.option.listed or (setting.option.group == DATA and effective[name])
        ]  # fmt: skip
        return [masked_values(row) for row in rows]


def checked_file(path: Path) -> dict[str, Any]:
    """The settings in a file, each of its right type."""
    values = read_toml(path)
    return {
        name: check_setting_value(name, value, f"{path}: {name}", str(path))
        for name, value in values.items()
    }


def checked_argument(name: str, text: Any) -> Any:
    """Return the value of an option of the command line, checked."""
    where = main_flag(all_options()[name]) or name
    return check_setting_value(name, None if text == NOTHING else text, where, where, strict=False)


def check_setting_value(
    name: str, value: Any, where: str, owner: str, *, strict: bool = True
) -> Any:
    """`value` as setting `name` holds it.

    Args:
        where: the setting as the user wrote it, for the message.
        owner: where an unknown name stands.
        strict: a file says numbers as numbers; a command line has only text.
    """
    setting = setting_named(name, owner) if strict else all_options()[name]
    value = setting.option.usual(value)
    if value is None:
        if not setting.optional:
            raise ConfigError(f"{where}: none is not possible; the default is {setting.default!r}")
        return None
    if setting.choices and value not in setting.choices:
        raise ConfigError(
            f"{where}: no choice {value!r}: {suggestion(str(value), setting.choices)}"
        )
    typed = _parse_value(setting, value, where, strict)
    if setting.option.names in ("file", "folder"):
        for path in typed if isinstance(typed, list) else [typed]:
            check_nameable(path, where)
    return typed


def setting_named(name: str, owner: str) -> Setting:
    """A setting by name; one that the original had says why it is gone."""
    if name in REMOVED:
        raise ConfigError(f"{owner}: {name} has no meaning here: {REMOVED[name]}")
    known = settings()
    if name not in known:
        raise UnknownNameError("key", name, known, where=owner)
    return known[name]


def layers_table(
    layers: Layers, *, colour: bool, complete: bool = True, room: int | None = None
) -> str:
    """The table that shows who set what; values that lost are grey where colours are wanted.

    Args:
        complete: list the settings that nobody has changed as well.
        room: columns of the terminal; values are wrapped until the table fits.
    """
    given = [row for row in layers.rows() if complete or _is_changed(row)]
    for width in COLUMN_WIDTHS:
        table = _table(layers, [_render_row(row, width, colour=colour) for row in given])
        if room is None or len(table.partition("\n")[0]) <= room:
            break
    return table


def _is_changed(row: list[Any]) -> bool:
    """Return whether a file or the command line says something else than the default."""
    _, default, *given, _ = row
    return any(value not in ("", default) for value in given)


def _table(layers: Layers, rows: list[list[str]]) -> str:
    from tabulate import tabulate

    headers = ["Name", "Default", "Config. File", "Manual Override", "Effective"]
    if layers.file_name is None:
        headers, rows = _drop_column(2, headers), [_drop_column(2, row) for row in rows]
    return tabulate(
        rows,
        headers,
        tablefmt="pretty",
        colalign=["left"] + ["center"] * (len(headers) - 1),
        disable_numparse=True,
    )


def wants_colour(stream: Any) -> bool:
    """Return whether a stream is a terminal whose user has not asked for plain text."""
    return bool(stream.isatty()) and "NO_COLOR" not in os.environ


def _parse_value(setting: Setting, value: Any, where: str, strict: bool) -> Any:
    from pydantic import ValidationError

    from chop.validation import first_problem

    try:
        return _adapter(setting.name).validate_python(value, strict=strict)
    except ValidationError as error:
        # What stands after the comma tells how the text was read, which is plain to see.
        problem = first_problem(error, RunConfig).partition(", unable to parse")[0]
        got = "" if "(got " in problem else f" (got {masked_values(value)!r:.60})"
        raise ConfigError(f"{where}: {problem}{got}") from None


@cache
def _adapter(name: str) -> Any:
    from pydantic import Field, TypeAdapter

    setting = all_options()[name]
    limits = setting.option.bounds
    if setting.type is float:
        limits["allow_inf_nan"] = False
    annotation: Any = Annotated[setting.type, Field(**limits)]
    return TypeAdapter(annotation)


def _render_row(row: list[Any], width: int, *, colour: bool) -> list[str]:
    """The row as text; with colours, every given value but the winning one is grey."""
    given = [place for place, value in enumerate(row[:-1]) if value != ""]
    lost = given[1:-1] if colour else []  # the first is the name
    values = enumerate(row[1:], start=1)
    texts = ((at, printable(str(each))) for at, each in values)
    return [str(row[0]), *(_wrap(each, width, grey=at in lost) for at, each in texts)]


def _wrap(text: str, width: int, *, grey: bool) -> str:
    # Not left to tabulate: its own wrapping turns the text "False" into True.
    lines = textwrap.wrap(text, width) or [""]
    return "\n".join(f"{GREY}{line}{PLAIN}" if grey else line for line in lines)


def _drop_column(place: int, row: list[Any]) -> list[Any]:
    return row[:place] + row[place + 1 :]
