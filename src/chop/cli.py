"""The command line: arguments to settings to an action; one line and exit code 2 for a mistake.

Nothing here imports torch before the arguments are known to be right, so help and mistakes are
answered at once.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from chop.actions import ACTIONS, run_action
from chop.config.arguments import COMMANDS, build_parser, parse_arguments
from chop.errors import ChopError, ConfigError, UnknownNameError

OK, BUG, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ch``; the exit code is 0, 1 for a bug, 2 for a user's mistake, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in arguments
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _complain("interrupted; what was finished is kept", INTERRUPTED, debug)
    except ChopError as error:
        return _complain(str(error), MISTAKE, debug)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.stderr.close()
        return OK
    except Exception as error:  # noqa: BLE001  # the last resort: no traceback unless asked for
        hint = "" if debug else " (a bug in chop; --debug shows where)"
        return _complain(f"{type(error).__name__}: {error}{hint}", BUG, debug)


def _complain(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"ch: {' '.join(message.split())}\n")
    return code


def _run(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    action = options.pop("action", None)
    if "info" in options:
        return _info(options | {"model": options["info"]})
    if action is None:
        build_parser().print_help()
        return MISTAKE
    if action not in COMMANDS:
        raise UnknownNameError("action", action, COMMANDS)
    if action in LOOKS:
        return LOOKS[action](options)
    return _act(action, options, ["ch", *arguments])


def _act(action: str, options: dict[str, Any], command: list[str]) -> int:
    from chop.actions.session import check
    from chop.config.layers import Layers, settings_table, wants_colour

    layers = Layers.read(options.pop("config", None), options)
    config = layers.config
    if action not in ACTIONS:
        raise ConfigError(f"ch {action} is not built yet")
    check(config)
    sys.stdout.write(settings_table(layers, colour=wants_colour(sys.stdout)) + "\n")
    sys.stdout.flush()
    with _profiling(config.profile):
        run_action(action, config, layers.record(command))
    return OK


def _info(options: dict[str, Any]) -> int:
    """List what is registered; a user's files are imported first where they are named."""
    from tabulate import tabulate

    from chop.catalogue import TOPICS, live, stored
    from chop.tools.user_code import import_user_code

    topic = options.get("model") or "all"
    topic = {"model": "models", "dataset": "datasets"}.get(topic, topic)  # as the original says it
    if topic not in ("all", *TOPICS):
        raise UnknownNameError("topic", topic, ("all", *TOPICS), where="ch info")
    imports = options.get("imports", [])
    import_user_code(imports)
    catalogue = live() if imports else stored()
    for name in TOPICS if topic == "all" else (topic,):
        rows = list(catalogue[name].items())
        sys.stdout.write(tabulate(rows, [name, "description"], "simple") + "\n\n")
    return OK


def _report(options: dict[str, Any]) -> int:
    """Write the page of a run."""
    from chop.actions.reporting import report

    if options.get("model") is None:
        raise ConfigError("no run is named: write ch report RUN_DIR, such as mase_output/<project>")
    sys.stdout.write(f"Report: {report(options['model'])}\n")
    return OK


def _doctor(options: dict[str, Any]) -> int:
    """Show what this machine has and what is missing."""
    from chop.actions.doctor import doctor

    sys.stdout.write(doctor() + "\n")
    return OK


LOOKS = {"info": _info, "report": _report, "doctor": _doctor}
"""Commands that look at something and take no settings."""


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


if __name__ == "__main__":
    sys.exit(main())
