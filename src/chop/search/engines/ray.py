"""The engine that evaluates on a Ray cluster: one that is there, or one of this machine.

Ray ends a driver whose cluster is gone. So a process of its own, the relay, is the driver: it hands
batches to tasks of Ray and answers back, and if it ends, the search says so in one line.
"""

import itertools
import multiprocessing
import os
import pickle
import queue
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from chop.errors import SearchError
from chop.search.engines.engine import Answer, BatchEvaluator, Finished, Lost, Ticket, TrialEngine
from chop.search.engines.local import PATIENCE, SIGNALS, Parcel, end_with, receive
from chop.search.study.workers import at_any_moment

LOCAL = "local"
HEAD_LOST = 20
"""Seconds without the head after which a cluster counts as lost."""
LOOK = 1.0
"""Seconds between two looks at how many slots there are: nodes come and go."""
TICK = 0.02
READY = "ready"


@dataclass(frozen=True)
class Cluster:
    """The cluster that tasks run on, and the resources of each of them.

    Attributes:
        address: of a cluster, ``auto`` or ``host:port``; ``local`` starts one on this machine.
        slots: processors of a cluster that is started; 1 means those of the machine.
        gpus: GPUs of a task, which Ray places; a part of one is allowed.
    """

    address: str
    slots: int
    gpus: float = 0.0

    def count_slots(self, resources: dict[str, float]) -> int:
        """Return how many tasks a cluster with these resources runs at the same time."""
        found = int(resources.get("CPU", 0))
        if self.gpus > 0:
            found = min(found, int(resources.get("GPU", 0) / self.gpus + 1e-9))
        return max(1, found)

    def environment(self) -> dict[str, str]:
        """Return the variables that Ray reads: no statistics; a cluster of ours asks for a token.

        Ray listens on all interfaces, whatever address it is given.
        """
        found = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_LOST),
        }
        if self.address == LOCAL:
            found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            found["RAY_worker_niceness"] = "0"  # as that of processes of the engine `local`
        return found

    def connect(self) -> Any:
        """Connect this process; return the package."""
        import ray

        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address == LOCAL:
            count = self.slots if self.slots > 1 else None
            ray.init(LOCAL, num_cpus=count, include_dashboard=False, _node_ip_address="127.0.0.1",
                     **quiet)  # fmt: skip
        else:
            ray.init(self.address, **quiet)
        return ray


class RayEngine(TrialEngine):
    """Evaluates in tasks of Ray; what a dead process or node had is lost, and sent again.

    Args:
        threads: of each task.
        imports: files of the user's that a worker reads first; every node must have them.
    """

    def __init__(self, cluster: Cluster, threads: int = 1, imports: Sequence[str] = ()) -> None:
        self.cluster = cluster
        self.slots = cluster.slots
        self.threads = threads
        paths = ((each, Path(each)) for each in imports)  # workers have a folder of their own
        self.imports = [str(path.resolve()) if path.is_file() else each for each, path in paths]
        self._tickets = itertools.count(1)
        self._flying: set[Ticket] = set()

    def start(self, payload: Any) -> None:
        try:
            parcel = pickle.dumps(Parcel(payload, self.threads, tuple(self.imports)))
        except Exception as error:  # noqa: BLE001  # a user's class may do anything
            raise SearchError(
                "engine = 'ray' needs a model and data that can be sent to another process: "
                f"{type(error).__name__}: {error}"
            ) from None
        context: Any = multiprocessing.get_context("spawn")  # as gRPC does not survive a fork
        resource_tracker.ensure_running()  # which would let signals through again
        self._connection, theirs = context.Pipe()
        self._relay = context.Process(target=relay, args=(self.cluster, theirs), name="relay")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with _variables(self.cluster.environment()):
                self._relay.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        with at_any_moment():
            with suppress(OSError):  # if it has died, there is nothing to read either
                self._connection.send_bytes(parcel)
            self._take(self._receive())

    def submit(self, requests: Sequence[Any]) -> Ticket:
        ticket = next(self._tickets)
        self._flying.add(ticket)
        with suppress(OSError):  # it has died, and `finished` is about to notice
            self._connection.send((ticket, requests))
        return ticket

    def finished(self, timeout: float) -> Finished:
        if not self._flying:
            return []
        with at_any_moment():
            self._connection.poll(timeout)
        found: Finished = []
        while self._connection.poll(0.0):
            found += self._take(self._receive())
        return found

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            where = "was started here" if self.cluster.address == LOCAL else self.cluster.address
            raise SearchError(
                f"the Ray cluster ({where}) is lost; what was evaluated is stored: start the "
                "cluster again, and the search with --resume"
            ) from None

    def _take(self, message: Any) -> Finished:
        """Return what the relay says of batches; it also says how many slots there are."""
        if isinstance(message, Lost):
            raise SearchError(f"engine ray: {message.reason}")
        ticket, said = message
        if ticket == READY:
            self.slots = said
            return []
        self._flying.discard(ticket)
        return [(ticket, said)]

    def close(self) -> None:
        relay = getattr(self, "_relay", None)
        if relay is None or relay.pid is None:
            return
        relay.terminate()
        relay.join(PATIENCE)
        if relay.is_alive():
            relay.kill()
            relay.join()
        self._connection.close()
        self._flying.clear()


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def relay(cluster: Cluster, connection: Connection) -> None:
    """Hand batches to Ray until this process is told to end; the target of the relay."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # of a lost cluster Ray prints a page
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    try:
        tasks = Tasks(cluster, connection.recv_bytes())
    except Exception as error:  # noqa: BLE001  # whatever it is, the first process says so
        reason = " ".join(str(error).split())[:200]
        connection.send(Lost(f"no cluster at {cluster.address!r}: {reason}"))
        return
    signal.signal(signal.SIGTERM, lambda *_: tasks.end())
    batches: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=receive, args=(connection, batches), daemon=True).start()
    looked = 0.0
    while True:
        if time.monotonic() - looked > LOOK:
            looked = time.monotonic()
            connection.send((READY, tasks.slots()))
        with suppress(queue.Empty):
            while True:
                tasks.submit(*batches.get(timeout=0.0 if tasks.flying else LOOK))
        for answer in tasks.finished():
            connection.send(answer)


class Tasks:
    """The tasks of one search on a cluster."""

    def __init__(self, cluster: Cluster, parcel: bytes) -> None:
        self.cluster = cluster
        self.ray = ray = cluster.connect()
        self.flying: dict[Any, Ticket] = {}
        self.study = secrets.token_hex(8)
        self.parcel = ray.put(parcel)
        # The search sends again what is lost: it knows what has been recorded.
        self.task = ray.remote(num_cpus=1, num_gpus=cluster.gpus, max_retries=0)(evaluate_batch)

    def slots(self) -> int:
        """Return how many tasks run at the same time."""
        return self.cluster.count_slots(self.ray.cluster_resources())

    def submit(self, ticket: Ticket, requests: Sequence[Any]) -> None:
        """Give a batch to Ray."""
        self.flying[self.task.remote([self.parcel], self.study, requests)] = ticket

    def finished(self) -> Iterator[tuple[Ticket, list[Answer] | Lost]]:
        """Yield the batches that are finished or lost; wait a moment for one."""
        if not self.flying:
            return
        done, rest = self.ray.wait([*self.flying], num_returns=1, timeout=TICK)
        if done and rest:
            done += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        for each in done:
            ticket = self.flying.pop(each)
            try:
                yield ticket, self.ray.get(each)
            except Exception as error:  # noqa: BLE001  # of Ray's or of the worker's
                yield ticket, self._lost(error)

    def _lost(self, error: Exception) -> Lost:
        words = " ".join(str(error).split())[:200]
        of_node = isinstance(error, self.ray.exceptions.NodeDiedError)
        return Lost(f"{type(error).__name__}: {words}", is_innocent=of_node)

    def end(self) -> None:
        """Leave the cluster, and end one that was started here."""
        with suppress(Exception):
            self.ray.shutdown()
        os._exit(0)


_EVALUATORS: dict[str, BatchEvaluator] = {}
"""What this worker process has built of a study; the last one only."""


def evaluate_batch(where: Sequence[Any], study: str, requests: Sequence[Any]) -> list[Answer]:
    """Evaluate a batch; the task of Ray.

    Args:
        where: the reference of the parcel in a list, so that Ray does not fetch it for every task.
    """
    if study not in _EVALUATORS:
        import ray

        parcel: Parcel = pickle.loads(ray.get(where[0]))
        torch.set_num_threads(parcel.threads)
        _EVALUATORS.clear()
        _EVALUATORS[study] = BatchEvaluator(parcel.payload.evaluator())
    return list(_EVALUATORS[study](requests))
