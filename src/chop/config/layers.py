"""Default < file < command line: what was given where, and what is in effect."""

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from chop import __version__
from chop.config.arguments import SETTINGS, flags_of
from chop.config.option import Setting
from chop.config.run import REMOVED, RunConfig
from chop.config.toml import NOTHING, read_toml
from chop.config.trust import check_imports
from chop.errors import ConfigError, UnknownNameError, suggestion
from chop.masking import masked_values

GREY, PLAIN = "\033[38;5;8m", "\033[0m"
COLUMN_WIDTH = 24


@dataclass(frozen=True)
class Layers:
    """The settings that each layer gives; a later layer wins."""

    file: Mapping[str, Any]
    command_line: Mapping[str, Any]
    file_name: str | None = None

    @classmethod
    def read(cls, file_name: str | None, command_line: Mapping[str, Any]) -> "Layers":
        """The layers of one call of ``ch``; `command_line` holds the texts that were given."""
        file = checked_file(Path(file_name)) if file_name else {}
        given = {name: checked_argument(name, value) for name, value in command_line.items()}
        check_imports(file.get("imports", ()), given.get("imports", ()), file_name)
        return cls(file, given, file_name)

    @property
    def config(self) -> RunConfig:
        """The settings in effect."""
        return RunConfig(**self.effective)

    @property
    def effective(self) -> dict[str, Any]:
        # A file tells what it needs; only the command line can have it run.
        return {**self.file, "imports": [], **self.command_line}

    def record(self, command: list[str]) -> dict[str, Any]:
        """What was run and who set what, as plain values to store beside the results."""
        names = ["name", "default", "file", "command_line", "effective"]
        settings = [dict(zip(names, row, strict=True)) for row in self.rows()]
        return {
            "version": __version__,
            "command": masked_values(command),
            "config_file": self.file_name,
            "settings": settings,
        }

    def rows(self) -> list[list[Any]]:
        """Name, default, file, command line and effect of each setting that is shown."""
        effective = {name: setting.default for name, setting in SETTINGS.items()} | self.effective
        rows = [
            [name, setting.default, self.file.get(name, ""), self.command_line.get(name, ""),
             effective[name]]
            for name, setting in SETTINGS.items()
            if setting.option.listed
        ]  # fmt: skip
        return [masked_values(row) for row in rows]


def checked_file(path: Path) -> dict[str, Any]:
    """The settings in a file, each of its right type."""
    values = read_toml(path)
    return {
        name: checked(name, value, f"{path}: {name}", str(path)) for name, value in values.items()
    }


def checked_argument(name: str, text: Any) -> Any:
    """A setting given on the command line, as the value it stands for."""
    flags = flags_of(SETTINGS[name])
    where = flags[-1] if flags else name
    return checked(name, None if text == NOTHING else text, where, where, strict=False)


def checked(name: str, value: Any, where: str, owner: str, *, strict: bool = True) -> Any:
    """`value` as setting `name` holds it.

    Args:
        where: the setting as the user wrote it, for the message.
        owner: where an unknown name stands.
        strict: a file says numbers as numbers; a command line has only text.
    """
    setting = setting_named(name, owner)
    value = setting.option.usual(value)
    if value is None:
        return _none(setting, where)
    if setting.choices and value not in setting.choices:
        raise ConfigError(
            f"{where}: no choice {value!r}: {suggestion(str(value), setting.choices)}"
        )
    return _typed(setting, value, where, strict)


def setting_named(name: str, owner: str) -> Setting:
    """A setting by name; one that the original had says why it is gone."""
    if name in REMOVED:
        raise ConfigError(f"{owner}: {name} has no meaning here: {REMOVED[name]}")
    if name not in SETTINGS:
        raise UnknownNameError("key", name, SETTINGS, where=owner)
    return SETTINGS[name]


def settings_table(layers: Layers, *, colour: bool) -> str:
    """The table that shows who set what; values that lost are grey where colours are wanted."""
    from tabulate import tabulate

    headers = ["Name", "Default", "Config. File", "Manual Override", "Effective"]
    rows = [_shown(row, colour=colour) for row in layers.rows()]
    if layers.file_name is None:
        headers, rows = _without(2, headers), [_without(2, row) for row in rows]
    return tabulate(
        rows,
        headers,
        tablefmt="pretty",
        colalign=["left"] + ["center"] * (len(headers) - 1),
        disable_numparse=True,
    )


def wants_colour(stream: Any) -> bool:
    """Whether a stream is a terminal whose user has not asked for plain text."""
    return bool(stream.isatty()) and "NO_COLOR" not in os.environ


def _none(setting: Setting, where: str) -> None:
    if not setting.optional:
        raise ConfigError(f"{where}: none is not possible; the default is {setting.default!r}")


def _typed(setting: Setting, value: Any, where: str, strict: bool) -> Any:
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

    setting = SETTINGS[name]
    limits = setting.option.bounds
    if setting.type is float:
        limits["allow_inf_nan"] = False
    annotation: Any = Annotated[setting.type, Field(**limits)]
    return TypeAdapter(annotation)


def _shown(row: list[Any], *, colour: bool) -> list[str]:
    """The row as text; with colours, every given value but the winning one is grey."""
    given = [place for place, value in enumerate(row[:-1]) if value != ""]
    lost = given[1:-1] if colour else []  # the first is the name
    return [_wrapped(str(value), grey=place in lost) for place, value in enumerate(row)]


def _wrapped(text: str, *, grey: bool) -> str:
    # Not left to tabulate: its own wrapping turns the text "False" into True.
    lines = textwrap.wrap(text, COLUMN_WIDTH) or [""]
    return "\n".join(f"{GREY}{line}{PLAIN}" if grey else line for line in lines)


def _without(place: int, row: list[Any]) -> list[Any]:
    return row[:place] + row[place + 1 :]
