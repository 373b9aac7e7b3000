"""Processes that search together: how they start, what they are given, and how they end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from search_cases import tables
from torch import nn

from chop.dataset import MaseDataModule
from chop.errors import SearchError
from chop.models import get_model_info
from chop.search.processes import Task, helpers, make_task
from chop.search.spaces.space import SearchContext
from chop.search.study.storage import PROXY, Place, open_store
from chop.search.study.store import Store

OWN_MODEL = """
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(x)
"""


def task_of(context: SearchContext, folder: Path, **more: Any) -> Task:
    place = Place(str(folder / "study.log"), "search")
    common: dict[str, Any] = {"search": tables(n_trials=8), "place": place, "problem": {}}
    return make_task(context, **common | {"seed": 0, "threads": 1} | more)


def opened(task: Task) -> Store:
    return open_store(task.place, ["maximize", "minimize"], {})


def done_by_helpers(task: Task, count: int) -> int:
    with helpers(task, count) as started:
        for process in started:
            process.join()
            assert process.exitcode == 0
    return len(opened(task).counted())


def test_a_model_that_could_not_be_sent_is_searched_all_the_same(
    data: MaseDataModule, tmp_path: Path
) -> None:
    """As from a notebook: its class is nowhere to be imported from, and it holds a function."""

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 5)
            self.twice = lambda x: 2 * x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.twice(self.fc(x))
            return scores

    context = SearchContext(Local().eval(), get_model_info("jsc-tiny"), data)
    task = task_of(context, tmp_path)
    assert task.start_method == "fork"
    assert done_by_helpers(task, 2) == 8


class Spawned(Task):
    """A task whose processes start afresh, as they do where a fork is not safe."""

    start_method = "spawn"

    def __reduce__(self) -> tuple[Any, ...]:
        return Task.__reduce__(self)


def test_where_a_fork_is_not_safe_model_and_imports_are_sent(
    data: MaseDataModule, tmp_path: Path
) -> None:
    from chop.loading.user_code import import_user_code

    file = tmp_path / "own_model.py"
    file.write_text(OWN_MODEL)
    (module,) = import_user_code([str(file)])
    context = SearchContext(module.Own().eval(), get_model_info("jsc-tiny"), data)
    task = Spawned(**vars(task_of(context, tmp_path, imports=(str(file),))))
    assert done_by_helpers(task, 1) == 8
    assert not multiprocessing.active_children()


def test_what_cannot_be_sent_is_one_line(context: SearchContext, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 5))
    model.twice = lambda x: x  # type: ignore[assignment]
    task = Spawned(**vars(task_of(replace(context, model=model), tmp_path)))
    with pytest.raises(SearchError, match="use n_jobs = 1") as caught, helpers(task, 1):
        pass
    assert "\n" not in str(caught.value)


def test_a_fork_only_where_it_is_safe(
    context: SearchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(context, tmp_path)
    assert task.start_method == "fork"
    assert replace(task, threads=2).start_method == "spawn"
    assert replace(task, place=Place(f"{PROXY}localhost", "s")).start_method == "spawn"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert task.start_method == "spawn"


def test_processes_that_are_still_at_work_end_with_the_block(
    context: SearchContext, tmp_path: Path
) -> None:
    search = tables(n_trials=1_000_000)
    search["search_space"]["seed"]["linear"]["config"] |= {
        f"{part}_{width}": list(range(1, 9))
        for part in ("data_in", "weight", "bias")
        for width in ("width", "frac_width")
    }
    task = task_of(context, tmp_path, search=search)
    store = opened(task)
    with helpers(task, 2) as started:
        deadline = time.monotonic() + 600
        while len({t.user_attrs.get("worker") for t in store.counted()}) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pids = [process.pid for process in started]
    assert not any(_exists(pid) for pid in pids)
    assert not multiprocessing.active_children()
    store.sync()
    assert not store.running  # what they had claimed they gave up


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_end_when_the_first_is_killed(tmp_path: Path) -> None:
    """Nobody would report what they find, and who killed it wants an end to all of it."""
    script = textwrap.dedent("""
        import os, sys, time
        from chop.search.processes import helpers, make_task
        from chop.search.study.storage import Place
        from chop.search.spaces.space import SearchContext
        from torch import nn
        def forever(task, space, config, worker):
            print(os.getpid(), flush=True)
            with at_any_moment():
                time.sleep(600)
        from chop.search import processes as crew
        from chop.search.study.workers import at_any_moment
        crew.make_space = lambda *_: None
        crew.parse_search = lambda tables: type("C", (), {"search_space": SPACE})
        SPACE = type("S", (), {"name": "", "setup": {}, "seed": {}})
        context = SearchContext(nn.Linear(1, 1), None, None)
        task = make_task(context, work=forever, search={}, place=Place("x", "s"), problem={},
                         seed=0, threads=1)
        with helpers(task, 2):
            time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 600
    while any(_exists(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
