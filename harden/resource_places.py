"""Surroundings that lack something: a home directory, a terminal, UTF-8."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harden.resource_common import LIMIT, QUIET, TRAIN, Done, ch, configured

NOBODY = 54_321
"""A user that no machine knows, as containers have them."""
UNKNOWN = """
import pwd

def getpwuid(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = getpwuid
"""
"""The same for a process that cannot change its user, as nobody else may run this Python."""
NO_UTF8: dict[str, str | None] = {
    "LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}  # fmt: skip
NO_HOME: dict[str, str | None] = dict.fromkeys(
    ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CHOP_CACHE", "MPLCONFIGDIR",
     "LOGNAME", "USER", "USERNAME", "LNAME")
)  # fmt: skip
ROWS = "Größe,Höhe,label\n" + "".join(
    f"{i % 13},{i % 7},{('später', 'früher')[i % 2]}\n" for i in range(400)
)
OWN_ROWS = ["train", "jsc-tiny", "csv", "--dataset-path", "zähler.csv", *QUIET]
OWN_ROWS += ["--batch-size", "64", "--max-epochs", "1", "--project", "Prüfung"]


def no_home(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A user without a home directory: known to nobody, or with one that cannot be written."""
    (folder / "sitecustomize.py").write_text(UNKNOWN)
    user = NOBODY if os.geteuid() == 0 and all_may_run(Path(sys.executable).resolve()) else None
    for name, home in (("HOME is unset", None), ("HOME cannot be written", "/proc/none")):
        with tempfile.TemporaryDirectory(prefix="chop-home-") as place:
            work = Path(place)
            work.chmod(0o777)
            (work / "zähler.csv").write_text(ROWS, encoding="utf-8")
            variables = NO_HOME | {"HOME": home} | ({} if user else {"PYTHONPATH": str(folder)})
            done = ch(TRAIN, work, variables, user=user)
            yield f"train, {name}", done.worked() + stray(work, "zähler.csv", "out")
            done = ch(OWN_ROWS, work, variables, user=user)
            yield f"train on a file, {name}", without_cache(done, work)


def all_may_run(program: Path) -> bool:
    """Whether every user may run a program and read what stands beside it."""
    return all(path.stat().st_mode & 0o001 for path in (program, *program.parents))


def without_cache(done: Done, work: Path) -> list[str]:
    """Rows of one's own need a cache: it must work, or name what to set."""
    wrong = done.worked() if done.code == 0 else done.refused("CHOP_CACHE")
    return wrong + stray(work, "zähler.csv", "out", "Prüfung")


def stray(folder: Path, *expected: str) -> list[str]:
    """What lies in a folder and should not."""
    return [f"left behind: {name}" for name in os.listdir(folder) if name not in expected]


def no_terminal(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """No terminal, and standard streams that are closed, as a daemon has them."""
    done = ch(TRAIN, folder, {"TERM": None}, start_new_session=True)
    yield "train, no terminal", done.worked("Epoch 1: 100%")
    yield from closed_streams(folder, ["info"], *CLOSED)
    yield from closed_streams(folder, TRAIN, *CLOSED[2:])


CLOSED = ("<&-", "2>&-", ">&-", "<&- >&- 2>&-")
"""How a shell closes standard streams: each, and all of them."""


def closed_streams(folder: Path, command: list[str], *ways: str) -> Iterator[tuple[str, list[str]]]:
    """A command with standard streams closed."""
    for closed in ways:
        program = f'exec "{sys.executable}" -m chop.cli "$@" {closed}'
        ended = subprocess.run(
            ["sh", "-c", program, "sh", *command],
            cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        done = Done(ended.returncode, ended.stdout, ended.stderr)
        yield f"ch {command[0]} {closed}", done.worked()


def no_utf8(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A locale without UTF-8: names, paths and tables that hold other letters."""
    (folder / "zähler.csv").write_text(ROWS, encoding="utf-8")
    shutil.copy(configured(folder), folder / "größe.toml")
    cache = NO_UTF8 | {"CHOP_CACHE": str(folder / "cache")}
    yield "train", ch(OWN_ROWS, folder, cache).worked()
    yield "doctor", ch(["doctor"], folder, NO_UTF8).expect(0)
    yield "report", ch(["report", "Prüfung"], folder, NO_UTF8).worked()
    search = ["search", "--config", "größe.toml", "--project-dir", ".", "--project", "Suche-ü"]
    yield "search", ch(search, folder, NO_UTF8).worked()
    yield from messages_without_utf8(folder)


def messages_without_utf8(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """What is said in such a locale."""
    yield "info", ch(["info"], folder, NO_UTF8).worked()
    missing = ["train", "--config", "fehlt-ä.toml"]
    yield "a file that is not there", ch(missing, folder, NO_UTF8).refused("there is no such file")
    unknown = ["train", "größe", "jsc-sim"]
    yield "a name that is not known", ch(unknown, folder, NO_UTF8).refused("unknown model")
