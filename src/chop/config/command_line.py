"""The command line: verbs and their options, from words to typed values."""

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from chop import __version__
from chop.config.option import Setting
from chop.config.run import REMOVED
from chop.config.verb import Verb, all_options, flags_of, main_flag, verbs
from chop.errors import ConfigError, suggestion


def value_of(setting: Setting) -> str:
    """Return what stands for the value of a setting in the help."""
    if setting.choices:
        return "{" + ",".join(setting.choices) + "}"
    numbers = {"int": "N", "float": "X"}
    members = [getattr(member, "__name__", "") for member in setting.type_members]
    places = {"file": "PATH", "folder": "FOLDER"}
    other = places.get(setting.option.names, "TEXT")
    return next((numbers[member] for member in members if member in numbers), other)


def check_options(verb: Verb, given: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing to a verb, and those that contradict each other."""
    for name in given:
        if name not in (*verb.options, *verb.words):
            flag = main_flag(all_options()[name])
            others = [other for other, each in verbs().items() if name in each.options]
            raise ConfigError(f"{flag} means nothing to {verb.name}: it is for {', '.join(others)}")
    for flag, name in (("--debug", "to_debug"), ("--verbose", "verbose")):
        if given.get("quiet") and given.get(name):
            raise ConfigError(f"--quiet and {flag} contradict each other: leave one of them out")


WORDS = "words"
"""The words that stand without a flag, the verb first."""
EXAMPLES = """\
examples:
  ch train jsc-tiny jsc-sim --max-epochs 10 --batch-size 256
  ch transform --config configs/examples/jsc_toy_by_type.toml --cpu=0
  ch train --help
  ch info formats
"""
USAGE = "ACTION [MODEL] [DATASET]"
INFORMATION = {
    "-h, --help": "show this help, or that of an action",
    "-V, --version": "show the version",
    "--info [TOPIC]": "the same as: ch info TOPIC",
}


MEANT = {
    "--lr": "--learning-rate",
    "--epochs": "--max-epochs",
    "--optimizer": "--training-optimizer",
    "--precision": "--trainer-precision",
    "--checkpoint": "--load",
    "--ckpt": "--load",
    "--device": "--accelerator",
    "--out": "--project-dir",
    "--save": "--project-dir",
}
"""What other tools call it."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are `ConfigError`s, so that all mistakes look alike."""

    def error(self, message: str) -> NoReturn:
        flags, _, problem = message.removeprefix("argument ").partition(": ")
        flag = flags.rpartition("/")[2]
        if "explicit argument" in problem:
            raise ConfigError(f"{flag} takes no value: leave out ={problem.rpartition(' ')[2]}")
        if problem == "expected one argument":
            raise ConfigError(f"{flag}: a value must follow: {_expected_value(flag)}")
        raise ConfigError(message.removeprefix("argument "))


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """The options that were given, by name, as text; options may stand between the words."""
    found, unknown = build_parser().parse_known_intermixed_args(arguments)
    given = vars(found)
    action, *words = given.pop(WORDS, None) or [None]
    verb = verbs().get(action)
    if verb is not None:
        by_name, surplus = named_words(verb, words)
        given, unknown = given | by_name, [*surplus, *unknown]
    for argument in unknown:
        raise ConfigError(_unknown_argument(argument, verb))
    return given if action is None else {"action": action} | given


def named_words(verb: Verb, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The words after a verb by the names of its fields, and those that are too many.

    Where there are fewer words than a verb can take, those that it does not need are left out.
    """
    left: list[str] = list(words)
    found: dict[str, Any] = {}
    spare = len(words) - sum(word.needed for word in verb.words.values())
    for name, word in verb.words.items():
        if word.repeats:
            found[name], left = left, []
        elif left and (word.needed or spare > 0):
            found[name] = left.pop(0)
            spare -= not word.needed
    return {name: value for name, value in found.items() if value != []}, left


def build_parser() -> Parser:
    """The parser of command lines, with every option; `check_options` says whose each one is."""
    parser = _parser("ch", f"ch {USAGE} [options]")
    parser.add_argument(WORDS, nargs="*")
    for setting in all_options().values():
        if flags := flags_of(setting):
            _add_setting(parser, setting, flags)
    _add_information(parser)
    return parser


def main_help() -> Parser:
    """The parser that prints ``ch --help``: the actions, and where to read on."""
    parser = _parser("ch", f"ch {USAGE} [options]")
    parser.description = "Train, analyse, quantise and search PyTorch models."
    parser.epilog = EXAMPLES
    width = max(map(len, verbs()))
    actions = "\n".join(f"{name:{width}}  {each.help}" for name, each in verbs().items())
    parser.add_argument_group("actions", textwrap.indent(actions, "  "))
    _add_information(parser.add_argument_group("options"))
    return parser


def action_help(action: str) -> Parser:
    """The parser that prints ``ch ACTION --help``: what this action takes, and nothing else."""
    verb, known = verbs()[action], all_options()
    parser = _parser(f"ch {action}", f"ch {action} {verb.usage} [options]")
    parser.description = sentence(verb.help)
    for word in verb.words.values():
        values = f": {', '.join(word.values)}" if word.values else ""
        count = "*" if word.repeats else "?"
        parser.add_argument(word.metavar, nargs=count, help=f"{word.help}{values}")
    groups: dict[str, Any] = {}
    for option in verb.options:
        setting = known[option]
        group = setting.option.group
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        _add_setting(groups[group], setting, flags_of(setting))
    parser.add_argument("-h", "--help", action="help", help=INFORMATION["-h, --help"])
    return parser


def _parser(program: str, usage: str) -> Parser:
    return Parser(
        prog=program,
        usage=usage,
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def sentence(text: str) -> str:
    """A line of help as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def _add_setting(group: Any, setting: Setting, flags: tuple[str, ...]) -> None:
    if setting.is_flag:
        group.add_argument(*flags, dest=setting.name, action="store_true", help=setting.option.help)
        opposite = opposite_of(flags)  # so that a file's true can be overruled
        group.add_argument(
            opposite, dest=setting.name, action="store_false", help=argparse.SUPPRESS
        )
        return
    default = f" (default: {setting.default_text})" if setting.default_text else ""
    alone = {"nargs": "?", "const": setting.option.bare} if setting.option.bare else {}
    group.add_argument(
        *flags,
        dest=setting.name,
        action="append" if setting.option.repeatable else "store",
        metavar=value_of(setting),
        help=setting.option.help + default,
        **alone,
    )


def opposite_of(flags: tuple[str, ...]) -> str:
    """The flag that sets a switch to false."""
    name = flags[-1].removeprefix("--")
    return f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"


def _add_information(group: Any) -> None:
    said = list(INFORMATION.values())
    group.add_argument("-h", "--help", action="help", help=said[0])
    version = f"machop {__version__}"
    group.add_argument("-V", "--version", action="version", version=version, help=said[1])
    group.add_argument("--info", nargs="?", const="all", metavar="TOPIC", help=said[2])


def _expected_value(flag: str) -> str:
    """Return what may follow a flag."""
    words = {"N": "a whole number", "X": "a number", "PATH": "a path", "FOLDER": "a folder"}
    setting = next(each for each in all_options().values() if flag in flags_of(each))
    return " or ".join(setting.choices) or words.get(value_of(setting), "a text")


def _unknown_argument(argument: str, verb: Verb | None) -> str:
    """One line for an argument that means nothing."""
    if not argument.startswith("-"):
        usage = USAGE if verb is None else f"{verb.name} {verb.usage}".rstrip()
        return f"unexpected argument {argument!r}: write ch {usage} [options]"
    flag = argument.partition("=")[0]
    name = flag.lstrip("-").replace("-", "_")
    if name in REMOVED:
        return f"{flag} has no meaning here: {REMOVED[name]}"
    if name in ("model", "dataset"):
        return f"{flag} is not an option: the names stand by themselves: ch ACTION MODEL DATASET"
    flags = [flag for setting in all_options().values() for flag in flags_of(setting)]
    meant = suggestion(flag, [*flags, "--help", "--version"])
    if flag in MEANT or not meant.startswith("did you mean"):
        listed = f"ch {'ACTION' if verb is None else verb.name} --help"
        meant = f"did you mean {MEANT[flag]}?" if flag in MEANT else f"{listed} lists them all"
    return f"unknown option {flag!r}: {meant}"
