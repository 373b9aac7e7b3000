"""The command line: actions and their options, from words to typed values."""

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from chop import __version__
from chop.config.export_options import CHECKED, TARGET_FLAGS, TO
from chop.config.option import Option, Setting, settings_of
from chop.config.run import GENERAL, REMOVED, RunConfig
from chop.config.words import EVERYWHERE, Command, Name
from chop.errors import ConfigError, suggestion

SETTINGS = settings_of(RunConfig)
CONFIG = Setting(
    "config", str | None, None,
    Option("TOML file of settings", GENERAL, ("--config",), names="file"),
)  # fmt: skip
OUTPUT = Setting(
    "output", str | None, None,
    Option(
        "output file of report and compare (default: in RUN_DIR) and of predict (default: "
        "FILE_predictions.csv, - for the terminal), or folder of export (default: export_FORM next "
        "to the graph)",
        "output", ("--output", "-o"), names="file",
    ),
)  # fmt: skip
RAW_CELLS = Setting(
    "raw_cells", bool, False,
    Option(
        "write cells of predict as they are; by default a ' goes before text that begins with "
        "=, +, - or @, which a spreadsheet would take for a formula",
        "output", actions=("predict",),
    ),
)  # fmt: skip
OPTIONS = {"config": CONFIG, **SETTINGS} | {
    each.name: each for each in (OUTPUT, RAW_CELLS, TO, *CHECKED, *TARGET_FLAGS)
}
"""All that stands on a command line with a flag: the settings and what is no setting."""
MORE = "more"
"""Words after the second that stands by itself."""


MODEL = Name("MODEL", "as listed by: ch info models, or my_net.py:Net", names="models")
DATASET = Name("DATASET", "as listed by: ch info datasets, or my_data.csv", names="datasets")
RUN = (MODEL, DATASET)
TOPICS = (
    "models", "datasets", "formats", "passes", "spaces", "strategies", "samplers", "sw_runners",
    "hw_runners", "ops", "targets",
)  # fmt: skip
SHELLS = ("bash", "zsh", "fish")


def flags_of(setting: Setting) -> tuple[str, ...]:
    """The flags of a setting; none for a word given by position or a setting of files only."""
    if not setting.option.group or setting.name in ("model", "dataset"):
        return ()
    return setting.option.flags or ("--" + setting.name.replace("_", "-"),)


def main_flag(setting: Setting) -> str:
    """The flag that stands for a setting in messages: the last long one."""
    return next((flag for flag in reversed(flags_of(setting)) if flag.startswith("--")), "")


def _settings_for(action: str) -> tuple[str, ...]:
    """The options of an action that takes settings."""
    own = [
        name
        for name, setting in SETTINGS.items()
        if flags_of(setting) and action in setting.option.actions
    ]
    return ("config", *own)


COMMANDS = {
    "train": Command(
        "train a model, keeping the best and the last checkpoint", RUN,
        _settings_for("train"),
        "where the checkpoints are",
    ),
    "test": Command(
        "measure a trained model on the test rows", RUN,
        _settings_for("test"),
        "the table of results and where it is stored",
    ),
    "transform": Command(
        "run the passes of a configuration file on a model", RUN,
        _settings_for("transform"),
        "where the transformed model is; reports of passes that go to the terminal are hidden",
    ),
    "search": Command(
        "search for quantisation settings by accuracy and cost", RUN,
        _settings_for("search"),
        "the table of the best trials, or of the comparison, and where the results are",
    ),
    "quantize": Command(
        "quantise a trained model: ch quantize --load PATH --width 8", RUN,
        _settings_for("quantize"),
        "accuracy before and after, the cost, and where the quantised model is",
    ),
    "sensitivity": Command(
        "show what each layer loses at several widths; suggest a search", RUN,
        _settings_for("sensitivity"),
        "the table of the layers and where the results are",
    ),
    "report": Command(
        "write one HTML page about a run: ch report RUN_DIR",
        (Name("RUN_DIR", "folder of a project, as in mase_output", names="folder", needed=True),),
        ("output", *EVERYWHERE), "the path of the page",
    ),
    "compare": Command(
        "plot the fronts of several searches together: ch compare RUN_DIR …",
        (
            Name("RUN_DIR", "folder of a project, as in mase_output", names="folder", needed=True),
            Name("OTHER_DIR", "more project folders", names="folder", repeats=True),
        ),
        ("output", *EVERYWHERE), "the path of the picture",
    ),
    "export": Command(
        "export a quantised graph to C, ONNX, SystemVerilog or an integer program, and check it: "
        "ch export --load PATH",
        options=(
            "load_name", "load_type", "imports", "to", "output",
            *(each.name for each in (*CHECKED, *TARGET_FLAGS)), *EVERYWHERE,
        ),
        quiet="the folder of the files",
    ),
    "predict": Command(
        "write a table of predictions: ch predict --load PATH FILE",
        (
            MODEL,
            Name("FILE", "rows as CSV, NumPy archive or Parquet", names="file", needed=True),
        ),
        (
            "load_name", "load_type", "output", "raw_cells", "label_column", "batch_size",
            "accelerator", "imports", *EVERYWHERE,
        ),
        "the path of the predictions",
    ),
    "doctor": Command(
        "show what this machine has, what is missing and how to get it",
        quiet="what is missing and the command that provides it",
    ),
    "info": Command(
        "list available " + ", ".join(TOPICS),
        (
            Name("TOPIC", "what to list; by default all", ("all", *TOPICS)),
            Name("NAME", "one entry, with its details", names="entries"),
        ),
        ("imports", *EVERYWHERE), "names, one per line",
    ),
    "schema": Command(
        "print the JSON Schema of configuration files, for editors",
        options=("imports", *EVERYWHERE), quiet="the schema, as always",
    ),
    "completion": Command(
        "print the script that completes ch in a shell: " + ", ".join(SHELLS),
        (Name("SHELL", "which shell", SHELLS, needed=True),),
        quiet="the script, as always",
    ),
}  # fmt: skip


def value_of(setting: Setting) -> str:
    """What stands for the value of a setting in the help."""
    if setting.choices:
        return "{" + ",".join(setting.choices) + "}"
    numbers = {"int": "N", "float": "X"}
    members = [getattr(member, "__name__", "") for member in setting.type_members]
    places = {"file": "PATH", "folder": "FOLDER"}
    other = places.get(setting.option.names, "TEXT")
    return next((numbers[member] for member in members if member in numbers), other)


def words_of(given: Mapping[str, Any]) -> list[Any]:
    """The words that stand by themselves after the action, in their order."""
    return [
        *(given[place] for place in ("model", "dataset") if place in given),
        *given.get(MORE, ()),
    ]


def check_words(action: str, given: Mapping[str, Any]) -> None:
    """Refuse words and options that mean nothing to a command."""
    command = COMMANDS[action]
    words = [given[place] for place in ("model", "dataset") if place in given]
    for word in words[len(command.names) :]:
        raise ConfigError(
            f"unexpected argument {word!r}: write ch {action} {command.usage}".rstrip()
        )
    for name in given:
        if name in OPTIONS and name not in (*command.options, "model", "dataset", MORE):
            flag = main_flag(OPTIONS[name])
            others = [other for other, each in COMMANDS.items() if name in each.options]
            raise ConfigError(f"{flag} means nothing to {action}: it is for {', '.join(others)}")
    for flag, name in (("--debug", "to_debug"), ("--verbose", "verbose")):
        if given.get("quiet") and given.get(name):
            raise ConfigError(f"--quiet and {flag} contradict each other: leave one of them out")


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
            raise ConfigError(f"{flag}: a value must follow: {_expected(flag)}")
        raise ConfigError(message.removeprefix("argument "))


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """The options that were given, by name, as text; options may stand between the names."""
    options, unknown = build_parser().parse_known_intermixed_args(arguments)
    found = vars(options)
    action = found.get("action", "")
    command = COMMANDS.get(action)
    if command is None or not any(name.repeats for name in command.names):
        unknown = [*found.pop(MORE, ()), *unknown]
    for argument in unknown:
        raise ConfigError(_unknown(argument, action))
    return found


def build_parser() -> Parser:
    """The parser of command lines. It knows every option: `check_words` says whose each one is."""
    parser = _parser("ch", f"ch {USAGE} [options]")
    for name in ("action", "model", "dataset"):
        parser.add_argument(name, nargs="?")
    parser.add_argument(MORE, nargs="*")
    for setting in OPTIONS.values():
        if flags := flags_of(setting):
            _add_setting(parser, setting, flags)
    _add_information(parser)
    return parser


def main_help() -> Parser:
    """The parser that prints ``ch --help``: the actions, and where to read on."""
    parser = _parser("ch", f"ch {USAGE} [options]")
    parser.description = "Train, analyse, quantise and search PyTorch models."
    parser.epilog = EXAMPLES
    width = max(map(len, COMMANDS))
    actions = "\n".join(f"{name:{width}}  {each.help}" for name, each in COMMANDS.items())
    parser.add_argument_group("actions", textwrap.indent(actions, "  "))
    _add_information(parser.add_argument_group("options"))
    return parser


def action_help(action: str) -> Parser:
    """The parser that prints ``ch ACTION --help``: what this action takes, and nothing else."""
    command = COMMANDS[action]
    parser = _parser(f"ch {action}", f"ch {action} {command.usage} [options]")
    parser.description = sentence(command.help)
    for name in command.names:
        values = f": {', '.join(name.values)}" if name.values else ""
        count = "*" if name.repeats else "?"
        parser.add_argument(name.metavar, nargs=count, help=f"{name.help}{values}")
    groups: dict[str, Any] = {}
    for option in command.options:
        setting = OPTIONS[option]
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
    group.add_argument(
        *flags,
        dest=setting.name,
        action="append" if setting.option.repeatable else "store",
        metavar=value_of(setting),
        help=setting.option.help + default,
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


def _expected(flag: str) -> str:
    """What may follow a flag."""
    words = {"N": "a whole number", "X": "a number", "PATH": "a path", "FOLDER": "a folder"}
    setting = next(each for each in OPTIONS.values() if flag in flags_of(each))
    return " or ".join(setting.choices) or words.get(value_of(setting), "a text")


def _unknown(argument: str, action: str) -> str:
    """One line for an argument that means nothing."""
    if not argument.startswith("-"):
        usage = f"{action} {COMMANDS[action].usage}" if action in COMMANDS else USAGE
        return f"unexpected argument {argument!r}: write ch {usage} [options]"
    flag = argument.partition("=")[0]
    name = flag.lstrip("-").replace("-", "_")
    if name in REMOVED:
        return f"{flag} has no meaning here: {REMOVED[name]}"
    if name in ("model", "dataset"):
        return f"{flag} is no option: the names stand by themselves: ch ACTION MODEL DATASET"
    flags = [flag for setting in OPTIONS.values() for flag in flags_of(setting)]
    meant = suggestion(flag, [*flags, "--help", "--version"])
    if flag in MEANT or not meant.startswith("did you mean"):
        listed = f"ch {action} --help" if action in COMMANDS else "ch ACTION --help"
        meant = f"did you mean {MEANT[flag]}?" if flag in MEANT else f"{listed} lists them all"
    return f"unknown option {flag!r}: {meant}"
