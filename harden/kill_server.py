"""A process that has everything imported and forks runs of ``ch``, some of which it kills.

To import torch takes seconds, to fork milliseconds, so that hundreds of real processes can be
killed in minutes. Every run is a process of its own in a session of its own.

It reads one request a line from its standard input and answers with one line; see `Request`.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from harden.kill_hook import FileOperations

ROOT = Path(__file__).parents[1]
WARM = (
    "chop.verbs.train.training", "chop.verbs.search.job", "chop.search.engines.local",
    "chop.search.strategy", "chop.training.fit", "chop.training.report",
    "chop.runs", "chop.results.front", "chop.verbs.common.session", "chop.config.layers",
    "chop.cli", "matplotlib.backends.backend_agg", "matplotlib.figure", "mpl_toolkits.mplot3d",
    "optuna.samplers", "tomlkit", "tabulate", "torch.utils.flop_counter",
    "torch.utils.tensorboard", "torch.profiler",
    "torch._dynamo",  # imported by every optimiser that is made, and takes longer than all the rest
)  # fmt: skip
"""What a run would import; all the rest it imports by itself."""
PAUSE = 0.002
GONE = 120.0
"""Seconds within which the helpers of a killed run must be gone, on a machine that is busy."""


@dataclass(frozen=True)
class Request:
    """Runs of ``ch`` to be started together, and who dies when.

    Attributes:
        runs: the arguments of each.
        folder: where they run; file operations are counted in its folder ``out``.
        name: the output of run i goes to ``<name>-<i>.txt`` in the folder `outputs`.
        kill_after: seconds after the start at which the victims are killed.
        victims: the places of these among the runs.
        die_at: the file operation at which the first run kills itself.
        alone: kill the process of the victim only, and not the helpers it has started.
        helpers: kill one of the processes that the victim has started, as soon as there is one, and
            not the victim.
        limit: seconds after which a run that has not ended counts as hanging.
        largest_file: bytes beyond which every write to a file fails, as it does on a full disk.
        memory: bytes that a run may take beyond what it has when it starts, torch imported.
    """

    runs: list[list[str]]
    folder: str
    outputs: str
    name: str = "run"
    kill_after: float | None = None
    victims: list[int] = field(default_factory=lambda: [0])
    die_at: int | None = None
    alone: bool = False
    helpers: bool = False
    limit: float = 900.0
    variables: dict[str, str] = field(default_factory=dict)
    largest_file: int | None = None
    memory: int | None = None

    def output(self, place: int) -> Path:
        """What run number `place` has said."""
        return Path(self.outputs) / f"{self.name}-{place}.txt"


@dataclass(frozen=True)
class Answer:
    """How the runs ended: exit codes, minus the signal if there was one, and None for a hang."""

    codes: list[int | None]
    seconds: float
    operations: int
    left_behind: int
    """Processes that a killed run has left at work for longer than it should."""

    @property
    def killed(self) -> bool:
        return -signal.SIGKILL in self.codes


class Server:
    """The process from outside."""

    def __enter__(self) -> "Server":
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "harden.kill_server"],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, request: Request) -> Answer:
        """Have it done, and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        Path(request.outputs).mkdir(parents=True, exist_ok=True)
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the server has ended with {self._process.wait()}")
        return Answer(**json.loads(line))


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        answer = fulfil(Request(**json.loads(line)))
        answers.write(json.dumps(asdict(answer)) + "\n")
        answers.flush()


def fulfil(request: Request) -> Answer:
    """Start the runs, kill the victims, and wait for the others."""
    begun = time.monotonic()
    pids = [start(request, place) for place in range(len(request.runs))]
    codes: dict[int, int | None] = {}
    to_kill = [pids[place] for place in request.victims] if request.kill_after is not None else []
    while len(codes) < len(pids) and time.monotonic() - begun < request.limit:
        if to_kill and time.monotonic() - begun >= (request.kill_after or 0.0):
            to_kill = killed([pid for pid in to_kill if pid not in codes], request)
        for pid in pids:
            if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(ended[1])
        time.sleep(PAUSE)
    left = sum(not is_gone(pid) for pid in pids)
    kill(pids, alone=False)
    for pid in pids:
        if pid not in codes:
            os.waitpid(pid, 0)
    seconds = time.monotonic() - begun
    return Answer([codes.get(pid) for pid in pids], seconds, operations_of(request), left)


def start(request: Request, place: int) -> int:
    """Fork a process that runs ``ch``; its number."""
    request.output(place).touch()  # it may be killed before it can say anything
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = run(request, place)
    except SystemExit as exit_request:
        code = exit_request.code if isinstance(exit_request.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def run(request: Request, place: int) -> int:
    """Be a run of ``ch``, in the forked process."""
    os.setsid()
    output = os.open(request.output(place), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.chdir(request.folder)
    os.environ |= request.variables
    restrict(request)
    watched = Path(request.folder) / "out"
    operations = FileOperations(str(watched), request.die_at if place == 0 else None)
    operations.install()
    from chop.cli import main

    # A run that needs further processes starts its own command once more.
    sys.argv = [str(Path(sys.executable).with_name("ch")), *request.runs[place]]
    sys.modules["__main__"].__spec__ = None
    code = main(request.runs[place])
    if place == 0:
        counted(request).write_text(str(operations.count))
    return code


def restrict(request: Request) -> None:
    """Give a run less than the machine has."""
    if request.largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request.largest_file,) * 2)
    if request.memory is not None:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + request.memory,) * 2)


def counted(request: Request) -> Path:
    """The file in which a run that ends says how many file operations it took."""
    return request.output(0).with_suffix(".count")


def operations_of(request: Request) -> int:
    """The file operations of the first run, 0 if it did not end by itself."""
    with contextlib.suppress(OSError):
        return int(counted(request).read_text())
    return 0


def killed(victims: list[int], request: Request) -> list[int]:
    """Kill what is to be killed now; the victims that have started no process to be killed yet."""
    if not request.helpers:
        kill(victims, request.alone)
        return []
    started = {victim: [pid for pid in members(victim) if pid != victim] for victim in victims}
    kill([pids[0] for pids in started.values() if pids], alone=True)
    return [victim for victim, pids in started.items() if not pids]


def kill(pids: list[int], alone: bool) -> None:
    """Kill runs, with or without the processes that they have started."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL) if alone else os.killpg(pid, signal.SIGKILL)


def is_gone(group: int) -> bool:
    """Whether all processes of a run end within the time they have."""
    deadline = time.monotonic() + GONE
    while members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True


def members(group: int) -> dict[int, list[str]]:
    """The processes of a group that are still at work, with what the system says of each."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            facts = path.read_text().rpartition(") ")[2].split()
            if int(facts[2]) == group and facts[0] != "Z":
                found[int(path.parent.name)] = facts
    return found


def cpu_seconds(group: int) -> float:
    """The seconds that the processes of a group have computed, and those that they waited for."""
    ticks = sum(int(fact) for facts in members(group).values() for fact in facts[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def warm_up() -> None:
    """Import what runs need, and nothing that starts a thread."""
    import importlib

    for name in WARM:
        importlib.import_module(name)
    from chop.dataset.physical.jsc_sim import _arrays

    _arrays()


def main() -> None:
    """Be the server: requests come on file 0, answers go to what was file 1."""
    answers: Any = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warm_up()
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
