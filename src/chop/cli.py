"""The command line: arguments to a request to a verb; one line and exit code 2 for a mistake.

Nothing here imports torch before the arguments are known to be right, so help and mistakes are
answered at once.
"""

import contextlib
import errno
import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chop.config.command_line import action_help, check_options, main_help, parse_arguments
from chop.config.verb import Verb, verbs
from chop.errors import FULL_DISK, ChopError, ConfigError, UnknownNameError
from chop.masking import mask_passwords, printable

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
        with flush_output():
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

        sys.stderr.write(mask_passwords(traceback.format_exc()))
    sys.stderr.write(f"ch: {_line(mask_passwords(message))}\n")
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
        action = next((word for word in arguments if word in verbs()), None)
        (main_help() if action is None else action_help(action)).print_help()
        return OK
    options = parse_arguments(arguments)
    action = options.pop("action", None)
    if "info" in options:
        action, options = "info", _as_info(action, options)
    if action in (None, "help"):
        main_help().print_help()
        return MISTAKE if action is None else OK
    if action not in verbs():
        raise UnknownNameError("action", action, verbs())
    verb = verbs()[action]
    check_options(verb, options)
    if verb.takes_settings:
        return _act(verb, options, ["ch", *arguments])
    assert verb.function is not None
    request = verb.request(**{name: _value(verb, name, options[name]) for name in options})
    result = verb.function(request)
    if verb.show is not None:
        _say(verb.show(result, request))
    return OK


def _value(verb: Verb, name: str, given: Any) -> Any:
    """Return the value of a field; words and switches need no check, and so no pydantic."""
    if name in verb.words or isinstance(given, bool):
        return given
    from chop.config.layers import checked_argument

    return checked_argument(name, given)


def _as_info(action: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options of ``ch info TOPIC`` from those of ``ch --info TOPIC``."""
    topic = options.pop("info")
    if action not in (None, "info"):
        raise ConfigError(f"--info stands alone: leave out {action!r}, or write ch {action} --help")
    return {"topic": topic} | options


def _act(verb: Verb, options: dict[str, Any], command: list[str]) -> int:
    """Run a verb on a model, with the settings of all layers, and keep a record of them."""
    from chop.config.layers import Layers, layers_table, spelled_out, wants_colour
    from chop.logger import only_results
    from chop.verbs.common.project import with_project
    from chop.verbs.common.session import check_model_and_dataset, run_verb

    layers = Layers.read(options.pop("config", None), spelled_out(options), verb.request)
    layers = with_project(verb.name, layers)
    config = layers.config
    check_model_and_dataset(config)
    with _profiling(config.profile), only_results(config.quiet):
        colour = wants_colour(sys.stdout)
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        table = layers_table(layers, colour=colour, complete=config.verbose, room=room)
        sys.stdout.write(table + "\n" + _project_note(layers.project))
        sys.stdout.flush()
        run_verb(verb, config, layers.record(command), fetch=layers.names_model)
    return OK


def _project_note(known: Mapping[str, Any]) -> str:
    """A line about settings that were taken from a project."""
    shown = [f"{name} {value}" for name, value in known.items() if name in ("model", "dataset")]
    said = f"From project {known.get('project', '')}: {', '.join(shown)}"
    return f"{printable(said)}\n" if shown else ""


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
def flush_output() -> Iterator[None]:
    """See to it that what was said has arrived when the block ends, ``--help`` included."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def lacking(error: Exception) -> str | None:
    """Return what the machine lacks in one line, if an error says so."""
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
