"""Whose code runs: what `--import` names does, what a configuration names does not by itself."""

import os
import shlex
from collections.abc import Iterable

from chop.errors import ConfigError


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
    """What two spellings of one file have in common; what can be no path stands for itself.

    Names of modules are compared in the same way: they are equal as paths if they are equal. What
    runs is in any case what the command line says, as it says it.
    """
    try:
        return os.path.realpath(name)
    except ValueError:  # a zero in the name, or a letter that the locale does not know
        return name
