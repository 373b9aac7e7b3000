"""Cases for the harness itself: a `ch` that ends in each of the ways that it must not."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import chop.cli
from harden import called
from harden.forked import Verdict


def fine(arguments: list[str]) -> int:
    return 0


def refuses(arguments: list[str]) -> int:
    sys.stderr.write("ch: case.toml: no\n")
    return 2


def shows_a_traceback(arguments: list[str]) -> int:
    os.write(2, b"Traceback (most recent call last):\n")  # below Python, as a library would
    return 0


def has_a_bug(arguments: list[str]) -> int:
    sys.stderr.write("ch: KeyError: 'x'\n")
    return 1


def says_two_lines(arguments: list[str]) -> int:
    sys.stderr.write("warning\nch: no\n")
    return 2


def says_a_control_character(arguments: list[str]) -> int:
    sys.stderr.write("ch: \x1b[31mno\n")
    return 2


def leaves_a_folder(arguments: list[str]) -> int:
    Path("mase_output").mkdir()
    return refuses(arguments)


def leaves_a_file(arguments: list[str]) -> int:
    Path("half.toml").touch()
    return refuses(arguments)


def hangs(arguments: list[str]) -> int:
    time.sleep(100)
    return 0


def works_for_long(arguments: list[str]) -> int:
    called.WATCH.reached_work()
    return hangs(arguments)


def makes_an_error_of_a_stop(arguments: list[str]) -> int:
    called.WATCH.reached_work()
    return hangs_and_makes_an_error_of_it(arguments)


def hangs_and_makes_an_error_of_it(arguments: list[str]) -> int:
    try:
        return hangs(arguments)
    except BaseException:  # noqa: BLE001  # as a module of pybind11 does that is being imported
        return has_a_bug(arguments)


def is_killed(arguments: list[str]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fills_the_memory(arguments: list[str]) -> int:
    return len(bytearray(8 << 30))


WAYS = (
    fine, shows_a_traceback, has_a_bug, says_two_lines, says_a_control_character, leaves_a_folder,
    leaves_a_file, hangs, is_killed, fills_the_memory, refuses, works_for_long,
    makes_an_error_of_a_stop, hangs_and_makes_an_error_of_it,
)  # fmt: skip
ALLOWED = {"fine", "refuses", "works_for_long", "makes_an_error_of_a_stop"}


def prepare() -> None:
    called.HANG, called.WORK = (0.5, 0.5), (0.2, 0.2)
    called.stop_on_signals()


def kind_of(number: int) -> str:
    return WAYS[number].__name__


def judge(number: int) -> Verdict:
    chop.cli.main = WAYS[number]  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        ended = called.call([], Path(folder), Path(folder))
        return Verdict(number, kind_of(number), ended.outcome, called.problem_of(ended))
