"""Searches on a Ray cluster of separate processes on loopback, of which parts are killed."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from harden import kill_search
from harden.common import Row

BIN = Path(sys.executable).parent
TRIALS, SLOTS = 40, 2
FLAVOUR = kill_search.Flavour("random", TRIALS)
ENDS = 300.0
"""Seconds within which a search must end, whatever happens."""
STARTS = 5
"""How often a node is started that ends at once."""
MOST_TWICE = 2 * SLOTS * 2
"""Trials that may be evaluated again: two batches for each slot of a node, of two trials each."""
RUNNER = kill_search.OWN_RUNNER.replace(
    "    time.sleep",
    """    def is_victim(name):
        "The configuration that comes first, whenever it comes."
        folder = os.path.dirname(os.environ["SEEN"])
        if not os.path.exists(f"{folder}/{name}"):
            return False
        victim = os.open(f"{folder}/{name}.victim", os.O_RDWR | os.O_CREAT)
        known = os.read(victim, 99).decode()
        if not known:
            os.write(victim, key_of(candidate.config).encode())
        return known in ("", key_of(candidate.config))
    if is_victim("kill"):
        os.kill(os.getpid(), 9)
    if is_victim("hang"):
        time.sleep(3600)
    time.sleep""",
)


@dataclass
class Nodes:
    """A head without processors, and nodes; each is a process with its descendants."""

    folder: Path
    port: int = 0
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def address(self) -> str:
        """Where the head listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the head, of nodes and of the search."""
        ours = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",
            "SEEN": str(self.folder / "seen"), "PAUSE": "0.05",
        }  # fmt: skip
        return {**os.environ, **ours}

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a part of the cluster."""
        command = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats",
                   "--node-ip-address=127.0.0.1", "--object-store-memory=100000000",
                   *arguments]  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=self.variables, cwd=self.folder, **quiet)  # type: ignore[call-overload]
        self.started.append(process)
        found: subprocess.Popen[bytes] = process
        return found

    def start_head(self) -> "subprocess.Popen[bytes]":
        """Start the head, and wait until it listens."""
        head = self.start("--head", f"--port={self.port}", "--num-cpus=0",
                          "--include-dashboard=false")  # fmt: skip
        while_waiting(
            lambda: is_open(self.port) and has_raylet(head.pid), "the head does not listen"
        )
        return head

    def start_node(self) -> "subprocess.Popen[bytes]":
        """Start a node; again, if it ends because the head does not know itself yet."""
        for _ in range(STARTS):
            node = self.start(f"--address={self.address}", f"--num-cpus={SLOTS}")
            while_waiting(partial(is_up_or_over, node), "no node starts")
            if node.poll() is None:
                return node
        raise TimeoutError(f"a node ended {STARTS} times when it was started")

    def close(self) -> None:
        """Kill whatever is left."""
        for process in self.started:
            kill(process)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [each for child in map(int, children) for each in (child, *descendants(child))]
    return []


def has_raylet(pid: int) -> bool:
    """Return whether a process has started the part of Ray that takes tasks."""
    with contextlib.suppress(OSError):
        names = [Path(f"/proc/{each}/comm").read_text().strip() for each in descendants(pid)]
        return "raylet" in names
    return False


def is_up_or_over(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether a part of the cluster takes tasks, or has ended."""
    return process.poll() is not None or has_raylet(process.pid)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a part of the cluster with all that belongs to it, as if its machine were off."""
    for pid in (*descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def is_open(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def while_waiting(is_so: Callable[[], bool], otherwise: str, seconds: float = ENDS) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.1)


@dataclass
class Case:
    """A search on a cluster, to which something happens when a quarter of it is done."""

    name: str
    folder: Path
    nodes: Nodes

    def search(self, resume: bool = False) -> "subprocess.Popen[str]":
        """Start the command."""
        command = [str(BIN / "ch"), *kill_search.arguments(resume), "--engine", "ray",
                   "--address", self.nodes.address]  # fmt: skip
        return subprocess.Popen(command, cwd=self.folder, env=self.nodes.variables, text=True,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip

    def evaluated(self) -> list[list[str]]:
        """The process and the key of every evaluation that has begun."""
        seen = self.folder / "seen"
        return [each.split() for each in seen.read_text().splitlines()] if seen.exists() else []

    def run(self) -> list[str]:
        """Search, harm, go on if need be; what is wrong."""
        head, node = self.nodes.start_head(), self.nodes.start_node()
        if self.name == "node":
            self.nodes.start_node()
        if self.name in ("kill", "hang"):
            (self.folder / self.name).touch()
        search = self.search()
        with contextlib.ExitStack() as at_the_end:
            at_the_end.callback(search.kill)
            while_waiting(lambda: len(self.evaluated()) >= TRIALS // 4 or search.poll() is not None,
                          "nothing is evaluated")  # fmt: skip
            self.harm(search, head, node)
            said = search.communicate(timeout=ENDS)[1]
        wrong = self.judged(search.returncode, said)
        if search.returncode != 0 and not wrong:
            (self.folder / self.name).unlink(missing_ok=True)
            if self.name == "head":
                kill(node)
                self.nodes.start_head()
                self.nodes.start_node()
            again = self.search(resume=True)
            said = again.communicate(timeout=ENDS)[1]
            wrong += [f"--resume: {again.returncode}: {said[-300:]}"] if again.returncode else []
        return wrong + self.counted()

    def harm(
        self,
        search: "subprocess.Popen[str]",
        head: "subprocess.Popen[bytes]",
        node: "subprocess.Popen[bytes]",
    ) -> None:
        """Do what the case is about."""
        if self.name == "worker":
            os.kill(int(self.evaluated()[-1][0]), signal.SIGKILL)
        elif self.name == "node":
            kill(node)
        elif self.name == "driver":
            search.kill()
        elif self.name == "head":
            kill(head)
        elif self.name == "join":
            self.nodes.start_node()
        elif self.name == "hang":
            while_waiting(lambda: len(self.stored().finished) >= TRIALS - 2, "others wait", 120)
            search.send_signal(signal.SIGINT)

    def stored(self) -> kill_search.Study:
        """What the study holds."""
        return kill_search.read_study(self.folder)

    def judged(self, code: int, said: str) -> list[str]:
        """Return what is wrong with the end of the first search."""
        wanted = {"driver": (-9,), "head": (2,), "hang": (130, 2)}.get(self.name, (0,))
        wrong = [] if code in wanted else [f"ended with {code}: {said[-300:]}"]
        errors = [line for line in said.splitlines() if "is lost; what was evaluated" in line]
        if self.name == "head" and (len(errors) != 1 or "Traceback" in said):
            wrong.append(f"not one line: {said[-300:]}")
        return wrong

    def counted(self) -> list[str]:
        """Return what is wrong with the study at its end."""
        study = self.stored()
        times = Counter(key for _, key in self.evaluated())
        twice = sum(count - 1 for count in times.values())
        failed = sum(values is None for _, values in study.finished.values())
        facts = {
            f"{len(study.finished)} trials": len(study.finished) != TRIALS,
            f"{study.doubled} trials stored twice": study.doubled > 0,
            f"{study.running} trials left running": study.running > 0,
            f"{twice} evaluated again": twice > MOST_TWICE,
            f"{failed} failed": failed != (self.name == "kill"),
        }
        return [fact for fact, is_wrong in facts.items() if is_wrong]


CASES = {
    "worker": "process of a trial killed",
    "node": "node killed",
    "driver": "search killed",
    "head": "head of the cluster killed",
    "kill": "a trial that kills its process",
    "hang": "a trial that hangs, then Ctrl-C",
    "join": "a node that joins",
}


@contextlib.contextmanager
def prepared(name: str) -> Iterator[Case]:
    """A project and the means of a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="ch-"))  # short, as Ray's sockets have long names
    nodes = Nodes(folder / "p")
    try:
        kill_search.project(folder / "p", FLAVOUR, RUNNER)
        yield Case(name, folder / "p", nodes)
    finally:
        nodes.close()
        shutil.rmtree(folder, ignore_errors=True)


def run(scale: float) -> Iterable[Row]:
    """Every fault once; none where Ray is not installed."""
    if find_spec("ray") is None:
        yield Row("cluster", "Ray is not installed", 0, 0)
        return
    names = [*CASES][: max(1, round(len(CASES) * scale))]
    for name in names:
        begun = time.monotonic()
        with prepared(name) as case:
            try:
                wrong = case.run()
            except (TimeoutError, subprocess.TimeoutExpired) as error:
                wrong = [f"{name}: {error}"]
        figure = f"{time.monotonic() - begun:.0f} s"
        yield Row("cluster", CASES[name], 1, bool(wrong), tuple(wrong), figure)
