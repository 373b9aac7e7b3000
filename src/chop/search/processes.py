"""Several processes that search one study together."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import torch

from chop.errors import SearchError
from chop.loading.user_code import import_user_code
from chop.search.config import SearchConfig, parse_search
from chop.search.spaces.space import SearchContext, SearchSpace, make_space
from chop.search.strategy import Search
from chop.search.study.patience import Patience, StorageLost
from chop.search.study.storage import PROXY, Place, open_store
from chop.search.study.workers import at_any_moment, held_back, terminable

PATIENCE = 10.0
"""Seconds that a process gets to store what it has finished."""

Work = Callable[["Task", SearchSpace, SearchConfig, int], None]


@dataclass(frozen=True)
class Task:
    """All that another process needs in order to take part."""

    context: SearchContext
    search: Mapping[str, Any]
    place: Place
    problem: Mapping[str, Any]
    seed: int
    threads: int
    work: Work
    """What the process does once it has a space; the number is its place among the others."""
    imports: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """How a process that starts afresh makes its own: `context` may hold classes of `imports`.

        They are read before the rest is.
        """
        return _task_after, (self.imports,), vars(self)

    @property
    def start_method(self) -> str:
        """How processes are started: by fork where nothing forbids it.

        A fork starts at once, and any model will do: it need not be sent, so that its class may
        come from a notebook. A fork must not use what threads of the first process hold:
        neither a GPU, nor a channel of gRPC, nor OpenMP's threads.
        """
        forbidden = (
            sys.platform != "linux"
            or torch.accelerator.is_available()
            or self.place.storage.startswith(PROXY)
            or self.threads > 1
        )
        return "spawn" if forbidden else "fork"


def _task_after(imports: tuple[str, ...]) -> Task:
    import_user_code(list(imports))
    return object.__new__(Task)


def take_part(task: Task, space: SearchSpace, config: SearchConfig, worker: int) -> None:
    """Search, as one of the processes that were started together."""
    wait = Patience(task.place.storage)  # the first process has opened it, so it is there
    store = wait(lambda: open_store(task.place, list(config.directions), task.problem))
    Search(space, config, store, task.seed, worker).run()


def make_task(context: SearchContext, *, work: Work = take_part, **rest: Any) -> Task:
    """A task for processes that search, or do other `work` on the space."""
    return Task(context, work=work, **rest)


@contextlib.contextmanager
def helpers(task: Task | None, count: int) -> Iterator[list[Any]]:
    """So many further processes at work; they end by themselves when there is nothing left."""
    started: list[Any] = []
    try:
        for place in range(1, count + 1):
            assert task is not None
            started.append(_start(task, place))
        yield started
    finally:
        _end(started)


def _start(task: Task, place: int) -> Any:
    context: Any = multiprocessing.get_context(task.start_method)
    if task.start_method == "spawn":
        resource_tracker.ensure_running()  # which would let signals through again
    process = context.Process(target=run_task, args=(task, place), name=f"search-{place}")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            # Python warns of any fork beside threads; see `Task.start_method`.
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            process.start()
    except Exception as error:  # noqa: BLE001  # a user's class may do anything
        raise SearchError(
            "n_jobs > 1 needs a model and data that can be sent to another process: "
            f"{type(error).__name__}: {error}; use n_jobs = 1"
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _end(processes: list[Any]) -> None:
    """End what is still at work: as Ctrl-C does at first, so that finished trials are stored."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def run_task(task: Task, worker: int) -> None:
    """What another process does, from its start to its end."""
    # Ctrl-C reaches all, and the first process reports; it comes from the terminal and from `_end`.
    with contextlib.suppress(KeyboardInterrupt), terminable(), held_back(helper=True):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        with at_any_moment():
            torch.set_num_threads(task.threads)
            config = parse_search(task.search)
            stated = config.search_space
            space = make_space(stated.name, task.context, stated.setup, stated.seed)
        with contextlib.suppress(StorageLost):  # the first process learns of it, too, and says so
            task.work(task, space, config, worker)


def _end_with(parent: int) -> None:
    """End this process as Ctrl-C does once its parent is gone: who kills that wants an end."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)
