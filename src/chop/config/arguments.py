"""The argument parser, made from the settings; it keeps what was given and nothing else."""

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from chop import __version__
from chop.config.option import Setting, settings_of
from chop.config.run import REMOVED, RunConfig
from chop.errors import ConfigError, suggestion

SETTINGS = settings_of(RunConfig)
COMMANDS = {
    "train": "train a model, keeping the best and the last checkpoint",
    "test": "measure a trained model on the test rows",
    "transform": "run the passes of a configuration file on a model",
    "search": "search for quantisation settings by accuracy and cost",
    "report": "write one HTML page about a run: ch report RUN_DIR",
    "doctor": "show what this machine has, what is missing and how to get it",
    "info": "list what there is: models, datasets, formats, passes, samplers, ops",
}
EXAMPLES = """\
examples:
  ch train jsc-tiny jsc-sim --max-epochs 10 --batch-size 256
  ch transform --config configs/examples/jsc_toy_by_type.toml --cpu=0
  ch info formats
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are `ConfigError`s, so that all mistakes look alike."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """The options that were given, by name, as text; options may stand between the names."""
    options, unknown = build_parser().parse_known_intermixed_args(arguments)
    for argument in unknown:
        raise ConfigError(_unknown(argument))
    return vars(options)


def build_parser() -> Parser:
    """The parser of ``ch``, with a group for each group of settings."""
    parser = Parser(
        prog="ch",
        usage="ch ACTION [MODEL] [DATASET] [options]",
        description="Train, analyse, quantise and search PyTorch models.",
        epilog=EXAMPLES,
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_names(parser)
    groups: dict[str, Any] = {"general": parser.add_argument_group("general")}
    groups["general"].add_argument("--config", metavar="TOML", help="file of settings")
    for setting in SETTINGS.values():
        if flags := flags_of(setting):
            group = setting.option.group
            target = groups.setdefault(group, None) or parser.add_argument_group(group)
            groups[group] = target
            _add_setting(target, setting, flags)
    _add_information(parser.add_argument_group("information"))
    return parser


def flags_of(setting: Setting) -> tuple[str, ...]:
    """The flags of a setting; none for what stands by position or only in a file."""
    if not setting.option.group or setting.name in ("model", "dataset"):
        return ()
    return setting.option.flags or ("--" + setting.name.replace("_", "-"),)


def _add_names(parser: Parser) -> None:
    actions = "\n".join(f"{name}: {text}" for name, text in COMMANDS.items())
    main = parser.add_argument_group("main", textwrap.indent(actions, "  "))
    main.add_argument("action", metavar="ACTION", nargs="?", help="what to do")
    main.add_argument("model", metavar="MODEL", nargs="?", help="as listed by: ch info models")
    main.add_argument(
        "dataset", metavar="DATASET", nargs="?", help="as listed by: ch info datasets"
    )


def _add_setting(group: Any, setting: Setting, flags: tuple[str, ...]) -> None:
    if setting.is_flag:
        group.add_argument(*flags, dest=setting.name, action="store_true", help=setting.option.help)
        opposite = "--no-" + flags[-1].removeprefix("--")  # so that a file's true can be overruled
        group.add_argument(
            opposite, dest=setting.name, action="store_false", help=argparse.SUPPRESS
        )
        return
    default = "" if setting.default in (None, []) else f" (default: {setting.default})"
    group.add_argument(
        *flags,
        dest=setting.name,
        action="append" if setting.option.repeatable else "store",
        metavar="{" + ",".join(setting.choices) + "}" if setting.choices else _metavar(setting),
        help=setting.option.help + default,
    )


def _add_information(group: Any) -> None:
    group.add_argument("-h", "--help", action="help", help="show this and exit")
    version = f"machop {__version__}"
    group.add_argument(
        "-V", "--version", action="version", version=version, help="show the version"
    )
    group.add_argument(
        "--info", nargs="?", const="all", metavar="TOPIC", help="the same as: ch info TOPIC"
    )


def _metavar(setting: Setting) -> str:
    names = {"int": "N", "float": "X"}
    members = [getattr(member, "__name__", "") for member in setting.type_members]
    return next((names[member] for member in members if member in names), "TEXT")


def _unknown(argument: str) -> str:
    """One line for an argument that means nothing."""
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}: write ch ACTION [MODEL] [DATASET] [options]"
    flag = argument.partition("=")[0]
    name = flag.lstrip("-").replace("-", "_")
    if name in REMOVED:
        return f"{flag} has no meaning here: {REMOVED[name]}"
    flags = [flag for setting in SETTINGS.values() for flag in flags_of(setting)]
    return f"unknown option {flag!r}: {suggestion(flag, [*flags, '--config', '--help'])}"
