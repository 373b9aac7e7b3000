"""Scripts that complete ``ch`` in bash, zsh and fish, written by shtab from the help.

A script holds all names itself: pressing the tab key starts no Python.
"""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from chop.catalogue import read_catalogue
from chop.config.command_line import action_help, main_help
from chop.config.option import Word
from chop.config.run import Debug, Quiet
from chop.config.verb import Verb, add_verb, all_options, verbs
from chop.errors import ConfigError, UnknownNameError

SHELLS = ("bash", "zsh", "fish")

Names = Mapping[str, Iterable[str]]
"""What there is of each topic of ``ch info``."""


def completion_script(shell: str, names: Names) -> str:
    """The script of a shell."""
    import shtab

    paths = {"file": shtab.FILE, "folder": shtab.DIRECTORY}
    everything = {**names, "entries": [name for topic in names.values() for name in topic]}
    root = argparse.ArgumentParser(prog="ch", parents=[main_help()], add_help=False)
    actions = root.add_subparsers()
    for action, verb in verbs().items():
        words = {each.metavar: (each.values, each.names) for each in verb.words.values()}
        parser = action_help(action)
        for argument in parser._actions:
            if values_and_kind := words.get(argument.dest) or _values(argument.dest):
                _offer(argument, *values_and_kind, everything, paths)
        actions.add_parser(action, help=verb.help, parents=[parser], add_help=False)
    script: str = shtab.complete(root, shell)
    return script


def _values(option: str) -> tuple[tuple[str, ...], str] | None:
    """Return what may follow an option: some words, or what a name stands for."""
    setting = all_options().get(option)
    if setting is None or setting.is_flag:
        return None
    spellings = [each for each in setting.option.spellings if isinstance(each, str)]
    return (*setting.choices, *spellings), setting.option.names


def _offer(
    argument: argparse.Action,
    values: tuple[str, ...],
    kind: str,
    names: Names,
    paths: Mapping[str, Any],
) -> None:
    """Tell shtab what may be written in one place: words, or a path."""
    if kind in paths:
        argument.complete = paths[kind]  # type: ignore[attr-defined]  # what shtab looks for
    elif offered := values or tuple(names.get(kind, ())):
        argument.choices = offered


@dataclass(frozen=True)
class CompletionRequest:
    """Print the script that completes ch in a shell: bash, zsh, fish."""

    shell: Annotated[str | None, Word("SHELL", "which shell", SHELLS, needed=True)] = None
    quiet: Quiet = False
    to_debug: Debug = False


def script_for(request: CompletionRequest) -> str:
    """Return the completion script of a shell."""
    if request.shell is None:
        raise ConfigError(f"no shell is named: write ch completion {'|'.join(SHELLS)}")
    if request.shell not in SHELLS:
        raise UnknownNameError("shell", request.shell, SHELLS)
    return completion_script(request.shell, read_catalogue())


add_verb(
    Verb(
        "completion",
        CompletionRequest,
        place=15,
        quiet="the script, as always",
        function=script_for,
        show=lambda text, request: str(text),
    )
)
