"""Calls ``ch`` inside this process, as it would run in one of its own, and judges how it ended."""

import contextlib
import io
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

HANG = (15.0, 900.0)
"""Seconds in which a run must have begun its work: of this process, and in all, which only one that
waits for something takes, however busy the machine is."""
WORK = (0.25, 20.0)  # seconds of work after which a run that does as it was told is stopped
LONGEST = 520  # characters of a message that is still one line to a reader
AT_WORK = (
    ("chop.training.loop", "Loop", "run"),
    ("chop.search.strategy", "Search", "run"),
    ("chop.search.learned.search", "LearnedSearch", "run"),
    ("chop.search.contest", "Contest", "run"),
    ("chop.verbs.transform.passes", None, "_run_pass"),
)
"""What is called once everything is checked and built: from here on a run takes as long as it was
told to."""
MORE_PROCESSES = (
    ("chop.training.distributed", None, "strategy_of"),
    ("multiprocessing.process", "BaseProcess", "start"),
)
"""What is called to start further processes, which a case inside this process must not."""


class Stopped(BaseException):
    """A run is stopped from outside."""


@dataclass(frozen=True)
class Ended:
    """How a call of ``ch`` ended.

    Attributes:
        code: the exit code; None if it was stopped.
        at_work: whether it had begun the work that it was told to do.
        left: the files and folders that were not there before.
    """

    code: int | None
    out: str
    err: str
    at_work: bool
    left: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """How it ended, in a word."""
        if self.code is None:
            return "stopped at work"
        return {0: "accepted", 2: "refused"}.get(self.code, f"exit code {self.code}")


class Watch:
    """Knows whether a run is at work, and stops one that takes too long."""

    def __init__(self) -> None:
        self.at_work = False
        self.stopped = False

    def begin(self, limits: tuple[float, float]) -> None:
        """Stop the run after so many seconds; again and again, if something swallows that."""
        signal.setitimer(signal.ITIMER_PROF, limits[0], 5.0)
        signal.setitimer(signal.ITIMER_REAL, limits[1], 5.0)

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def reached_work(self) -> None:
        if not self.at_work:
            self.at_work = True
            self.begin(WORK)

    def stop(self, *_: object) -> NoReturn:
        self.stopped = True
        raise Stopped


WATCH = Watch()


def watch_runs() -> None:
    """Note from now on when a run begins its work or wants further processes."""
    stop_on_signals()
    for place in AT_WORK:
        _wrap(place, _noting)
    for place in MORE_PROCESSES:
        _wrap(place, _not_here)


def stop_on_signals() -> None:
    """Let the two clocks stop a run."""
    signal.signal(signal.SIGALRM, WATCH.stop)
    signal.signal(signal.SIGPROF, WATCH.stop)
    sys.unraisablehook = say_nothing_of_stops(sys.__unraisablehook__)


def say_nothing_of_stops(report: Callable[[Any], object]) -> Callable[[Any], None]:
    """The hook for exceptions that Python cannot raise, in a destructor say, without our own."""

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, Stopped):  # the clock stops it again
            report(unraisable)

    return hook


def _wrap(place: tuple[str, str | None, str], wrapper: Callable[[Any], Any]) -> None:
    module, owner_name, name = place
    owner: Any = import_module(module)
    if owner_name is not None:
        owner = getattr(owner, owner_name)
    setattr(owner, name, wrapper(getattr(owner, name)))


def _noting(function: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        WATCH.reached_work()
        return function(*args, **kwargs)

    return noted


def _not_here(function: Any) -> Any:
    def refused(*args: Any, **kwargs: Any) -> Any:
        if getattr(args[0], "processes", 2) == 1:  # settings of a run that needs only this one
            return function(*args, **kwargs)
        WATCH.at_work = True
        return WATCH.stop()

    return refused


def call(arguments: Sequence[str], folder: Path, watched: Path) -> Ended:
    """Run ``ch`` in `folder`; what is new in `watched` afterwards is part of the answer."""
    from chop.cli import main

    before = set(inside(watched))
    WATCH.at_work = WATCH.stopped = False
    code: int | None = None
    with _captured() as (out, err), contextlib.chdir(folder):
        sys.argv = ["ch", *arguments]
        try:
            WATCH.begin(HANG)
            code = main(arguments)
        except Stopped:
            pass
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            WATCH.end()
            sys.stdout.flush()
            sys.stderr.flush()
    if WATCH.stopped:  # a library may have turned that into an error of its own, as pybind11 does
        code = None
    left = sorted(set(inside(watched)) - before)
    return Ended(code, out.getvalue(), err.getvalue(), WATCH.at_work, tuple(left))


def inside(folder: Path) -> list[str]:
    """Everything below a folder."""
    return [
        os.path.join(place, name)
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]


@contextlib.contextmanager
def _captured() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """What is written to both streams, be it by Python or by a library below it."""
    texts = io.StringIO(), io.StringIO()
    kept = [os.dup(number) for number in (1, 2)]
    streams = sys.stdout, sys.stderr
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
        try:
            yield texts
        finally:
            sys.stdout.close()
            sys.stderr.close()
            sys.stdout, sys.stderr = streams
            for number, old, file, text in zip((1, 2), kept, (out, err), texts, strict=True):
                os.dup2(old, number)
                os.close(old)
                file.seek(0)
                text.write(file.read().decode("utf-8", errors="backslashreplace"))


def problem_of(ended: Ended) -> str:
    """Why this is not how ``ch`` may end; empty if it is."""
    if "Traceback (most recent call last)" in ended.out + ended.err:
        return f"shows a traceback: {ended.err[-300:]!r}"
    if ended.code is None:
        return "" if ended.at_work else f"hangs: its work has not begun after {HANG} s"
    if ended.code == 0:
        return ""
    if ended.code != 2:
        return f"exit code {ended.code}: {ended.err[-300:]!r}"
    return _problem_of_line(ended.err) or _problem_of_left(ended)


def _problem_of_line(err: str) -> str:
    lines = err.removesuffix("\n").split("\n")
    if len(lines) != 1 or not lines[0].startswith("ch: "):
        return f"says {len(lines)} lines: {err[:300]!r}"
    if len(lines[0]) > LONGEST:
        return f"says a line of {len(lines[0])} characters: {err[:120]!r}"
    if not lines[0].isprintable():
        return f"says what cannot be printed: {err[:300]!r}"
    return ""


def _problem_of_left(ended: Ended) -> str:
    """A mistake leaves nothing behind, but what was finished before it came to light stays."""
    empty = [path for path in ended.left if Path(path).is_dir() and not any(Path(path).iterdir())]
    if empty:
        return f"leaves an empty folder behind: {empty[0]}"
    if ended.left and not ended.at_work:
        return f"leaves behind {ended.left[0]}"
    return ""
