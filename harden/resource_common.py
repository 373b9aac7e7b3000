"""What the cases of scarce resources share: runs of ``ch``, small disks, and what is expected."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harden.kill_server import ROOT, Request, Server

QUIET = ["--report-to", "none", "--accelerator", "cpu", "--project-dir", ".", "--project", "out"]
SHORT = ["--batch-size", "2048", "--max-epochs", "2", "--learning-rate", "1e-2"]
TRAIN = ["train", "jsc-tiny", "jsc-sim", *SHORT, *QUIET]
LIMIT = 1_200


@dataclass(frozen=True)
class Done:
    """How a run of ``ch`` ended and what it said."""

    code: int | None
    out: str
    err: str

    def expect(self, code: int, *texts: str) -> list[str]:
        """What is wrong with it: the code, or a text that is missing."""
        wrong = [] if self.code == code else [f"ended with {self.code}, not {code}"]
        both = self.out + self.err
        wrong += [f"does not say {text!r}" for text in texts if text not in both]
        wrong += ["shows a traceback"] if "Traceback (most recent" in both else []
        wrong += ["speaks of a bug"] if "a bug in chop" in both else []
        return [f"{each}: {both[-300:]}" for each in wrong]

    def refused(self, *texts: str) -> list[str]:
        """What is wrong with a refusal: it must be one line, with exit code 2."""
        wrong = self.expect(2, *texts)
        lines = self.err.splitlines()
        if len(lines) != 1 or not lines[0].startswith("ch: "):
            wrong.append(f"the refusal is not one line: {self.err[-300:]!r}")
        return wrong

    def worked(self, *texts: str) -> list[str]:
        """What is wrong with a run that should succeed and have nothing to complain of."""
        wrong = self.expect(0, *texts)
        return wrong + ([f"complains: {self.err[-300:]!r}"] if self.err else [])


def ch(
    arguments: list[str], folder: Path, variables: Mapping[str, str | None] | None = None,
    **how: Any,
) -> Done:  # fmt: skip
    """Run ``ch`` in a process of its own; variables that are None are not set in it."""
    changed = {"OMP_NUM_THREADS": "1"} | dict(variables or {})
    environment = {
        name: value for name, value in (os.environ | changed).items() if value is not None
    }
    program = [sys.executable, "-m", "chop.cli", *arguments]
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            program, cwd=folder, env=environment, timeout=LIMIT, check=False, **(options | how)
        )
    except subprocess.TimeoutExpired:
        return Done(None, "", "did not end")
    said = [(stream or b"").decode(errors="replace") for stream in (done.stdout, done.stderr)]
    return Done(done.returncode, *said)


def forked(server: Server, runs: list[list[str]], folder: Path, **how: Any) -> list[Done]:
    """Run ``ch`` once or several times at once, in forks of a process that has torch already."""
    with tempfile.TemporaryDirectory(prefix="chop-said-") as outputs:
        request = Request(runs, str(folder), outputs, **how)
        answer = server.run(request)
        said = [request.output(place).read_text(errors="replace") for place in range(len(runs))]
    return [Done(code, *_parted(text)) for code, text in zip(answer.codes, said, strict=True)]


def _parted(said: str) -> tuple[str, str]:
    """The output of a fork, which has one stream, with the complaints taken apart."""
    lines = said.splitlines(keepends=True)
    complaints = [line for line in lines if line.startswith("ch: ")]
    return "".join(line for line in lines if line not in complaints), "".join(complaints)


class CannotMount(Exception):
    """This machine lets nobody mount a file system, and says why."""


@contextlib.contextmanager
def small_disk(kib: int, read_only: bool = False) -> Iterator[Path]:
    """A file system in memory that holds so much and no more."""
    folder = Path(tempfile.mkdtemp(prefix="chop-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    try:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CannotMount(str(error)) from None
        if done.returncode:
            raise CannotMount(done.stderr.strip() or "mount failed")
        try:
            if read_only:
                subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=False)
    finally:
        folder.rmdir()


def fill(folder: Path, leave: int) -> Path:
    """A file that leaves only so many bytes of a file system free."""
    ballast = folder / ".ballast"
    free = os.statvfs(folder)
    with ballast.open("wb") as file:
        file.write(bytes(max(free.f_bavail * free.f_frsize - leave, 0)))
    return ballast


def configured(folder: Path, name: str = "run.toml") -> Path:
    """The example configuration, copied to a folder."""
    text = (ROOT / "configs" / "examples" / "jsc_toy_by_type.toml").read_text(encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name
