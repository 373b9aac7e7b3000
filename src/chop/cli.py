"""The command line: arguments to settings to an action; one line and exit code 2 for a mistake.

Nothing here imports torch before the arguments are known to be right, so help and mistakes are
answered at once.
"""

import contextlib
import errno
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.config.command_line import (
    COMMANDS,
    SHELLS,
    action_help,
    check_words,
    main_help,
    parse_arguments,
    words_of,
)
from chop.errors import FULL_DISK, ChopError, ConfigError, UnknownNameError
from chop.files import OWN_BYTES
from chop.masking import masked, printable

if TYPE_CHECKING:
    from chop.config.layers import Layers
    from chop.config.run import RunConfig

OK, BUG, MISTAKE, INTERRUPTED = 0, 1, 2, 130
LONGEST = 500  # characters of a message; --debug shows all of it
NO_MEMORY = "can't allocate memory"  # torch says it in a RuntimeError


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ch``; the exit code is 0, 1 for a bug, 2 for a user's mistake, 130 for Ctrl-C.

    A search or training that SIGTERM ends has 143.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in arguments
    make_writable()
    try:
        with flushed():
            return _run(arguments)
    except KeyboardInterrupt as error:
        code = getattr(error, "exit_code", INTERRUPTED)
        return _complain("interrupted; what was finished is kept", code, debug)
    except ChopError as error:
        return _complain(str(error), MISTAKE, debug)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.stderr.close()
        return OK
    except Exception as error:  # noqa: BLE001  # the last resort: no traceback unless asked for
        if lack := lacking(error):
            return _complain(lack, MISTAKE, debug)
        hint = "" if debug else " (a bug in chop; --debug shows where)"
        return _complain(f"{type(error).__name__}: {error}{hint}", BUG, debug)


def _complain(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        sys.stderr.write(masked(traceback.format_exc()))
    sys.stderr.write(f"ch: {_line(masked(message))}\n")
    return code


def _line(message: str) -> str:
    """A message as one line: no control characters, which a file may have brought, and not endless.

    What it says at its end is as a rule what would be right, so that is kept.
    """
    line = " ".join(message.split())
    shown = printable(line)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 100]} … {shown[-100:]}"


def _say(text: str) -> None:
    """Write lines to standard output, with nothing in them that a terminal would obey."""
    sys.stdout.write(printable(text, keep="\n\t"))


def _run(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        action = next((word for word in arguments if word in COMMANDS), None)
        (main_help() if action is None else action_help(action)).print_help()
        return OK
    options = parse_arguments(arguments)
    action = options.pop("action", None)
    if "info" in options:
        action, options = "info", _as_info(action, options)
    if action in (None, "help"):
        main_help().print_help()
        return MISTAKE if action is None else OK
    if action not in COMMANDS:
        raise UnknownNameError("action", action, COMMANDS)
    check_words(action, options)
    if action in WITHOUT_SETTINGS:
        return WITHOUT_SETTINGS[action](options)
    return _act(action, options, ["ch", *arguments])


def _as_info(action: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options of ``ch info TOPIC`` from those of ``ch --info TOPIC``."""
    topic = options.pop("info")
    if action not in (None, "info"):
        raise ConfigError(f"--info stands alone: leave out {action!r}, or write ch {action} --help")
    return {"model": topic} | options


def _act(action: str, options: dict[str, Any], command: list[str]) -> int:
    from chop.config.layers import Layers, settings_table, spelled_out, wants_colour
    from chop.logger import only_results
    from chop.verbs.session import check, run_action

    layers = Layers.read(options.pop("config", None), spelled_out(options))
    layers = replace(layers, project=_from_project(action, layers))
    config = layers.config
    check(config)
    with _profiling(config.profile), only_results(config.quiet):
        colour = wants_colour(sys.stdout)
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        table = settings_table(layers, colour=colour, complete=config.verbose, room=room)
        sys.stdout.write(table + "\n" + _taken(layers.project))
        sys.stdout.flush()
        run_action(action, config, layers.record(command), fetch=layers.names_model)
    return OK


def _from_project(action: str, layers: "Layers", *, graphs: bool = False) -> dict[str, Any]:
    """The settings that were left out and that the project of ``--load`` knows.

    Args:
        graphs: whether the action can do with a graph alone, without the model it is made of.
    """
    from chop.catalogue import stored
    from chop.config.layers import checked
    from chop.loading.paths import GRAPH_TYPE, loadable
    from chop.loading.records import left_out, require_code

    given = layers.effective
    where = f"{given.get('load_name')}: the record of its project"
    known = {
        name: checked(name, value, f"{where}: {name}", where)
        for name, value in left_out(given).items()
    }
    if "model" in known and not given["imports"]:
        load = given["load_name"]
        if graphs and loadable(Path(load))[1] == GRAPH_TYPE:
            return {name: value for name, value in known.items() if name != "model"}
        require_code(known["model"], stored()["models"], load, action)
    return known


def _taken(known: Mapping[str, Any]) -> str:
    """A line about settings that were taken from a project."""
    shown = [f"{name} {value}" for name, value in known.items() if name in ("model", "dataset")]
    said = f"From project {known.get('project', '')}: {', '.join(shown)}"
    return f"{printable(said)}\n" if shown else ""


def _info(options: dict[str, Any]) -> int:
    """List what is registered; a user's files are imported first where they are named."""
    from chop.verbs.info import info

    _say(
        info(
            options.get("model"),
            options.get("dataset"),
            imports=options.get("imports", []),
            names_only=bool(options.get("quiet")),
        )
    )
    return OK


def _report(options: dict[str, Any]) -> int:
    """Write the page of a run."""
    from chop.verbs.report import report

    if options.get("model") is None:
        raise ConfigError("no run is named: write ch report RUN_DIR, such as mase_output/<project>")
    page = printable(str(report(options["model"], options.get("output"))))
    _say(f"{page}\n" if options.get("quiet") else f"Report: {page}\n")
    return OK


def _compare(options: dict[str, Any]) -> int:
    """Draw the fronts of searches on one picture."""
    from chop.verbs.compare import compare_fronts, fronts_table

    named = [word for word in words_of(options) if word is not None]
    if not named:
        raise ConfigError(
            "no run is named: write ch compare RUN_DIR, such as mase_output/<project>"
        )
    picture, fronts = compare_fronts(named, options.get("output"))
    shown = f"{fronts_table(fronts)}\nPicture: {picture}\n"
    _say(f"{picture}\n" if options.get("quiet") else shown)
    return OK


def _export(options: dict[str, Any]) -> int:
    """Write a saved graph in another form."""
    from chop.config.layers import checked_argument
    from chop.logger import only_results

    given = {name: checked_argument(name, value) for name, value in options.items()}
    for name, flag in (("load_name", "--load PATH"), ("to", "--to FORM")):
        if given.get(name) is None:
            raise ConfigError(f"export: {flag} is missing: write ch export --load PATH --to FORM")
    quiet, _ = given.pop("quiet", False), given.pop("to_debug", False)
    with only_results(quiet):
        from chop.verbs.export.saved import export

        done = export(given.pop("load_name"), **given)
    folder = printable(str(done.folder))
    said = "\n".join(map(printable, done.said))
    _say(f"{folder}\n" if quiet else f"Exported: {folder}, {said}\n")
    return OK


def _predict(options: dict[str, Any]) -> int:
    """Write what a network predicts for the rows of a file."""
    from chop.config.layers import Layers, checked_argument, spelled_out
    from chop.logger import only_results

    *model, file = words_of(options) or [""]
    if ".py:" in file:  # a model, with nothing after it
        file = ""
    given = {name: value for name, value in options.items() if name not in ("model", "dataset")}
    output, quiet = given.pop("output", None), bool(given.get("quiet"))
    raw = bool(given.pop("raw_cells", False))
    if not file or given.get("load_name") is None:
        what = "--load PATH" if file else "FILE"
        raise ConfigError(f"predict: {what} is missing: write ch predict --load PATH FILE")
    layers = Layers.read(None, spelled_out(given | ({"model": model[0]} if model else {})))
    if not Path(given["load_name"]).expanduser().exists():
        raise ConfigError(f"--load: there is no file or folder {given['load_name']}")
    layers = replace(layers, project=_from_project("predict", layers, graphs=True))
    if output is not None:
        output = checked_argument("output", output)
    if output == "-":
        return _show_predicted(layers.config, file, given.get("label_column"), raw)
    with only_results(quiet):
        from chop.loading.user_code import import_user_code
        from chop.verbs.predict.rows import predict, report_predicted

        import_user_code(layers.config.imports)
        label = given.get("label_column")
        report_predicted(predict(layers.config, file, output, label=label, raw_cells=raw))
    return OK


def _show_predicted(config: "RunConfig", file: str, label: str | None, raw: bool) -> int:
    """Print what a network predicts, once all of it is known, so that no half of it is shown."""
    from chop.logger import only_results

    with tempfile.TemporaryDirectory() as folder:
        with only_results():
            from chop.loading.user_code import import_user_code
            from chop.verbs.predict.rows import predict

            import_user_code(config.imports)
            found = predict(config, file, f"{folder}/table.csv", label=label, raw_cells=raw)
        with found.output.open(encoding="utf-8", errors=OWN_BYTES, newline="") as table:
            shutil.copyfileobj(table, sys.stdout)
    return OK


def _doctor(options: dict[str, Any]) -> int:
    """Show what this machine has and what is missing."""
    from chop.verbs.doctor import doctor

    sys.stdout.write(doctor(missing_only=bool(options.get("quiet"))))
    return OK


def _schema(options: dict[str, Any]) -> int:
    """Print the JSON Schema of configuration files, with a user's own passes where named."""
    from chop.config.schema import stored

    imports = options.get("imports", [])
    if not imports:
        sys.stdout.write(stored())
        return OK
    from chop.loading.user_code import import_user_code
    from chop.verbs.schema import schema_text

    import_user_code(imports)
    sys.stdout.write(schema_text())
    return OK


def _completion(options: dict[str, Any]) -> int:
    """Print the completion script of a shell."""
    from chop.catalogue import stored
    from chop.config.completion import completion_script

    shell = options.get("model")
    if shell is None:
        raise ConfigError(f"no shell is named: write ch completion {'|'.join(SHELLS)}")
    if shell not in SHELLS:
        raise UnknownNameError("shell", shell, SHELLS)
    sys.stdout.write(completion_script(shell, stored()))
    return OK


WITHOUT_SETTINGS = {
    "info": _info,
    "export": _export,
    "predict": _predict,
    "report": _report,
    "compare": _compare,
    "doctor": _doctor,
    "schema": _schema,
    "completion": _completion,
}
"""Commands that take no settings, so that they keep no record of them."""


@contextlib.contextmanager
def _profiling(wanted: bool) -> Iterator[None]:
    """Print where the time went, the slowest first, if that is wanted."""
    if not wanted:
        yield
        return
    import cProfile
    import pstats

    with cProfile.Profile() as profile:
        yield
    pstats.Stats(profile, stream=sys.stdout).sort_stats("cumtime").print_stats(40)


def make_writable() -> None:
    """Give closed streams somewhere to go, and let letters that a stream lacks be escaped.

    A file that is opened while standard output is closed takes its number, and whatever a library
    prints would then land in that file.
    """
    for number in range(3):
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # which takes the lowest free number: this one
    for number, name in enumerate(("stdout", "stderr"), start=1):
        if getattr(sys, name) is None:
            raw = io.FileIO(number, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """See to it that what was said has arrived when the block ends, ``--help`` included."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def lacking(error: Exception) -> str | None:
    """What the machine lacks, in one line, if that is what an error says."""
    if isinstance(error, MemoryError) or NO_MEMORY in str(error):
        reason = str(error) or "none is left"
        return f"not enough memory ({reason}); a smaller file or batch needs less"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return f"not enough memory ({error.strerror}); a smaller file or batch needs less"
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        _drop_output()
        where = error.filename or "the output of ch"
        return f"{where}: cannot be written: {error.strerror}"
    return None


def _drop_output() -> None:
    """Keep Python from trying once more, as it ends, what has just failed."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
