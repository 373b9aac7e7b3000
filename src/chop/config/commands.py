"""What `ch` can be told to do, and what each command takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chop.config.option import Option, Setting, settings_of
from chop.config.run import GENERAL, RunConfig
from chop.errors import ConfigError

SETTINGS = settings_of(RunConfig)
CONFIG = Setting(
    "config",
    str | None,
    None,
    Option("TOML file of settings", GENERAL, ("--config",), names="file"),
)
OUTPUT = Setting(
    "output", str | None, None,
    Option("HTML file to write; by default RUN_DIR/report.html", "report", names="file"),
)  # fmt: skip
OPTIONS = {"config": CONFIG, **SETTINGS, "output": OUTPUT}
"""All that stands on a command line with a flag: the settings and what is no setting."""
EVERYWHERE = ("quiet", "to_debug")


@dataclass(frozen=True)
class Name:
    """A word that a command takes by position."""

    metavar: str
    help: str
    values: tuple[str, ...] = ()
    names: str = ""
    """As `Option.names`."""
    needed: bool = False


@dataclass(frozen=True)
class Command:
    """One command of ``ch``."""

    help: str
    names: tuple[Name, ...] = ()
    options: tuple[str, ...] = EVERYWHERE
    quiet: str = ""
    """What is shown with ``--quiet``."""

    @property
    def usage(self) -> str:
        """What to write after ``ch`` and the command, the options left aside."""
        words = [name.metavar if name.needed else f"[{name.metavar}]" for name in self.names]
        return " ".join(words)


MODEL = Name("MODEL", "as listed by: ch info models", names="models")
DATASET = Name("DATASET", "as listed by: ch info datasets", names="datasets")
RUN = (MODEL, DATASET)
TOPICS = ("models", "datasets", "formats", "passes", "samplers", "ops")
SHELLS = ("bash", "zsh", "fish")


def flags_of(setting: Setting) -> tuple[str, ...]:
    """The flags of a setting; none for what stands by position or only in a file."""
    if not setting.option.group or setting.name in ("model", "dataset"):
        return ()
    return setting.option.flags or ("--" + setting.name.replace("_", "-"),)


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
    "report": Command(
        "write one HTML page about a run: ch report RUN_DIR",
        (Name("RUN_DIR", "folder of a project, as in mase_output", names="folder", needed=True),),
        ("output", *EVERYWHERE), "the path of the page",
    ),
    "doctor": Command(
        "show what this machine has, what is missing and how to get it",
        quiet="what is missing and the line that brings it",
    ),
    "info": Command(
        "list what there is: " + ", ".join(TOPICS),
        (
            Name("TOPIC", "what to list; by default all", ("all", *TOPICS)),
            Name("NAME", "one of them only; of a pass its arguments, too", names="entries"),
        ),
        ("imports", *EVERYWHERE), "names, one a line",
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


def check_words(action: str, given: Mapping[str, Any]) -> None:
    """Refuse words and options that mean nothing to a command."""
    command = COMMANDS[action]
    words = [given[place] for place in ("model", "dataset") if place in given]
    for word in words[len(command.names) :]:
        raise ConfigError(
            f"unexpected argument {word!r}: write ch {action} {command.usage}".rstrip()
        )
    for name in given:
        if name in OPTIONS and name not in (*command.options, "model", "dataset"):
            flag = flags_of(OPTIONS[name])[-1]
            others = [other for other, each in COMMANDS.items() if name in each.options]
            raise ConfigError(f"{flag} means nothing to {action}: it is for {', '.join(others)}")
    if given.get("quiet") and given.get("to_debug"):
        raise ConfigError("--quiet and --debug contradict each other: leave one of them out")
