"""Several processes that search one study together."""

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from chop.errors import SearchError
from chop.search.config import parse_search
from chop.search.context import SearchContext
from chop.search.space import make_space
from chop.search.storage import Place, open_store
from chop.search.strategy import Search
from chop.tools.user_code import import_user_code

PATIENCE = 10.0
"""Seconds that a process gets to store what it has finished."""


@dataclass(frozen=True)
class Task:
    """All that another process needs in order to take part."""

    context: bytes
    """The pickled `SearchContext`: it may hold classes of `imports`, which are to be read first."""
    search: Mapping[str, Any]
    place: Place
    problem: Mapping[str, Any]
    seed: int
    threads: int
    imports: tuple[str, ...] = ()


def make_task(context: SearchContext, **rest: Any) -> Task:
    """A task, if the model and the data can be sent to another process."""
    try:
        packed = pickle.dumps(context)
    except Exception as error:  # noqa: BLE001  # a user's class may do anything
        raise SearchError(
            f"n_jobs > 1 needs a model and data that can be pickled: {type(error).__name__}: "
            f"{error}; use n_jobs = 1"
        ) from None
    return Task(packed, **rest)


@contextlib.contextmanager
def helpers(task: Task, count: int) -> Iterator[list[Any]]:
    """So many further processes at work; they end by themselves when there is nothing left."""
    spawn = multiprocessing.get_context("spawn")
    started = [
        spawn.Process(target=work, args=(task, place), daemon=True, name=f"search-{place}")
        for place in range(1, count + 1)
    ]
    for process in started:
        process.start()
    try:
        yield started
    finally:
        _end(started)


def _end(processes: list[Any]) -> None:
    """End what is still at work: as Ctrl-C does at first, so that finished trials are stored."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.terminate()
            process.join()


def work(task: Task, worker: int) -> None:
    """Take part in a search, as one of the processes that were started together."""
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches all; the first process reports
        torch.set_num_threads(task.threads)
        import_user_code(list(task.imports))
        context: SearchContext = pickle.loads(task.context)
        config = parse_search(task.search)
        space = make_space(
            config.search_space.name, context, config.search_space.setup, config.search_space.seed
        )
        store = open_store(task.place, list(config.directions), task.problem)
        Search(space, config, store, task.seed, worker).run()
