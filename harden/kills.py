"""Kills: SIGKILL at 300 moments of all that writes files, then ``--resume`` or the same once more.

Moments are spread over the measured length of an undisturbed run, and over its file operations,
which hits the writing itself. Training that went on must equal training that nobody disturbed, bit
for bit; of a study no finished trial may be lost, changed, evaluated again or stored twice; what
is written at the end of a command must be there as a whole or not at all, and be the same when the
command is given again; and whatever is on the disk must be readable at every moment.
"""

import queue
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harden import kill_files, kill_search, kill_train
from harden.common import Row, share
from harden.kill_server import Server

PART = "kills"
TOTALS = {
    "train, at a moment": 60,
    "train, in a file operation": 50,
    "train of two processes, all or one of them": 6,
    "search, at a moment": 30,
    "search, in a file operation": 30,
    "search of three processes, one or all of them": 20,
    "search with n_jobs = 2, all or the first alone": 10,
    "export, predict, quantize or sensitivity, at a moment": 24,
    "export, predict, quantize or sensitivity, in a file operation": 96,
    "learned search, at a moment": 6,
    "learned search, in a file operation": 12,
}
"""The kinds of kills and how many of each there are: over 200."""
READS = 6
"""Undisturbed runs of each kind whose files are read all the time."""
SERVERS = 2
ATTEMPTS = 6
"""A run may be over before its moment comes; then another is killed earlier."""
AGAIN = 0.4
"""How likely a run that was resumed is killed again."""
HALF = 0.5
VICTIMS_OF_TWO: tuple[dict[str, bool], ...] = ({}, {"alone": True}, {"helpers": True})
"""Both processes, the first alone, the second alone."""

Case = Callable[[Server, Path, int], tuple[int, list[str]]]
"""Kills one project at least once: how often, and what was wrong."""


class Bench:
    """A few servers, the folder they work in, and the undisturbed runs to compare with."""

    def __init__(self, servers: list[Server], folder: Path) -> None:
        self.folder = folder
        self.free: queue.Queue[Server] = queue.Queue()
        for server in servers:
            self.free.put(server)
        self._lock = threading.Lock()
        self._training: dict[str, kill_train.Reference] = {}
        self._searching: dict[str, kill_train.Reference] = {}
        self._writing: dict[str, kill_train.Reference] = {}

    def training(self, server: Server, flavour: str) -> kill_train.Reference:
        """The undisturbed training run of a flavour, made when it is first asked for."""
        with self._lock:
            if flavour not in self._training:
                self._training[flavour] = kill_train.undisturbed(server, self.folder, flavour)
            return self._training[flavour]

    def searching(self, server: Server, name: str) -> kill_train.Reference:
        """The undisturbed search of a flavour."""
        with self._lock:
            if name not in self._searching:
                self._searching[name] = undisturbed_search(server, self.folder, name)
            return self._searching[name]

    def prepared(self, server: Server) -> Path:
        """A project for commands that need a network, made when it is first asked for."""
        with self._lock:
            base = self.folder / "prepared"
            return base if base.exists() else kill_files.prepare(server, base)

    def writing(self, server: Server, name: str) -> kill_train.Reference:
        """The undisturbed run of a command that writes its files at the end."""
        base = self.prepared(server)
        with self._lock:
            if name not in self._writing:
                work = self.folder / f"reference-{name}"
                self._writing[name] = kill_files.undisturbed(server, base, work, name)
            return self._writing[name]


def undisturbed_search(server: Server, folder: Path, name: str) -> kill_train.Reference:
    """Search without any kill."""
    flavour = kill_search.FLAVOURS[name]
    work = kill_search.project(folder / f"reference-{name}", flavour)
    answer, said = kill_search.Disturbed(server, work, flavour).run()
    if answer.codes != [0]:
        raise RuntimeError(f"{name}: {answer.codes}: {said[0][-2000:]}")
    return kill_train.Reference(work, answer.seconds, answer.operations)


@contextmanager
def benches(servers: int = SERVERS) -> Iterator[Bench]:
    """Servers that are ready, in a folder that goes when they do."""
    folder = Path(tempfile.mkdtemp(prefix="chop-kills-"))
    try:
        with ExitStack() as stack:
            started = [stack.enter_context(Server()) for _ in range(servers)]
            yield Bench(started, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pick(names: Iterable[str], place: int) -> str:
    """One of several names, each in its turn."""
    chosen = list(names)
    return chosen[place % len(chosen)]


@dataclass(frozen=True)
class TrainKills:
    """Kills of training: by the clock once or more, or once in a file operation."""

    bench: Bench
    total: int
    by_operation: bool
    of_two: bool = False

    def __call__(self, server: Server, folder: Path, place: int) -> tuple[int, list[str]]:
        """Kill and resume until it is done."""
        flavour = pick(kill_train.OF_TWO if self.of_two else kill_train.FLAVOURS, place)
        reference = self.bench.training(server, flavour)
        draw = random.Random(f"train/{self.by_operation}/{place}")
        spread = (place % self.total + draw.random()) / self.total
        for attempt in range(ATTEMPTS):
            work = kill_train.project(folder / str(attempt))
            project = kill_train.Disturbed(server, work, flavour, reference)
            how = self._how(spread * 0.8**attempt, reference, place)
            killed, wrong = project.killed(**how)
            if killed or wrong:
                break
        kills = int(killed)
        again = not self.by_operation and not self.of_two
        while killed and again and draw.random() < AGAIN:
            killed, found = project.killed(draw.random() * reference.seconds)
            kills, wrong = kills + killed, wrong + found
        return kills, wrong or project.finished()

    def _how(self, spread: float, reference: kill_train.Reference, place: int) -> dict[str, Any]:
        if self.by_operation:
            return {"die_at": 1 + int(spread * reference.operations)}
        whom: dict[str, bool] = VICTIMS_OF_TWO[place % 3] if self.of_two else {}
        return {"kill_after": spread * reference.seconds, **whom}


@dataclass(frozen=True)
class SearchKills:
    """Kills of a search: who takes part, and who dies."""

    bench: Bench
    total: int
    by_operation: bool = False
    processes: int = 1
    jobs: int = 1

    def __call__(self, server: Server, folder: Path, place: int) -> tuple[int, list[str]]:
        """Kill and resume until it is done."""
        name = pick(kill_search.FLAVOURS, place)
        reference = self.bench.searching(server, name)
        flavour = kill_search.FLAVOURS[name]
        draw = random.Random(f"search/{self.by_operation}/{self.processes}/{self.jobs}/{place}")
        spread = (place % self.total + draw.random()) / self.total
        for attempt in range(ATTEMPTS):
            work = kill_search.project(folder / str(attempt), flavour, n_jobs=self.jobs)
            project = kill_search.Disturbed(server, work, flavour)
            how = self._how(spread * 0.8**attempt, reference, draw)
            killed, wrong = project.killed(self.processes, **how)
            if killed or wrong:
                break
        wrong = wrong or project.finished()
        if not wrong and flavour.repeatable and self.processes == self.jobs == 1:
            wrong = project.compared(reference.folder)
        return int(killed), wrong

    def _how(
        self, spread: float, reference: kill_train.Reference, draw: random.Random
    ) -> dict[str, Any]:
        if self.by_operation:
            return {"die_at": 1 + int(spread * reference.operations)}
        if self.jobs > 1:
            return {"kill_after": spread * reference.seconds, "alone": draw.random() < HALF}
        everyone = list(range(self.processes))
        victims = everyone if draw.random() < HALF else [draw.randrange(self.processes)]
        return {"kill_after": spread * reference.seconds, "victims": victims}


@dataclass(frozen=True)
class FileKills:
    """Kills of commands that write their files at the end, by the clock or in a file operation."""

    bench: Bench
    total: int
    by_operation: bool
    names: tuple[str, ...] = tuple(kill_files.COMMANDS)

    def __call__(self, server: Server, folder: Path, place: int) -> tuple[int, list[str]]:
        """Kill, and give the command again."""
        name = pick(self.names, place)
        reference = self.bench.writing(server, name)
        base = self.bench.prepared(server)
        draw = random.Random(f"files/{self.by_operation}/{place}")
        turns = -(-self.total // len(self.names))
        spread = (place // len(self.names) % turns + draw.random()) / turns
        for attempt in range(ATTEMPTS):
            work = folder / str(attempt)
            shutil.copytree(base, work)
            project = kill_files.Disturbed(server, work, name, reference)
            killed, wrong = project.killed(**self._how(spread * 0.8**attempt, reference))
            if killed or wrong:
                break
        return int(killed), [f"{name}: {each}" for each in wrong or project.finished()]

    def _how(self, spread: float, reference: kill_train.Reference) -> dict[str, Any]:
        if self.by_operation:
            return {"die_at": 1 + int(spread * reference.operations)}
        return {"kill_after": spread * reference.seconds}


def cases(bench: Bench, what: str, total: int) -> Case:
    """The case that stands for a kind of kills."""
    made: dict[str, Case] = {
        "train, at a moment": TrainKills(bench, total, by_operation=False),
        "train, in a file operation": TrainKills(bench, total, by_operation=True),
        "train of two processes, all or one of them": TrainKills(
            bench, total, by_operation=False, of_two=True
        ),
        "search, at a moment": SearchKills(bench, total),
        "search, in a file operation": SearchKills(bench, total, by_operation=True),
        "search of three processes, one or all of them": SearchKills(bench, total, processes=3),
        "search with n_jobs = 2, all or the first alone": SearchKills(bench, total, jobs=2),
        "export, predict, quantize or sensitivity, at a moment": FileKills(
            bench, total, by_operation=False
        ),
        "export, predict, quantize or sensitivity, in a file operation": FileKills(
            bench, total, by_operation=True
        ),
        "learned search, at a moment": FileKills(
            bench, total, by_operation=False, names=(kill_files.LEARNED,)
        ),
        "learned search, in a file operation": FileKills(
            bench, total, by_operation=True, names=(kill_files.LEARNED,)
        ),
    }
    return made[what]


def tried(bench: Bench, what: str, case: Case, place: int) -> tuple[int, list[str]]:
    """One case in a folder of its own."""
    server = bench.free.get()
    folder = bench.folder / f"{what}-{place}"
    try:
        kills, wrong = case(server, folder, place)
    except Exception as error:  # noqa: BLE001  # the case is lost, the others go on
        kills, wrong = 1, [f"{type(error).__name__}: {error}"]
    finally:
        bench.free.put(server)
        shutil.rmtree(folder, ignore_errors=True)
    return kills, [f"case {place}: {each}" for each in wrong]


def run_kind(bench: Bench, what: str, total: int) -> Row:
    """One line of the table: kills of one kind, until there are as many as there should be."""
    case = cases(bench, what, total)
    kills = lost = place = 0
    failures: list[str] = []
    with ThreadPoolExecutor(SERVERS) as pool:
        while kills < total and place < 2 * total:
            batch = range(place, place + min(total - kills, 2 * SERVERS))
            place = batch.stop
            for count, wrong in pool.map(lambda i: tried(bench, what, case, i), batch):
                kills, lost = kills + count, lost + bool(wrong)
                failures += wrong
    return Row(PART, what, kills, lost, tuple(failures), f"{place} projects")


def read_all_the_time(bench: Bench, runs: int) -> Row:
    """Undisturbed runs whose checkpoints and studies somebody reads without a pause."""
    wrong: list[str] = []
    reads = 0
    for place in range(runs):
        server = bench.free.get()
        stop = threading.Event()
        trains = place % 2 == 0
        folder = bench.folder / f"read-{place}"
        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(train_once if trains else search_once, server, folder, place)
            busy.add_done_callback(lambda _, stop=stop: stop.set())  # type: ignore[misc]
            while not stop.is_set():
                wrong += read_once(folder, trains)
                reads += 1
            busy.result()
        bench.free.put(server)
        shutil.rmtree(folder, ignore_errors=True)
    return Row(PART, "checkpoints and studies read while written", reads, len(wrong), tuple(wrong))


def train_once(server: Server, folder: Path, place: int) -> None:
    """Train in a new project."""
    flavour = pick(kill_train.FLAVOURS, place // 2)
    work = kill_train.project(folder)
    kill_train.Disturbed(server, work, flavour, kill_train.Reference(work, 0.0, 0))._train()


def search_once(server: Server, folder: Path, place: int) -> None:
    """Search in a new project."""
    flavour = kill_search.FLAVOURS[pick(kill_search.FLAVOURS, place // 2)]
    kill_search.Disturbed(server, kill_search.project(folder, flavour), flavour).run()


def read_once(folder: Path, trains: bool) -> list[str]:
    """What of a project cannot be read at this moment."""
    if trains:
        return kill_train.unreadable(folder / kill_train.CHECKPOINTS)
    try:
        kill_search.read_study(folder)
    except Exception as error:  # noqa: BLE001  # whatever it is, the study cannot be read
        return [f"study: {type(error).__name__}: {error}"]
    return []


def run(scale: float) -> Iterable[Row]:
    """All kinds of kills."""
    with benches() as bench:
        for what, total in TOTALS.items():
            yield run_kind(bench, what, share(total, scale))
        yield read_all_the_time(bench, share(READS, scale) * 2)
