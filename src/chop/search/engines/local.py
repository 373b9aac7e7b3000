"""The engine that evaluates in processes of this machine."""

import itertools
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from chop.errors import SearchError
from chop.loading.user_code import import_user_code
from chop.search.engines.engine import (
    Answer,
    BatchEvaluator,
    Finished,
    Lost,
    Payload,
    Ticket,
    TrialEngine,
)
from chop.search.study.workers import at_any_moment

PATIENCE = 10.0
"""Seconds that a worker gets to end by itself."""
AHEAD = 2
"""Batches that a worker may hold, so that it need not wait for the next."""
MOST_FAILED_STARTS = 3
"""Workers in a row that die before they are ready; the next would, too."""
SIGNALS = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Parcel:
    """The data that a worker process starts with."""

    payload: Payload
    threads: int
    imports: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Import the user's code before the payload is read, which may hold classes of it."""
        return _open_parcel, (self.imports,), vars(self)


def _open_parcel(imports: tuple[str, ...]) -> Parcel:
    import_user_code(list(imports))
    return object.__new__(Parcel)


@dataclass
class Worker:
    """A process and the batches that it holds, the one it works on first."""

    process: Any
    connection: Connection
    batches: deque[tuple[Ticket, Sequence[Any]]] = field(default_factory=deque)
    is_ready: bool = False


class Local(TrialEngine):
    """Evaluates in processes of this machine, which are started once.

    A worker that dies is replaced, and the batch that it worked on is lost.

    Args:
        slots: how many processes there are.
        threads: of each process.
        imports: files of the user's that a process reads first.
        may_fork: whether processes may start as forks. A fork starts at once, and any model will
            do: it need not be sent, so that its class may come from a notebook. A fork must not
            use what threads of the first process hold: neither a GPU, nor a channel of gRPC, nor
            OpenMP's threads.
    """

    def __init__(
        self, slots: int, threads: int = 1, imports: Sequence[str] = (), *, may_fork: bool = True
    ) -> None:
        self.slots = slots
        self.threads = threads
        self.imports = tuple(imports)
        self.may_fork = may_fork
        self._workers: list[Worker] = []
        self._waiting: deque[tuple[Ticket, Sequence[Any]]] = deque()
        self._failed_starts = 0
        self._tickets = itertools.count(1)

    @property
    def start_method(self) -> str:
        """Return how processes are started: by fork where nothing forbids it."""
        is_safe = self.may_fork and self.threads == 1 and not torch.accelerator.is_available()
        return "fork" if is_safe and sys.platform == "linux" else "spawn"

    def start(self, payload: Payload) -> None:
        self._parcel = Parcel(payload, self.threads, self.imports)
        while len(self._workers) < self.slots:
            self._workers.append(self._start_worker())

    def _start_worker(self) -> Worker:
        context: Any = multiprocessing.get_context(self.start_method)
        if self.start_method == "spawn":
            resource_tracker.ensure_running()  # which would let signals through again
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(self._parcel, theirs), name="search-worker")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python warns of any fork beside threads; see `may_fork`.
                warnings.filterwarnings("ignore", ".*multi-threaded, use of fork")
                process.start()
        except Exception as error:  # noqa: BLE001  # a user's class may do anything
            raise SearchError(
                "n_jobs > 1 needs a model and data that can be sent to another process: "
                f"{type(error).__name__}: {error}; use n_jobs = 1"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return Worker(process, ours)

    def submit(self, requests: Sequence[Any]) -> Ticket:
        ticket = next(self._tickets)
        self._waiting.append((ticket, requests))
        self._hand_out()
        return ticket

    def _hand_out(self) -> None:
        """Give waiting batches to the workers that have the fewest."""
        while self._waiting:
            worker = min(self._workers, key=lambda each: len(each.batches))
            if len(worker.batches) >= AHEAD:
                return
            batch = self._waiting.popleft()
            worker.batches.append(batch)
            with suppress(OSError):  # it has died, and `finished` is about to notice
                worker.connection.send(batch)

    def finished(self, timeout: float) -> Finished:
        if not any(worker.batches for worker in self._workers):
            return []
        # Nothing is read while it waits, so that nothing can get lost.
        with at_any_moment() if timeout > 0 else nullcontext():
            ready: Any = wait([worker.connection for worker in self._workers], timeout)
        found: Finished = []
        for worker in [each for each in self._workers if each.connection in ready]:
            try:
                found += self._read(worker)
            except (EOFError, OSError):
                found += self._replace(worker)
        self._hand_out()
        return found

    def _read(self, worker: Worker) -> Finished:
        """Return what a worker says: first that it is ready, then the answers to its batches."""
        found: list[Answer] | Lost | None = worker.connection.recv()
        if not worker.is_ready:
            if isinstance(found, Lost):
                raise SearchError(f"a process of the search could not start: {found.reason}")
            worker.is_ready, self._failed_starts = True, 0
            return []
        assert found is not None
        ticket, _ = worker.batches.popleft()
        return [(ticket, found)]

    def _replace(self, worker: Worker) -> Finished:
        """Start another worker for one that has died; the batch that it worked on is lost."""
        worker.process.join()
        code = worker.process.exitcode
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        lost: Finished = []
        if worker.is_ready and worker.batches:
            lost.append((worker.batches.popleft()[0], Lost(f"its process {reason}")))
        self._failed_starts += not worker.is_ready
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise SearchError(f"a process of the search {reason} before it was ready")
        worker.connection.close()
        self._waiting.extendleft(reversed(worker.batches))
        self._workers[self._workers.index(worker)] = self._start_worker()
        return lost

    def close(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
            worker.connection.close()
        self._workers.clear()
        self._waiting.clear()


def work(parcel: Parcel, connection: Connection) -> None:
    """Evaluate batches until this process is told to end; the target of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all, and the first process acts
    signal.signal(signal.SIGTERM, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    batches: queue.SimpleQueue[tuple[Ticket, Sequence[Any]]] = queue.SimpleQueue()
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    threading.Thread(target=receive, args=(connection, batches), daemon=True).start()
    try:
        torch.set_num_threads(parcel.threads)
        evaluate = BatchEvaluator(parcel.payload.evaluator())
    except Exception as error:  # noqa: BLE001  # whatever it is, the first process says so
        connection.send(Lost(f"{type(error).__name__}: {error}"))
        return
    connection.send(None)
    while True:
        _, batch = batches.get()
        try:
            answers: list[Answer] | Lost = list(evaluate(batch))
        except Exception as error:  # noqa: BLE001  # the same
            answers = Lost(f"{type(error).__name__}: {error}")
        connection.send(answers)


def receive(connection: Connection, batches: "queue.SimpleQueue[Any]") -> None:
    """Take batches off the connection at once, so that the first process never waits to send."""
    with suppress(EOFError, OSError):
        while True:
            batches.put(connection.recv())


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def end_with(parent: int) -> None:
    """End this process once its parent is gone: nothing is left to work for."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)
