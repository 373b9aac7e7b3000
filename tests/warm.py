"""Runs of ``ch`` that are forked from a process in which everything is imported.

To import torch and Lightning takes seconds, to fork milliseconds. Every run is still a process with
its own signals, folder, environment and output. What only a fresh Python shows, such as what is
imported when, is tested in a fresh one.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

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


class Done:
    """What became of a run: exit code, output, errors."""

    def __init__(self, run: WarmRun) -> None:
        self.stdout, self.stderr = run.communicate()
        self.returncode = run.returncode
