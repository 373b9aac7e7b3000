"""Runs of ``ch`` and of Python that are forked from a process in which everything is imported.

To import torch and Lightning takes seconds, to fork milliseconds. Every run is still a process with
its own signals, folder, environment and output. What only a fresh Python shows, such as what is
imported when, is tested in a fresh one.
"""

import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import weakref
from pathlib import Path
from typing import Any

from harden.kill_server import WARM

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(WARM))


class WarmRun:
    """A run of ``ch``, used as a `subprocess.Popen` is.

    Args:
        patch: Python that changes something first.
        environment: variables that are added.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        patch: str = "",
        **environment: str,
    ) -> None:
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        self._outputs = [f"{folder}/{name}" for name in ("out", "err")]
        given = (arguments, str(cwd or Path.cwd()), environment, patch, self._outputs)
        self._process = FORKS.Process(target=be_ch, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal if there was one; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("ch", timeout)
        return self.returncode

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """Wait for the end; what it wrote to its output and to its errors."""
        self.wait(timeout)
        out, err = (Path(path).read_text(encoding="utf-8") for path in self._outputs)
        return out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def be_ch(
    arguments: tuple[str, ...],
    cwd: str,
    environment: dict[str, str],
    patch: str,
    outputs: list[str],
) -> None:
    """Be a run of ``ch``, in the forked process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor, path in ((1, outputs[0]), (2, outputs[1])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(cwd)
    os.environ |= environment
    sys.argv = [str(Path(sys.executable).with_name("ch")), *arguments]
    exec(patch, {})
    from chop.cli import main

    sys.exit(main(list(arguments)))


def ch(*arguments: str, cwd: Path | None = None, **environment: str) -> "Done":
    """Run ``ch`` and wait for its end."""
    return Done(WarmRun(*arguments, cwd=cwd, **environment))


def python(*arguments: object, cwd: Path | None = None, **environment: str) -> "Done":
    """Run a script, or code after ``-c``, and wait for its end; warnings are errors."""
    patch = "from warm import be_strict_python; be_strict_python()"
    return Done(WarmRun(*map(str, arguments), cwd=cwd, patch=patch, **environment))


def be_strict_python() -> None:
    """Be a Python whose warnings are errors, with the arguments of this process."""
    warnings.simplefilter("error")
    be_python(sys.argv[1:])


def be_python(arguments: list[str]) -> None:
    """Be a Python with these arguments until its end."""
    kind, rest = arguments[0], arguments[1:]
    code: Any = 0
    try:
        sys.argv = rest if kind in ("-c", "-m") else arguments
        if kind == "-c":
            exec(rest[0], {"__name__": "__main__"})
        elif kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(kind).resolve().parent))
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001  # as Python itself
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 1)


class Done:
    """What became of a run: exit code, output, errors."""

    def __init__(self, run: WarmRun) -> None:
        self.stdout, self.stderr = run.communicate()
        self.returncode = run.returncode
