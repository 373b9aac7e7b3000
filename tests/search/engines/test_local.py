"""Processes of this machine that evaluate: how they start, what they are given, how they end."""

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
from search_cases import StoreMaker, space_of, tables
from torch import nn

from chop.dataset import MaseDataModule
from chop.errors import SearchError
from chop.models import get_model_info
from chop.search.config import parse_search
from chop.search.engines.engine import Lost
from chop.search.engines.local import Local
from chop.search.runners import SW_RUNNERS, software_runner
from chop.search.spaces.space import Candidate, SearchContext
from chop.search.strategy import Search
from chop.search.study.storage import PROXY, Place
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


def search_with(context: SearchContext, store: Store, engine: Local, **setup: Any) -> Store:
    config = parse_search(tables(**{"n_trials": 8} | setup))
    Search(space_of(context, config), config, store, engine=engine).run()
    assert not multiprocessing.active_children()
    return store


def test_a_model_that_could_not_be_sent_is_searched_all_the_same(
    data: MaseDataModule, open_at: StoreMaker
) -> None:
    """As from a notebook: its class is nowhere to be imported from, and it holds a function."""

    class Notebook(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 5)
            self.twice = lambda x: 2 * x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.twice(self.fc(x))
            return scores

    context = SearchContext(Notebook().eval(), get_model_info("jsc-tiny"), data)
    engine = Local(2)
    assert engine.start_method == "fork"
    assert len(search_with(context, open_at(), engine).frozen_trials()) == 8


def test_where_a_fork_is_not_safe_model_and_imports_are_sent(
    data: MaseDataModule, tmp_path: Path, open_at: StoreMaker
) -> None:
    from chop.loading.user_code import import_user_code

    file = tmp_path / "own_model.py"
    file.write_text(OWN_MODEL)
    (module,) = import_user_code([str(file)])
    context = SearchContext(module.Own().eval(), get_model_info("jsc-tiny"), data)
    engine = Local(1, imports=[str(file)], may_fork=False)
    assert len(search_with(context, open_at(), engine).frozen_trials()) == 8


def test_what_cannot_be_sent_is_one_line(context: SearchContext, open_at: StoreMaker) -> None:
    model = nn.Sequential(nn.Linear(16, 5))
    model.twice = lambda x: x  # type: ignore[assignment]
    with pytest.raises(SearchError, match="use n_jobs = 1") as caught:
        search_with(replace(context, model=model), open_at(), Local(1, may_fork=False))
    assert "\n" not in str(caught.value)


def test_a_fork_only_where_it_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Local(2).start_method == "fork"
    assert Local(2, threads=2).start_method == "spawn"
    assert Local(2, may_fork=Place(f"{PROXY}localhost", "s").may_fork).start_method == "spawn"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert Local(2).start_method == "spawn"


class Sleeper:
    """A payload that says which process it is in, then takes so many seconds."""

    def evaluator(self) -> Any:
        def evaluate(seconds: float) -> int:
            time.sleep(seconds)
            return os.getpid()

        return evaluate


def pids_of(engine: Local, count: int) -> list[int]:
    """The processes that evaluate so many requests at the same time."""
    for _ in range(count):
        engine.submit([0.2])
    found: list[int] = []
    while len(found) < count:
        for _, answers in engine.finished(1.0):
            assert not isinstance(answers, Lost)
            found += [answer.value for answer in answers]
    return found


def test_processes_that_are_still_at_work_end_with_the_block() -> None:
    engine = Local(2)
    engine.start(Sleeper())
    pids = pids_of(engine, 2)
    assert len({os.getpid(), *pids}) == 3
    for _ in range(4):
        engine.submit([600.0])
    assert engine.finished(0.05) == []
    engine.close()
    assert not any(_exists(pid) for pid in pids)
    assert not multiprocessing.active_children()


def test_a_batch_is_lost_with_its_process_and_the_next_goes_to_another() -> None:
    engine = Local(1)
    engine.start(Sleeper())
    (pid,) = pids_of(engine, 1)
    first, second = engine.submit([600.0]), engine.submit([0.0])
    os.kill(pid, signal.SIGKILL)
    found: dict[int, Any] = {}
    while len(found) < 2:
        found |= dict(engine.finished(1.0))
    assert found[first] == Lost("its process was killed by signal 9")
    assert found[second][0].value != pid
    engine.close()


class Broken:
    """A payload of which nothing can be made."""

    def evaluator(self) -> Any:
        raise ValueError("no way")


def test_a_process_that_cannot_start_is_one_line() -> None:
    engine = Local(2)
    engine.start(Broken())
    engine.submit([0.0])
    with pytest.raises(SearchError, match="could not start: ValueError: no way"):
        engine.finished(60.0)
    engine.close()


@pytest.mark.parametrize("sampler", ["brute", "tpe"])
def test_trials_are_those_of_one_process(
    sampler: str, context: SearchContext, open_at: StoreMaker
) -> None:
    one = search_with(context, open_at("one.log"), Local(1), sampler=sampler, n_trials=18)
    two = search_with(context, open_at("two.log"), Local(2), sampler=sampler, n_trials=18)
    config = parse_search(tables(sampler=sampler, n_trials=18))
    serial = Search(space_of(context, config), config, open_at("serial.log"))
    serial.run()
    by_key = [{t.user_attrs["key"]: t.values for t in store.frozen_trials()}
              for store in (one, two, serial.store)]  # fmt: skip
    assert by_key[0] == by_key[1] == by_key[2]
    assert len(by_key[0]) == 18


@pytest.fixture
def deadly() -> Any:
    @software_runner("deadly", metrics=("mood",))
    def deadly(candidate: Candidate) -> dict[str, float]:
        """Kill the process of one configuration."""
        block = candidate.config["seq_blocks_2"]["config"]
        if (block["weight_width"], block["bias_width"], block["data_in_width"]) == (2, 4, 8):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"mood": 1.0}

    yield
    del SW_RUNNERS._entries["deadly"]


@pytest.mark.usefixtures("deadly")
def test_a_trial_that_kills_its_process_is_one_failed_trial(
    context: SearchContext, open_at: StoreMaker
) -> None:
    stated = tables(sampler="brute")
    stated["strategy"]["sw_runner"] |= {"deadly": {}}
    config = parse_search(stated)
    store = open_at()
    Search(space_of(context, config), config, store, engine=Local(2)).run()
    trials = store.frozen_trials()
    assert len({trial.user_attrs["key"] for trial in trials}) == len(trials) == 18
    (failed,) = [trial for trial in trials if trial.state.name == "FAIL"]
    reason = "its process ended 2 times: its process was killed by signal 9"
    assert failed.user_attrs["reason"] == reason


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_end_when_the_first_is_killed() -> None:
    """Nobody would record what they find, and who killed it wants an end to all of it."""
    script = textwrap.dedent("""
        import os, time
        from chop.search.engines.local import Local
        class Forever:
            def evaluator(self):
                def evaluate(request):
                    print(os.getpid(), flush=True)
                    time.sleep(600)
                return evaluate
        engine = Local(2)
        engine.start(Forever())
        engine.submit([1]), engine.submit([2])
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
